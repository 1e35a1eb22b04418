package server_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/outcrop-cloud/outcrop/internal/api"
	"github.com/outcrop-cloud/outcrop/internal/store"
)

// chaosHost is a runner host with a fault of its own, for two hours of virtual
// time. It remembers what the gateway acknowledged, so that the list can be held
// to it.
type chaosHost struct {
	e    *gw
	key  key
	poll int64

	mu      sync.Mutex
	heard   time.Time // of the last beat that the gateway took
	lowDisk bool      // as the last one said
	skew    time.Duration
}

// beat sends one heartbeat as a runner does it, and reports whether the host got
// the answer. lose drops the request, or its answer.
func (h *chaosHost) beat(lowDisk bool, lose string) bool {
	changes := []any{"pollSeconds", h.poll}
	if lowDisk {
		changes = append(changes, "lowDisk", map[string]any{"free": 1, "needed": 2})
	}
	if lose == "request" {
		return false
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	r := heartbeat(h.key, beat(h.key.host, changes...))
	r.created = h.skew
	q, w := h.e.build(r, "http://gateway"), &answerWriter{header: http.Header{}}
	q.RequestURI, q.RemoteAddr = q.URL.RequestURI(), "192.0.2.1:1234"
	h.e.handler.ServeHTTP(w, q)
	a := answer{w.status, w.header, w.body}
	switch {
	case a.status == 200:
		h.heard, h.lowDisk = time.Now(), lowDisk
	case a.code() == "runner_key_signature_stale":
		var e struct {
			Error struct{ Details api.ClockDetails }
		}
		_ = json.Unmarshal(a.body, &e)
		h.skew -= time.Duration(e.Error.Details.SkewSeconds) * time.Second // lesson 5
		return false
	default:
		h.e.t.Errorf("%s: %s", h.key.host, &a)
	}
	return lose != "answer"
}

// want is the status by the contract's words, from what was acknowledged.
func (h *chaosHost) want() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	limit := max(3*time.Duration(h.poll)*time.Second, time.Minute)
	switch {
	case time.Since(h.heard) > limit:
		return "stale"
	case h.lowDisk:
		return "failing"
	}
	return "ok"
}

type answerWriter struct {
	header http.Header
	status int
	body   []byte
}

func (w *answerWriter) Header() http.Header    { return w.header }
func (w *answerWriter) WriteHeader(status int) { w.status = status }
func (w *answerWriter) Write(b []byte) (int, error) {
	w.body = append(w.body, b...)
	return len(b), nil
}

// TestChaos lets hosts sleep, skew, lose requests and answers, be cloned, fill
// their disks and die, and looks at the list every few seconds: it is right each
// time, to the second.
//
// contract: R-01 R-06 R-10 R-23 R-24
// lesson 1
// lesson 5
// lesson 7
// lesson 38
// lesson 39
// lesson 40
func TestChaos(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		e := newGatewayHandler(t, store.Options{Dir: dir}, dir, nil, nil)
		app := e.newApp("chaos")
		reader := e.newKey(app, "hosts.read", "hosts.delete")
		begun := time.Now()
		const end = 2 * time.Hour
		over := func() bool { return time.Since(begun) >= end }
		var hosts []*chaosHost
		var wg sync.WaitGroup
		start := func(name string, poll int64, life func(h *chaosHost)) *chaosHost {
			h := &chaosHost{e: e, key: e.newRunner(app, name), poll: poll}
			hosts = append(hosts, h)
			wg.Go(func() { life(h) })
			return h
		}
		polls := func(h *chaosHost, each func(i int)) {
			for i := 0; !over(); i++ {
				each(i)
				time.Sleep(time.Duration(h.poll) * time.Second)
			}
		}
		for i := range 4 {
			start(fmt.Sprint("steady", i), int64(10+7*i), func(h *chaosHost) { polls(h, func(int) { h.beat(false, "") }) })
		}
		start("sleeper", 20, func(h *chaosHost) { // a laptop whose lid is closed now and then
			polls(h, func(i int) {
				if h.beat(false, ""); i%30 == 29 {
					time.Sleep(10 * time.Minute)
				}
			})
		})
		start("behind", 15, func(h *chaosHost) { h.skew = -20 * time.Minute; polls(h, func(int) { h.beat(false, "") }) })
		start("ahead", 15, func(h *chaosHost) { h.skew = 48 * time.Hour; polls(h, func(int) { h.beat(false, "") }) })
		start("drifting", 15, func(h *chaosHost) {
			polls(h, func(int) { h.mu.Lock(); h.skew += 7 * time.Second; h.mu.Unlock(); h.beat(false, "") })
		})
		start("lossy", 20, func(h *chaosHost) { // every other request is lost, or its answer; each is signed anew
			polls(h, func(i int) {
				lose := []string{"request", "", "answer", ""}
				if !h.beat(false, lose[i%4]) {
					h.beat(false, lose[(i+1)%4])
				}
			})
		})
		clone := start("cloned", 30, func(h *chaosHost) { polls(h, func(int) { h.beat(false, "") }) })
		wg.Go(func() { time.Sleep(11 * time.Second); polls(clone, func(int) { clone.beat(true, "") }) }) // from the same image, with a full disk
		start("filling", 20, func(h *chaosHost) { polls(h, func(i int) { h.beat(i%60 > 40, "") }) })
		start("dead", 30, func(h *chaosHost) {
			for range 20 {
				h.beat(false, "")
				time.Sleep(30 * time.Second)
			}
		})
		synctest.Wait()

		ctx, stop := t.Context(), make(chan struct{})
		go func() { // the loops run beside it, as in a server
			for {
				select {
				case <-stop:
					return
				case <-time.After(10 * time.Second):
					if err := e.gateway.ForgetNonces(ctx); err != nil {
						t.Error(err)
					}
				}
			}
		}()
		looks, seen := 0, map[string]int{}
		for !over() {
			time.Sleep(7 * time.Second)
			synctest.Wait()
			want := map[string]string{}
			for _, h := range hosts {
				if !h.heard.IsZero() {
					want[h.key.host] = h.want()
				}
			}
			list := get[[]api.RunnerHost](e, 200, request{method: "GET", path: "/v1/hosts?limit=1000", key: reader})
			if len(list) != len(want) {
				t.Fatalf("after %s: %d hosts in the list, want %d", time.Since(begun), len(list), len(want))
			}
			for _, h := range list {
				seen[h.Host+" "+h.Status]++
				if h.Status != want[h.Host] {
					t.Errorf("after %s: %s is %s (seen %s ago), want %s", time.Since(begun), h.Host, h.Status, time.Since(h.LastHeartbeatAt), want[h.Host])
				}
			}
			looks++
		}
		wg.Wait()
		close(stop)
		if looks < 1000 {
			t.Errorf("only %d looks", looks)
		}
		for _, must := range []string{"steady0 ok", "sleeper ok", "sleeper stale", "behind ok", "ahead ok", "drifting ok", "lossy ok", "cloned ok", "cloned failing", "filling ok", "filling failing", "dead ok", "dead stale"} {
			if seen[must] == 0 {
				t.Errorf("never saw %q", must)
			}
		}
		for _, never := range []string{"steady3 stale", "lossy stale", "drifting stale", "cloned stale"} {
			if seen[never] != 0 {
				t.Errorf("saw %q", never)
			}
		}
	})
}

// TestSilentHostsAreForgotten by a stated rule, and only they.
//
// lesson 39
func TestSilentHostsAreForgotten(t *testing.T) {
	e := sqliteGateway(t, nil)
	k := e.newKey(e.newApp("a"), "hosts.ingest", "hosts.read")
	get[api.HeartbeatHost](e, 200, heartbeat(k, beat("ghost")))
	e.clock.step(time.Second)
	get[api.HeartbeatHost](e, 200, heartbeat(k, beat("back")))
	for _, c := range []struct {
		step time.Duration
		want int
	}{{30*24*time.Hour - time.Second, 2}, {time.Microsecond, 1}} {
		e.clock.step(c.step)
		if err := e.gateway.Forget(t.Context()); err != nil {
			t.Fatal(err)
		}
		if list := get[[]api.RunnerHost](e, 200, request{method: "GET", path: "/v1/hosts", key: k}); len(list) != c.want || list[0].Host != "back" {
			t.Errorf("%d hosts, want %d", len(list), c.want)
		}
	}
}
