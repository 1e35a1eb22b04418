package network

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"
	"github.com/insomniacslk/dhcp/dhcpv4/nclient4"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/outcrop-cloud/outcrop/internal/vpc"
)

// A lab is a node in a namespace of its own: eth0 leads to an outside, mgmt to a management network. Nothing of the
// machine's network is touched.
type lab struct {
	t             testing.TB
	state         string
	host, outside *namespace
	config        Config
}

const (
	hostOutside  = "198.51.100.2" // the host on the network outside
	internet     = "203.0.113.7"  // somewhere behind the host's default route
	hostMgmt     = "10.99.0.1"
	neighbour    = "10.99.0.2" // another machine on the management network
	beneath      = "169.254.169.254"
	deadline     = 5 * time.Second
	refusalLimit = 700 * time.Millisecond // how long a connection that must fail may take to do so
)

func needRoot(t testing.TB) {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("needs root: it makes network namespaces")
	}
	if err := unix.Access("/dev/net/tun", unix.R_OK|unix.W_OK); err != nil {
		t.Skipf("needs /dev/net/tun: %v", err)
	}
}

func newLab(t testing.TB) *lab {
	needRoot(t)
	dir := t.TempDir()
	l := &lab{t: t, state: filepath.Join(dir, "routers")}
	l.host, l.outside = l.namespace(filepath.Join(dir, "host")), l.namespace(filepath.Join(dir, "outside"))
	t.Cleanup(func() {
		files, _ := os.ReadDir(l.state)
		for _, f := range files {
			if err := removeNamespace(filepath.Join(l.state, f.Name())); err != nil {
				t.Error(err)
			}
		}
	})
	l.join("eth0", hostOutside+"/24", "eth0", "198.51.100.1/24")
	l.join("mgmt", hostMgmt+"/24", "mgmt", neighbour+"/24")
	l.in(l.host, func() error {
		_, all, _ := net.ParseCIDR("0.0.0.0/0")
		return netlink.RouteAdd(&netlink.Route{Dst: all, Gw: net.ParseIP("198.51.100.1")})
	})
	l.in(l.outside, func() error {
		lo, err := netlink.LinkByName("lo")
		if err != nil {
			return err
		}
		for _, a := range []string{internet, beneath} {
			addr, _ := netlink.ParseAddr(a + "/32")
			if err := netlink.AddrAdd(lo, addr); err != nil {
				return err
			}
		}
		return nil
	})
	l.config = Config{StateDir: l.state, Resolvers: func() []netip.AddrPort { return nil }}
	return l
}

// in runs fn in a namespace; netlink's package functions and sockets then act there.
func (l *lab) in(ns *namespace, fn func() error) {
	l.t.Helper()
	if err := ns.do(fn); err != nil {
		l.t.Fatal(err)
	}
}

func (l *lab) namespace(path string) *namespace {
	ns, err := ensureNamespace(path)
	if err != nil {
		l.t.Fatal(err)
	}
	l.t.Cleanup(func() { ns.Close(); _ = removeNamespace(path) })
	l.in(ns, func() error {
		lo, err := netlink.LinkByName("lo")
		if err != nil {
			return err
		}
		return netlink.LinkSetUp(lo)
	})
	return ns
}

func (l *lab) join(name, addr, peer, peerAddr string) {
	l.in(l.host, func() error {
		return netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: name}, PeerName: peer, PeerNamespace: netlink.NsFd(l.outside.fd())})
	})
	l.configure(l.host, name, addr)
	l.configure(l.outside, peer, peerAddr)
}

func (l *lab) configure(ns *namespace, device, addr string) {
	l.in(ns, func() error {
		d, err := netlink.LinkByName(device)
		if err != nil {
			return err
		}
		a, err := netlink.ParseAddr(addr)
		if err != nil {
			return err
		}
		return errors.Join(netlink.AddrAdd(d, a), netlink.LinkSetUp(d))
	})
}

// kernel is a node agent's start: what it finds is what an earlier one left.
func (l *lab) kernel() *Kernel {
	l.t.Helper()
	var k *Kernel
	l.in(l.host, func() (err error) { k, err = New(l.config); return err })
	l.t.Cleanup(func() { k.Close() })
	return k
}

func (l *lab) converge(k *Kernel, d Desired) {
	l.t.Helper()
	if err := k.Converge(context.Background(), d); err != nil {
		l.t.Fatal(err)
	}
}

// devices are the names of our devices in the host's namespace.
func (l *lab) devices() (names []string) {
	l.in(l.host, func() error {
		list, err := netlink.LinkList()
		for _, d := range list {
			if strings.HasPrefix(d.Attrs().Name, "oc") {
				names = append(names, d.Attrs().Name)
			}
		}
		return err
	})
	return names
}

// greet serves TCP on an address: each caller is told who it is taken for.
func (l *lab) greet(ns *namespace, addr, name string) {
	var ln net.Listener
	l.in(ns, func() (err error) { ln, err = net.Listen("tcp4", addr); return err })
	l.t.Cleanup(func() { ln.Close() })
	go greetAll(name, ln)
}

func greetAll(name string, ln net.Listener) {
	for {
		c, err := ln.Accept()
		if err != nil {
			return
		}
		from := c.RemoteAddr().(*net.TCPAddr).AddrPort().Addr()
		fmt.Fprintf(c, "%s %s", name, from)
		c.Close()
	}
}

// guest is a machine behind a tap, as a hypervisor would open it: every frame passes through this process.
type guest struct {
	l      *lab
	port   Port
	ns     *namespace
	tap    *os.File // the host's tap, what the hypervisor opens
	card   *os.File // the guest's own card
	frames chan []byte
}

func openTap(name string) (*os.File, error) {
	fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	req, err := unix.NewIfreq(name)
	if err != nil {
		return nil, err
	}
	req.SetUint16(unix.IFF_TAP | unix.IFF_NO_PI)
	if err := unix.IoctlIfreq(fd, unix.TUNSETIFF, req); err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("open tap %s: %w", name, err)
	}
	return os.NewFile(uintptr(fd), name), nil
}

func (l *lab) guest(p Port) *guest {
	l.t.Helper()
	g := &guest{l: l, port: p, frames: make(chan []byte, 1024)}
	g.ns = l.namespace(filepath.Join(filepath.Dir(l.state), "guest-"+p.ID))
	l.in(l.host, func() (err error) { g.tap, err = openTap(p.Tap()); return err })
	l.in(g.ns, func() (err error) {
		if g.card, err = openTap("eth0"); err != nil {
			return err
		}
		eth0, err := netlink.LinkByName("eth0")
		if err != nil {
			return err
		}
		return errors.Join(netlink.LinkSetHardwareAddr(eth0, p.MAC[:]), netlink.LinkSetUp(eth0))
	})
	var pumps sync.WaitGroup
	pumps.Go(func() { g.pump(g.card, g.tap, nil) })
	pumps.Go(func() { g.pump(g.tap, g.card, g.frames) })
	l.t.Cleanup(func() { g.tap.Close(); g.card.Close(); pumps.Wait() })
	l.plugged(p.Tap())
	return g
}

// plugged waits until the bridge forwards for the tap, which it does a moment after the tap is opened.
func (l *lab) plugged(tap string) {
	l.t.Helper()
	l.in(l.host, func() error {
		for start := time.Now(); time.Since(start) < deadline; {
			d, err := netlink.LinkByName(tap)
			if err != nil {
				return err
			}
			if d.Attrs().OperState == netlink.OperUp {
				return netlink.LinkSetUp(d) // takes the kernel's lock: the bridge has been told
			}
		}
		return fmt.Errorf("%s does not come up", tap)
	})
}

func (g *guest) pump(from, to *os.File, tee chan []byte) {
	buf := make([]byte, 1<<16)
	for {
		n, err := from.Read(buf)
		if err != nil {
			return
		}
		if tee != nil {
			select {
			case tee <- append([]byte(nil), buf[:n]...):
			default:
			}
		}
		_, _ = to.Write(buf[:n])
	}
}

// inject sends a raw frame as the guest's card would.
func (g *guest) inject(frame []byte) {
	g.l.t.Helper()
	if _, err := g.tap.Write(frame); err != nil {
		g.l.t.Fatal(err)
	}
}

// boot asks for an address and uses it, as a guest does.
func (g *guest) boot() *dhcpv4.DHCPv4 {
	g.l.t.Helper()
	var client *nclient4.Client
	g.l.in(g.ns, func() (err error) {
		client, err = nclient4.New("eth0", nclient4.WithTimeout(deadline))
		return err
	})
	defer client.Close()
	ctx, cancel := context.WithTimeout(context.Background(), deadline)
	defer cancel()
	lease, err := client.Request(ctx)
	if err != nil {
		g.l.t.Fatalf("%s: DHCP: %v", g.port.ID, err)
	}
	ack := lease.ACK
	g.use(netip.PrefixFrom(addrOf(ack.YourIPAddr), maskBits(ack)), addrOf(ack.Router()[0]))
	return ack
}

func maskBits(m *dhcpv4.DHCPv4) int { ones, _ := m.SubnetMask().Size(); return ones }

func (g *guest) use(addr netip.Prefix, router netip.Addr) {
	g.l.t.Helper()
	g.l.in(g.ns, func() error {
		eth0, err := netlink.LinkByName("eth0")
		if err != nil {
			return err
		}
		_, all, _ := net.ParseCIDR("0.0.0.0/0")
		return errors.Join(
			netlink.AddrReplace(eth0, &netlink.Addr{IPNet: ipNet(addr)}),
			netlink.RouteReplace(&netlink.Route{Dst: all, Gw: router.AsSlice(), LinkIndex: eth0.Attrs().Index}),
		)
	})
}

// ask connects from a namespace and reads what it is told.
func ask(from *namespace, to string, limit time.Duration) (answer string, err error) {
	err = from.do(func() error {
		c, err := net.DialTimeout("tcp4", to, limit)
		if err != nil {
			return err
		}
		defer c.Close()
		_ = c.SetDeadline(time.Now().Add(limit))
		b, err := io.ReadAll(c)
		answer = string(b)
		return err
	})
	return answer, err
}

func (g *guest) mustHear(to, want string) {
	g.l.t.Helper()
	if got, err := ask(g.ns, to, deadline); err != nil || got != want {
		g.l.t.Errorf("%s asks %s: %q, %v; want %q", g.port.ID, to, got, err, want)
	}
}

func (g *guest) mustNotReach(to string) {
	g.l.t.Helper()
	if got, err := ask(g.ns, to, refusalLimit); err == nil {
		g.l.t.Errorf("%s reaches %s, which says %q", g.port.ID, to, got)
	}
}

// waitFor reads what arrives at the guest until a frame fits, and tells whether any frame before it fitted unwanted.
func (g *guest) waitFor(wanted, unwanted func([]byte) bool) {
	g.l.t.Helper()
	timer := time.NewTimer(deadline)
	defer timer.Stop()
	for {
		select {
		case f := <-g.frames:
			if unwanted != nil && unwanted(f) {
				g.l.t.Errorf("%s got % x", g.port.ID, f)
			}
			if wanted(f) {
				return
			}
		case <-timer.C:
			g.l.t.Fatalf("%s: the frame did not come", g.port.ID)
		}
	}
}

func mac(s string) vpc.MAC {
	m, err := vpc.ParseMAC(s)
	if err != nil {
		panic(err)
	}
	return m
}

func addr(s string) netip.Addr { return netip.MustParseAddr(s) }

// twoProjects are two subnets with the same range; a1 and b1 have the same address.
func twoProjects() (d Desired, a1, a2, b1 Port) {
	a := Subnet{ID: "subnet-aaaaaaaaaa", CIDR: vpc.DefaultCIDR, MTU: 1400, Egress: true}
	b := Subnet{ID: "subnet-bbbbbbbbbb", CIDR: vpc.DefaultCIDR, MTU: 1400, Egress: true}
	a1 = Port{ID: "eni-aaaaaaaaa1", InstanceID: "i-aaaaaaaa1", SubnetID: a.ID, MAC: mac("02:00:00:00:0a:01"), Address: addr("172.31.0.3"), Hostname: "one"}
	a2 = Port{ID: "eni-aaaaaaaaa2", InstanceID: "i-aaaaaaaa2", SubnetID: a.ID, MAC: mac("02:00:00:00:0a:02"), Address: addr("172.31.0.4"), Hostname: "two"}
	b1 = Port{ID: "eni-bbbbbbbbb1", InstanceID: "i-bbbbbbbb1", SubnetID: b.ID, MAC: mac("02:00:00:00:0b:01"), Address: addr("172.31.0.3"), Hostname: "one"}
	return Desired{Subnets: []Subnet{a, b}, Ports: []Port{a1, a2, b1}}, a1, a2, b1
}
