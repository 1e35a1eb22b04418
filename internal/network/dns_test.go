package network

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/miekg/dns"
)

func query(name string, kind uint16) *dns.Msg { return new(dns.Msg).SetQuestion(name, kind) }

func testResolver(t *table, servers []string, dial dialer) *resolver {
	var current atomic.Pointer[table]
	current.Store(t)
	return newResolver(context.Background(), &current, func() (list []netip.AddrPort) {
		for _, s := range servers {
			list = append(list, netip.MustParseAddrPort(s))
		}
		return list
	}, dial)
}

func TestOwnNames(t *testing.T) {
	r := testResolver(testTable(), nil, nil)
	for _, c := range []struct {
		name  string
		kind  uint16
		rcode int
		want  string
	}{
		{"one.internal.", dns.TypeA, dns.RcodeSuccess, "172.31.0.3"},
		{"ONE.Internal.", dns.TypeA, dns.RcodeSuccess, "172.31.0.3"},
		{"i-abc.internal.", dns.TypeA, dns.RcodeSuccess, "172.31.0.3"},
		{"one.internal.", dns.TypeAAAA, dns.RcodeSuccess, ""},
		{"two.internal.", dns.TypeA, dns.RcodeNameError, ""},
		{"i-two.internal.", dns.TypeA, dns.RcodeNameError, ""}, // of another subnet
		{"3.0.31.172.in-addr.arpa.", dns.TypePTR, dns.RcodeSuccess, "one.internal."},
		{"9.0.31.172.in-addr.arpa.", dns.TypePTR, dns.RcodeNameError, ""},
		{"8.8.8.8.in-addr.arpa.", dns.TypePTR, dns.RcodeNameError, ""}, // nobody to ask
		{"example.org.", dns.TypeA, dns.RcodeNameError, ""},
		{".", dns.TypeNS, dns.RcodeNameError, ""},
	} {
		reply := r.answer("udp", query(c.name, c.kind))
		got := ""
		for _, rr := range reply.Answer {
			switch rr := rr.(type) {
			case *dns.A:
				got = rr.A.String()
			case *dns.PTR:
				got = rr.Ptr
			}
		}
		if reply.Rcode != c.rcode || got != c.want {
			t.Errorf("%s %s: %s %q", c.name, dns.TypeToString[c.kind], dns.RcodeToString[reply.Rcode], got)
		}
		if _, err := reply.Pack(); err != nil {
			t.Errorf("%s: %v", c.name, err)
		}
	}
	two := query("one.internal.", dns.TypeA)
	two.Question = append(two.Question, two.Question[0])
	if reply := r.answer("udp", two); reply.Rcode != dns.RcodeNotImplemented {
		t.Errorf("two questions: %s", dns.RcodeToString[reply.Rcode])
	}
}

func TestForward(t *testing.T) {
	pc, err := net.ListenPacket("udp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	up := &dns.Server{PacketConn: pc, Handler: dns.HandlerFunc(func(w dns.ResponseWriter, m *dns.Msg) {
		reply := new(dns.Msg).SetReply(m)
		rr, _ := dns.NewRR(m.Question[0].Name + " 5 IN A 203.0.113.1")
		reply.Answer = []dns.RR{rr}
		_ = w.WriteMsg(reply)
	})}
	go func() { _ = up.ActivateAndServe() }()
	t.Cleanup(func() { pc.Close() })
	direct := func(ctx context.Context, network string, to netip.AddrPort) (net.Conn, error) {
		if to.Port() == 1 {
			return nil, errors.New("unreachable")
		}
		return (&net.Dialer{}).DialContext(ctx, network, to.String())
	}
	r := testResolver(testTable(), []string{"127.0.0.1:1", pc.LocalAddr().String()}, direct)
	q := query("example.org.", dns.TypeA)
	if reply := r.answer("udp", q); len(reply.Answer) != 1 || reply.Id != q.Id {
		t.Errorf("the second server is not asked: %v", reply)
	}
	closed := testTable()
	closed.Egress = false
	if reply := testResolver(closed, []string{pc.LocalAddr().String()}, direct).answer("udp", q); reply.Rcode != dns.RcodeNameError {
		t.Errorf("without a way out: %s", dns.RcodeToString[reply.Rcode])
	}
	if reply := testResolver(testTable(), []string{"127.0.0.1:1"}, direct).answer("udp", q); reply.Rcode != dns.RcodeNameError {
		t.Errorf("nobody is reachable: %s", dns.RcodeToString[reply.Rcode])
	}
	busy := testResolver(testTable(), []string{pc.LocalAddr().String()}, direct)
	for range upstreamAtOnce {
		busy.slots <- struct{}{}
	}
	if reply := busy.answer("udp", q); reply.Rcode != dns.RcodeServerFailure {
		t.Errorf("too many at once: %s", dns.RcodeToString[reply.Rcode])
	}
}

// Servers that are silent cost one guest's one question their time; after that, answers come at once for a while.
func TestSilentServers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		silent := func(ctx context.Context, _ string, _ netip.AddrPort) (net.Conn, error) {
			near, far := net.Pipe()
			go func() {
				buf := make([]byte, 1024)
				for {
					if _, err := far.Read(buf); err != nil {
						return
					}
				}
			}()
			return near, nil
		}
		r := testResolver(testTable(), []string{"192.0.2.1:53", "192.0.2.2:53"}, silent)
		for _, c := range []struct {
			rest, takes time.Duration
		}{{0, 2 * upstreamTimeout}, {0, 0}, {upstreamPause - time.Millisecond, 0}, {2 * time.Millisecond, 2 * upstreamTimeout}} {
			<-time.After(c.rest)
			start := time.Now()
			reply := r.answer("tcp", query("example.org.", dns.TypeA))
			if took := time.Since(start); reply.Rcode != dns.RcodeServerFailure || took != c.takes {
				t.Errorf("after %v: %s in %v, want %v", c.rest, dns.RcodeToString[reply.Rcode], took, c.takes)
			}
		}
	})
}

func TestReadResolvers(t *testing.T) {
	path := filepath.Join(t.TempDir(), "resolv.conf")
	if got := readResolvers(path); got != nil {
		t.Errorf("no file: %v", got)
	}
	if err := os.WriteFile(path, []byte("search x\nnameserver 10.0.0.53\nnameserver ::1\nnameserver junk\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	got := readResolvers(path)
	if len(got) != 2 || got[0].String() != "10.0.0.53:53" || got[1].String() != "[::1]:53" {
		t.Errorf("%v", got)
	}
}

func FuzzReverse(f *testing.F) {
	f.Add("3.0.31.172.in-addr.arpa.")
	f.Add("1.in-addr.arpa.")
	f.Fuzz(func(t *testing.T, name string) {
		if a, ok := reverse(name); ok {
			back, err := dns.ReverseAddr(a.String())
			if err != nil || !strings.EqualFold(back, name) {
				t.Fatalf("%q is %s", name, a)
			}
		}
	})
}
