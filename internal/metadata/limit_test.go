package metadata

import (
	"context"
	"io"
	"net"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// A guest that asks too often waits its turn, and is refused when that is too far off.
func TestDelay(t *testing.T) {
	l := Limits{Rate: 10, Burst: 5}.withDefaults()
	c := &caller{}
	now := time.Unix(1000, 0)
	for n := range 5 {
		if d, ok := c.delay(l, now); d != 0 || !ok {
			t.Errorf("request %d of the burst waits %v, %v", n, d, ok)
		}
	}
	for n := 1; n <= 10; n++ {
		if d, ok := c.delay(l, now); d != time.Duration(n)*100*time.Millisecond || !ok {
			t.Errorf("request %d after the burst waits %v, %v", n, d, ok)
		}
	}
	if _, ok := c.delay(l, now); ok {
		t.Error("a wait of more than a second is not refused")
	}
	if c.idle(now) {
		t.Error("a caller in debt is forgotten")
	}
	now = now.Add(1500 * time.Millisecond)
	if !c.idle(now) {
		t.Error("a caller without debt is kept")
	}
	if d, ok := c.delay(l, now); d != 0 || !ok {
		t.Errorf("after a rest: %v, %v", d, ok)
	}
}

func TestPause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		before := time.Now()
		if !pause(t.Context(), time.Second) || time.Since(before) != time.Second {
			t.Errorf("paused for %v", time.Since(before))
		}
	})
}

// One guest has all the connections that it may have; the next is closed, another guest's is not. When one ends, its
// place is free again.
func TestConnectionsPerCaller(t *testing.T) {
	s := start(t, func(c *Config) { c.Limits.Connections = 3 })
	s.provider.set(port2, sample())
	dial := func(from string) net.Conn {
		t.Helper()
		d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}
		c, err := d.Dial("tcp4", s.addr)
		if err != nil {
			return nil // closed before connect has returned
		}
		t.Cleanup(func() { c.Close() })
		return c
	}
	served := func(c net.Conn) bool {
		if c == nil {
			return false
		}
		_, _ = io.WriteString(c, "GET / HTTP/1.1\r\nHost: x\r\n\r\n")
		_, err := c.Read(make([]byte, 1))
		return err == nil
	}
	var held []net.Conn
	for range 3 {
		c := dial("127.0.0.1")
		if !served(c) {
			t.Fatal("a connection within the limit is closed")
		}
		held = append(held, c)
	}
	if served(dial("127.0.0.1")) {
		t.Error("a connection over the limit is served")
	}
	if !served(dial("127.0.0.2")) {
		t.Error("another guest's connection is closed")
	}
	held[0].Close()
	for !served(dial("127.0.0.1")) { // the server learns of the end in its own time
	}
	if st := s.server.Stats(); st.RefusedConnections == 0 {
		t.Errorf("%+v", st)
	}
}

// Callers in the map do not grow without bound.
func TestIdleCallersAreForgotten(t *testing.T) {
	s := start(t, nil)
	for n := range 50 {
		from := net.IPv4(127, 0, 1, byte(n)).String()
		c := s.client(from)
		s.doFrom(c, "GET", "/")
		c.Transport.(*http.Transport).CloseIdleConnections()
		for s.open() > 0 {
		}
	}
	s.advance(time.Minute)
	s.doFrom(s.client("127.0.0.1"), "GET", "/")
	s.server.mu.Lock()
	defer s.server.mu.Unlock()
	if n := len(s.server.callers); n > 1 {
		t.Errorf("%d callers are remembered", n)
	}
}

// open is the number of connections that the server holds.
func (s *service) open() (n int64) {
	s.server.mu.Lock()
	defer s.server.mu.Unlock()
	for _, c := range s.server.callers {
		n += c.conns.Load()
	}
	return n
}

// flood asks as fast as it can, on so many connections, until stop is called; that tells how many answers came.
func (s *service) flood(from string, connections int) (stop func() int64) {
	ctx, cancel := context.WithCancel(context.Background())
	var answers atomic.Int64
	var wg sync.WaitGroup
	c := s.client(from)
	c.Transport.(*http.Transport).MaxIdleConnsPerHost = connections
	for range connections {
		wg.Go(func() {
			for ctx.Err() == nil {
				r, _ := http.NewRequestWithContext(ctx, "GET", "http://"+s.addr+"/", nil)
				if resp, err := c.Do(r); err == nil {
					resp.Body.Close()
					answers.Add(1)
				}
			}
		})
	}
	return func() int64 { cancel(); wg.Wait(); return answers.Load() }
}

// A guest that floods gets its rate and no more, and another guest's requests are all answered meanwhile.
func TestFloodIsHeldBack(t *testing.T) {
	limits := Limits{Rate: 200, Burst: 20, Connections: 8}
	s := start(t, func(c *Config) { c.Now, c.Limits = time.Now, limits })
	s.provider.set(port2, sample())
	begin := time.Now()
	stop := s.flood("127.0.0.2", limits.Connections)
	c := s.client("127.0.0.1")
	token := s.token(c)
	for range 100 {
		if a := s.doFrom(c, "GET", "/latest/meta-data/instance-id", tokenHeader, token); a.status != 200 {
			t.Fatalf("another guest gets %+v", a)
		}
	}
	got := stop()
	most := int64(float64(limits.Rate)*time.Since(begin).Seconds()) + int64(limits.Burst+limits.Connections)
	if got > most {
		t.Errorf("the flood got %d answers, its share is %d", got, most)
	}
}

// How long another guest waits for an answer, the longest of a hundred, without and with a flood that has used up its
// burst.
func BenchmarkFlood(b *testing.B) {
	for _, flooded := range []bool{false, true} {
		b.Run(map[bool]string{false: "quiet", true: "flooded"}[flooded], func(b *testing.B) {
			s := start(b, func(c *Config) { c.Now, c.Limits = time.Now, Limits{} })
			s.provider.set(port2, sample())
			c := s.client("127.0.0.1")
			token := s.token(c)
			if flooded {
				stop := s.flood("127.0.0.2", 64)
				defer stop()
			}
			var took []time.Duration
			tick := time.NewTicker(4 * time.Millisecond) // below the rate at which it would itself be held back
			defer tick.Stop()
			for flooded && s.server.Stats().Requests < 1000 {
				<-tick.C
			}
			for range max(500, b.N) {
				<-tick.C
				begin := time.Now()
				if a := s.doFrom(c, "GET", "/latest/meta-data/instance-id", tokenHeader, token); a.status != 200 {
					b.Fatalf("%+v", a)
				}
				took = append(took, time.Since(begin))
			}
			slices.Sort(took)
			b.ReportMetric(float64(took[len(took)/2].Microseconds()), "p50-µs")
			b.ReportMetric(float64(took[len(took)*99/100].Microseconds()), "p99-µs")
		})
	}
}
