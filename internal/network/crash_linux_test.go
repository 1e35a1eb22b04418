package network

import (
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/nftables"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// childEnv makes this test program converge once and end, as a node agent that is about to be killed.
const childEnv = "OUTCROP_NETWORK_TEST_CONVERGE"

// openEnv makes it open a tap, as a hypervisor without privileges.
const openEnv = "OUTCROP_NETWORK_TEST_OPEN"

func TestMain(m *testing.M) {
	if tap := os.Getenv(openEnv); tap != "" {
		if _, err := openTap(tap); err != nil {
			os.Stderr.WriteString(err.Error() + "\n")
			os.Exit(1)
		}
		os.Exit(0)
	}
	if text := os.Getenv(childEnv); text != "" {
		var job struct {
			State string
			Desired
		}
		err := json.Unmarshal([]byte(text), &job)
		if err == nil {
			var k *Kernel
			if k, err = New(Config{StateDir: job.State}); err == nil {
				err = k.Converge(context.Background(), job.Desired)
			}
		}
		if err != nil {
			os.Stderr.WriteString(err.Error() + "\n")
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// child starts a converging process in the host's namespace.
func (l *lab) child(d Desired) *exec.Cmd {
	text, err := json.Marshal(struct {
		State string
		Desired
	}{l.state, d})
	if err != nil {
		l.t.Fatal(err)
	}
	c := exec.Command(os.Args[0])
	c.Env = append(os.Environ(), childEnv+"="+string(text))
	c.Stderr = os.Stderr
	l.in(l.host, c.Start) // a process starts in the namespace of the thread that starts it
	return c
}

// Whenever the agent is killed, building up or tearing down, the next run arrives at the same network.
func TestKilledAtAnyStep(t *testing.T) {
	l := newLab(t)
	l.config.Metadata = greetAll
	d, pa1, _, pb1 := twoProjects()
	whole := time.Now()
	if err := l.child(d).Wait(); err != nil {
		t.Fatal(err)
	}
	took := time.Since(whole)
	const kills = 24
	killed := 0
	for n := range kills {
		target := d
		if n%2 == 0 {
			target = Desired{}
		}
		c := l.child(target)
		timer := time.AfterFunc(took*time.Duration(n+1)/kills, func() { _ = c.Process.Signal(unix.SIGKILL) })
		if err := c.Wait(); err != nil {
			killed++
		}
		timer.Stop()
	}
	t.Logf("%d of %d runs were killed; a whole one takes %v", killed, kills, took)
	if killed < kills/4 {
		t.Errorf("only %d runs were killed", killed)
	}
	l.converge(l.kernel(), d)
	if got := l.devices(); len(got) != 9 {
		t.Errorf("devices: %v", got)
	}
	for _, p := range []Port{pa1, pb1} {
		g := l.guest(p)
		g.boot()
		g.mustHear("169.254.169.254:80", p.SubnetID+" "+p.Address.String())
	}
}

// Whatever of ours is taken away behind the agent's back, the next run puts it back.
func TestHealing(t *testing.T) {
	l := newLab(t)
	l.config.Metadata = greetAll
	l.greet(l.outside, internet+":80", "internet")
	d, pa1, _, _ := twoProjects()
	d = Desired{Subnets: d.Subnets[:1], Ports: []Port{pa1}}
	s := d.Subnets[0]
	k := l.kernel()
	l.converge(k, d)
	g := l.guest(pa1)
	g.boot()
	router := filepath.Join(l.state, deviceName(bridgePrefix, s.ID))
	del := func(name string) func() error {
		return func() error {
			d, err := netlink.LinkByName(name)
			if err != nil {
				return err
			}
			return netlink.LinkDel(d)
		}
	}
	inRouter := func(fn func() error) func() error {
		return func() error {
			ns, err := openNamespace(router)
			if err != nil {
				return err
			}
			defer ns.Close()
			return ns.do(fn)
		}
	}
	flush := func() error {
		c, err := nftables.New()
		if err != nil {
			return err
		}
		c.FlushRuleset()
		return c.Flush()
	}
	for _, c := range []struct {
		what string
		harm func() error
	}{
		{"nothing", func() error { return nil }},
		{"the bridge", del(deviceName(bridgePrefix, s.ID))},
		{"the router's link", del(deviceName(routerPrefix, s.ID))},
		{"the uplink", del(deviceName(uplinkPrefix, s.ID))},
		{"the router's end of the link", inRouter(del(guestLink))},
		{"the host's rules", flush},
		{"the router's rules", inRouter(flush)},
		{"the router's mount", func() error { return unix.Unmount(router, unix.MNT_DETACH) }},
		{"the router's file", func() error { return removeNamespace(router) }},
		{"the tap's bridge", func() error {
			d, err := netlink.LinkByName(pa1.Tap())
			if err != nil {
				return err
			}
			return netlink.LinkSetNoMaster(d)
		}},
		{"the router's addresses", inRouter(func() error {
			d, err := netlink.LinkByName(guestLink)
			if err != nil {
				return err
			}
			addrs, err := netlink.AddrList(d, unix.AF_INET)
			for _, a := range addrs {
				if err := netlink.AddrDel(d, &a); err != nil && !strings.Contains(err.Error(), "cannot assign") {
					return err
				}
			}
			return err
		})},
		{"the router's route", inRouter(func() error {
			routes, err := netlink.RouteList(nil, unix.AF_INET)
			for _, r := range routes {
				if r.Gw != nil {
					return netlink.RouteDel(&r)
				}
			}
			return err
		})},
	} {
		t.Run(c.what, func(t *testing.T) {
			g.l.t = t
			defer func() { g.l.t = l.t }()
			l.in(l.host, c.harm)
			start := time.Now()
			l.converge(k, d)
			t.Logf("healed in %v", time.Since(start))
			l.plugged(pa1.Tap())
			g.mustHear("169.254.169.254:80", s.ID+" "+pa1.Address.String())
			g.mustHear(internet+":80", "internet "+hostOutside)
		})
	}
}

// A subnet that cannot be made keeps only its own ports from being used.
func TestOneBrokenSubnet(t *testing.T) {
	l := newLab(t)
	l.config.Metadata = greetAll
	d, pa1, pa2, pb1 := twoProjects()
	router := filepath.Join(l.state, deviceName(bridgePrefix, pa1.SubnetID))
	if err := os.MkdirAll(filepath.Join(router, "in the way"), 0o700); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(router) })
	err := l.kernel().Converge(context.Background(), d)
	if PortFailure(err, pa1.ID) == nil || PortFailure(err, pa2.ID) == nil {
		t.Errorf("the broken subnet's ports are well: %v", err)
	}
	if err := PortFailure(err, pb1.ID); err != nil {
		t.Errorf("the other's port: %v", err)
	}
	g := l.guest(pb1)
	g.boot()
	g.mustHear("169.254.169.254:80", pb1.SubnetID+" "+pb1.Address.String())
}
