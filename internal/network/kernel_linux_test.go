package network

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/miekg/dns"
	"github.com/vishvananda/netlink"
)

// Two projects with the same range, two guests with the same address, one host: each has its own world.
// lesson 28
// lesson 29
func TestTwoProjectsOneHost(t *testing.T) {
	l := newLab(t)
	l.config.Metadata = greetAll
	d, pa1, pa2, pb1 := twoProjects()
	// The host is itself on a network with the tenants' range; its address is their gateway's, its neighbour's is a guest's.
	l.join("lan", "172.31.0.1/24", "lan", pa2.Address.String()+"/24")
	l.greet(l.outside, pa2.Address.String()+":7000", "lan")
	l.converge(l.kernel(), d)
	if got, err := ask(l.host, pa2.Address.String()+":7000", deadline); err != nil || got != "lan 172.31.0.1" {
		t.Errorf("the host asks its own neighbour: %q, %v", got, err)
	}
	for _, at := range []string{hostOutside, hostMgmt} {
		l.greet(l.host, at+":22", "host")
	}
	l.greet(l.outside, internet+":80", "internet")
	l.greet(l.outside, neighbour+":80", "neighbour")
	l.greet(l.outside, beneath+":80", "beneath")
	l.greet(l.outside, beneath+":8080", "beneath")

	a1, a2, b1 := l.guest(pa1), l.guest(pa2), l.guest(pb1)
	for _, g := range []*guest{a1, a2, b1} {
		start := time.Now()
		ack := g.boot()
		t.Logf("%s has %s after %v", g.port.ID, ack.YourIPAddr, time.Since(start))
		if addrOf(ack.YourIPAddr) != g.port.Address || ack.HostName() != g.port.Hostname {
			t.Errorf("%s was given %s, %q", g.port.ID, ack.YourIPAddr, ack.HostName())
		}
		if got := ack.Options.Get(dhcpMTU); len(got) != 2 || int(got[0])<<8|int(got[1]) != 1400 {
			t.Errorf("%s: MTU option % x", g.port.ID, got)
		}
		if ack.Options.Has(dhcpClasslessRoutes) {
			t.Errorf("%s: option 121 is sent", g.port.ID)
		}
		g.mustHear("169.254.169.254:80", g.port.SubnetID+" "+g.port.Address.String())
		g.mustHear(internet+":80", "internet "+hostOutside)
	}

	l.greet(a2.ns, ":7000", "a2")
	a1.mustHear(pa2.Address.String()+":7000", "a2 "+pa1.Address.String())
	b1.mustNotReach(pa2.Address.String() + ":7000")

	for _, to := range []string{
		hostOutside + ":22", hostMgmt + ":22", // the host's services on its addresses
		"169.254.192.0:22", "169.254.192.2:22", // and on its ends of the transit links
		"172.31.0.1:22", "172.31.0.1:80", "172.31.0.2:80", // the router has no other service
		neighbour + ":80",      // the management network
		"169.254.169.254:8080", // a metadata service beneath
		"169.254.192.3:80", "169.254.192.1:80",
	} {
		a1.mustNotReach(to)
	}

	// Both ask the same place from the same port of the same address, at the same time.
	var wg sync.WaitGroup
	for range 5 {
		for _, g := range []*guest{a1, b1} {
			wg.Go(func() {
				got, err := ask(g.ns, internet+":80", deadline)
				if err != nil || got != "internet "+hostOutside {
					t.Errorf("%s: %q, %v", g.port.ID, got, err)
				}
			})
		}
	}
	wg.Wait()
	openBoth(t, l, a1, b1)
}

// openBoth holds a connection open from each guest, from the same port of the same address to the same place, and
// checks that what each is sent comes to it alone.
func openBoth(t *testing.T, l *lab, guests ...*guest) {
	var ln net.Listener
	l.in(l.outside, func() (err error) { ln, err = net.Listen("tcp4", internet+":81"); return err })
	defer ln.Close()
	type pair struct{ near, far net.Conn }
	var pairs []pair
	for _, g := range guests {
		var p pair
		l.in(g.ns, func() (err error) {
			d := net.Dialer{Timeout: deadline, LocalAddr: &net.TCPAddr{Port: 40000}}
			p.near, err = d.Dial("tcp4", internet+":81")
			return err
		})
		p.far, _ = ln.Accept()
		defer p.near.Close()
		defer p.far.Close()
		pairs = append(pairs, p)
	}
	for i, p := range pairs {
		_ = p.far.SetDeadline(time.Now().Add(deadline))
		_ = p.near.SetDeadline(time.Now().Add(deadline))
		fmt.Fprintf(p.near, "%d", i)
		buf := make([]byte, 1)
		if _, err := p.far.Read(buf); err != nil || int(buf[0]-'0') != i {
			t.Errorf("outside: connection %d got %q, %v", i, buf, err)
		}
		fmt.Fprintf(p.far, "%d", i)
		if _, err := p.near.Read(buf); err != nil || int(buf[0]-'0') != i {
			t.Errorf("guest %d got %q, %v", i, buf, err)
		}
	}
}

const (
	dhcpMTU             = optionCode(26)
	dhcpClasslessRoutes = optionCode(121)
)

type optionCode uint8

func (c optionCode) Code() uint8    { return uint8(c) }
func (c optionCode) String() string { return "option" }

// Guests ask the name server that they are offered, over UDP and TCP: it knows their own subnet's names, asks the host's
// servers for others, and a subnet without a way out gets an answer at once.
func TestNames(t *testing.T) {
	l := newLab(t)
	var pc net.PacketConn
	l.in(l.outside, func() (err error) { pc, err = net.ListenPacket("udp4", internet+":53"); return err })
	t.Cleanup(func() { pc.Close() })
	up := &dns.Server{PacketConn: pc, Handler: dns.HandlerFunc(func(w dns.ResponseWriter, m *dns.Msg) {
		rr, _ := dns.NewRR(m.Question[0].Name + " 5 IN A 203.0.113.1")
		reply := new(dns.Msg).SetReply(m)
		reply.Answer = []dns.RR{rr}
		_ = w.WriteMsg(reply)
	})}
	go func() { _ = up.ActivateAndServe() }()
	l.config.Resolvers = func() []netip.AddrPort { return []netip.AddrPort{netip.MustParseAddrPort(internet + ":53")} }
	d, pa1, _, pb1 := twoProjects()
	d.Subnets[1].Egress = false
	l.converge(l.kernel(), d)
	var asker *guest
	for _, c := range []struct {
		g                 *guest
		network, name, to string
	}{
		{l.guest(pa1), "udp", "two.internal.", "172.31.0.4"},
		{nil, "tcp", "two.internal.", "172.31.0.4"},
		{nil, "udp", "i-aaaaaaaa2.internal.", "172.31.0.4"},
		{nil, "udp", "example.org.", "203.0.113.1"},
		{l.guest(pb1), "udp", "one.internal.", "172.31.0.3"},
		{nil, "udp", "two.internal.", ""},
		{nil, "udp", "example.org.", ""},
		{nil, "tcp", "example.org.", ""},
	} {
		if c.g != nil {
			c.g.boot()
			asker = c.g
		}
		var reply *dns.Msg
		l.in(asker.ns, func() (err error) {
			conn, err := net.Dial(c.network, "172.31.0.2:53")
			if err != nil {
				return err
			}
			defer conn.Close()
			client := dns.Client{Net: c.network, Timeout: deadline}
			reply, _, err = client.ExchangeWithConn(query(c.name, dns.TypeA), &dns.Conn{Conn: conn})
			return err
		})
		got := ""
		if len(reply.Answer) == 1 {
			got = reply.Answer[0].(*dns.A).A.String()
		}
		if got != c.to || c.to == "" && reply.Rcode != dns.RcodeNameError {
			t.Errorf("%s over %s: %q, %s", c.name, c.network, got, dns.RcodeToString[reply.Rcode])
		}
	}
}

// The way out, the MTU and a port's address change under a running guest, without its tap being made anew.
func TestChanges(t *testing.T) {
	l := newLab(t)
	l.config.Metadata = greetAll
	l.greet(l.outside, internet+":80", "internet")
	d, pa1, _, _ := twoProjects()
	d = Desired{Subnets: d.Subnets[:1], Ports: []Port{pa1}}
	k := l.kernel()
	l.converge(k, d)
	g := l.guest(pa1)
	g.boot()
	g.mustHear(internet+":80", "internet "+hostOutside)

	d.Subnets[0].Egress = false
	l.converge(k, d)
	g.mustNotReach(internet + ":80")
	g.mustHear("169.254.169.254:80", pa1.SubnetID+" 172.31.0.3")

	d.Subnets[0].Egress, d.Subnets[0].MTU = true, 1450
	l.converge(k, d)
	g.mustHear(internet+":80", "internet "+hostOutside)
	l.in(l.host, func() error {
		tap, err := netlink.LinkByName(pa1.Tap())
		if err == nil && tap.Attrs().MTU != 1450 {
			t.Errorf("the tap's MTU is %d", tap.Attrs().MTU)
		}
		return err
	})

	d.Ports = []Port{pa1}
	d.Ports[0].Address = addr("172.31.0.9")
	l.converge(k, d)
	g.mustNotReach("169.254.169.254:80") // with its old address
	ack := g.boot()
	if got := ack.Options.Get(dhcpMTU); addrOf(ack.YourIPAddr) != d.Ports[0].Address || len(got) != 2 || int(got[0])<<8|int(got[1]) != 1450 {
		t.Errorf("%s, MTU % x", ack.YourIPAddr, got)
	}
}

// A tap can be opened by the user that it is for, and by no other without privileges; another user is taken over.
func TestTapOwner(t *testing.T) {
	l := newLab(t)
	d, pa1, _, _ := twoProjects()
	const nobody, other = 65534, 65533
	program := filepath.Join(filepath.Dir(l.state), "open")
	text, err := os.ReadFile(os.Args[0])
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(program, text, 0o755); err != nil {
		t.Fatal(err)
	}
	for dir := program; dir != "/tmp" && dir != "/"; dir = filepath.Dir(dir) {
		if err := os.Chmod(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	open := func(uid uint32) error {
		c := exec.Command(program)
		c.Dir = "/"
		c.Env = []string{openEnv + "=" + pa1.Tap()}
		c.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
		return l.host.do(c.Run)
	}
	for _, owner := range []uint32{nobody, other} {
		l.config.TapUID, l.config.TapGID = owner, owner
		k := l.kernel()
		l.converge(k, d)
		if err := open(owner); err != nil {
			t.Errorf("user %d cannot open its tap: %v", owner, err)
		}
		if err := open(nobody + other - owner); err == nil {
			t.Errorf("a tap of user %d is opened by another", owner)
		}
		k.Close()
	}
}

// A run finds what an earlier one left, however it ended, and leaves nothing that is not desired.
func TestStaleIsRemoved(t *testing.T) {
	l := newLab(t)
	d, pa1, _, _ := twoProjects()
	first := l.kernel()
	l.converge(first, d)
	if got := len(l.devices()); got != 9 {
		t.Errorf("%d devices: %v", got, l.devices())
	}
	// A stranger's device with a like name stays.
	l.in(l.host, func() error {
		b := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "octopus"}}
		return netlink.LinkAdd(b)
	})
	// A tap without an alias, as a crash leaves it.
	l.in(l.host, func() error {
		return netlink.LinkAdd(&netlink.Tuntap{LinkAttrs: netlink.LinkAttrs{Name: "octzzzzzzzzz1"}, Mode: netlink.TUNTAP_MODE_TAP})
	})
	first.Close() // as a kill does: its sockets are closed, nothing else is tidied
	second := l.kernel()
	l.converge(second, Desired{Subnets: d.Subnets[:1], Ports: []Port{pa1}})
	if got := strings.Join(l.devices(), " "); strings.Contains(got, "bbbbbbbbb") || strings.Contains(got, "zzz") || !strings.Contains(got, "octopus") || !strings.Contains(got, pa1.Tap()) {
		t.Errorf("left: %s", got)
	}
	l.converge(second, Desired{})
	if got := strings.Join(l.devices(), " "); got != "octopus" {
		t.Errorf("left at the end: %s", got)
	}
}
