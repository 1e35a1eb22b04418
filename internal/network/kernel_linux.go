package network

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// Config is what a Kernel needs to know of its node.
type Config struct {
	// StateDir is where the routers' namespaces are mounted, one file per subnet. It belongs to this node alone and is
	// best on a file system that a boot empties.
	StateDir string

	// Transit is the range of the links between routers and host, two addresses per subnet. It is seen by nobody but
	// the host. The zero value is 169.254.192.0/18, room for 8,192 subnets.
	Transit netip.Prefix

	// TapUID and TapGID own the taps, so that a QEMU without privileges can open them. 0 is root.
	TapUID, TapGID uint32

	// Guests are kept from the private networks that the host itself is on or has a route to: its management network.
	// Allow makes exceptions; Deny adds to it.
	Allow, Deny []netip.Prefix

	// Resolvers are the name servers that guests' questions are sent on to, asked for at each question. nil reads
	// /etc/resolv.conf.
	Resolvers func() []netip.AddrPort

	// Metadata serves the metadata service of one subnet on a listener that is only reached by the guests of that
	// subnet; what the remote address says is true. It returns when the listener is closed. nil serves none.
	Metadata func(subnetID string, l net.Listener)

	// Log gets what cannot be returned; nil discards.
	Log *slog.Logger
}

var defaultTransit = netip.MustParsePrefix("169.254.192.0/18")

// Kernel is the Network of the namespace that New was called in. It needs root there.
type Kernel struct {
	config  Config
	log     *slog.Logger
	host    *namespace
	netlink *netlink.Handle

	mu      sync.Mutex
	running map[string]*services // by subnet id
	loaded  map[uint64]loaded    // by namespace
}

// New takes hold of the calling thread's network namespace. Nothing is changed before the first Converge.
func New(c Config) (*Kernel, error) {
	if c.StateDir == "" {
		return nil, errors.New("network: Config.StateDir is empty; give a folder like /run/outcrop/netns")
	}
	if !c.Transit.IsValid() {
		c.Transit = defaultTransit
	}
	if !c.Transit.Addr().Is4() || c.Transit.Bits() > 30 {
		return nil, fmt.Errorf("network: Config.Transit %s is no IPv4 range of at least a /30", c.Transit)
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	if c.Resolvers == nil {
		c.Resolvers = func() []netip.AddrPort { return readResolvers("/etc/resolv.conf") }
	}
	host, err := currentNamespace()
	if err != nil {
		return nil, err
	}
	h, err := netlink.NewHandleAt(netns.NsHandle(host.fd()), unix.NETLINK_ROUTE)
	if err != nil {
		host.Close()
		return nil, fmt.Errorf("network: open netlink: %w", err)
	}
	return &Kernel{config: c, log: c.Log, host: host, netlink: h, running: map[string]*services{}, loaded: map[uint64]loaded{}}, nil
}

// Close implements Network.
func (k *Kernel) Close() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	for id, s := range k.running {
		k.stop(id, s)
	}
	k.netlink.Close()
	return k.host.Close()
}

// Converge implements Network. The rules come first, so that no tap is ever without its guard.
func (k *Kernel) Converge(ctx context.Context, desired Desired) error {
	d, err := desired.normalise()
	if err != nil {
		return err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if err := k.guard(d); err != nil {
		return err
	}
	links, err := k.links()
	if err != nil {
		return err
	}
	var errs []error
	fail := func(port string, err error) {
		if err != nil {
			errs = append(errs, &failure{port, err})
		}
	}
	fail("", k.removeStale(links, d))
	subnets := make(map[string]Subnet, len(d.Subnets))
	broken := map[string]error{}
	for _, s := range d.Subnets {
		if err := ctx.Err(); err != nil {
			return errors.Join(append(errs, err)...)
		}
		subnets[s.ID] = s
		if err := k.subnet(links, s, d.Ports); err != nil {
			broken[s.ID] = fmt.Errorf("network: subnet %s: %w", s.ID, err)
			fail("", broken[s.ID])
		}
	}
	for _, p := range d.Ports {
		if err := ctx.Err(); err != nil {
			return errors.Join(append(errs, err)...)
		}
		// A tap is plugged in even where its subnet is broken: its neighbours may still be reached.
		if err := k.tap(links, p, subnets[p.SubnetID]); err != nil {
			fail(p.ID, fmt.Errorf("network: port %s: %w", p.ID, err))
		} else {
			fail(p.ID, broken[p.SubnetID])
		}
	}
	return errors.Join(errs...)
}

// links are the namespace's devices by name.
func (k *Kernel) links() (map[string]netlink.Link, error) {
	list, err := k.netlink.LinkList()
	if err != nil {
		return nil, fmt.Errorf("network: list devices: %w", err)
	}
	m := make(map[string]netlink.Link, len(list))
	for _, l := range list {
		m[l.Attrs().Name] = l
	}
	return m, nil
}

// guard finds out where guests may not go, writes the host's rules, and turns forwarding on where it is needed.
func (k *Kernel) guard(d Desired) error {
	routes, err := k.netlink.RouteList(nil, netlink.FAMILY_V4)
	if err != nil {
		return fmt.Errorf("network: list routes: %w", err)
	}
	deny := slices.Clone(k.config.Deny)
	for _, r := range routes {
		if r.Dst == nil {
			continue
		}
		ones, _ := r.Dst.Mask.Size()
		a, _ := netip.AddrFromSlice(r.Dst.IP.To4())
		if p := netip.PrefixFrom(a, ones); ones > 0 && isPrivate(a) {
			deny = append(deny, p)
		}
	}
	slices.SortFunc(deny, netip.Prefix.Compare)
	deny = slices.Compact(deny)
	err = k.loadRules(k.host, fmt.Sprint(d.Ports, deny), 2, func() error {
		if err := guardTaps(k.host, d.Ports); err != nil {
			return err
		}
		return guardHost(k.host, k.config.Transit, k.config.Allow, deny)
	})
	if err != nil {
		return err
	}
	if !slices.ContainsFunc(d.Subnets, func(s Subnet) bool { return s.Egress }) {
		return nil
	}
	return k.host.sysctls([2]string{"ipv4/ip_forward", "1"})
}

func isPrivate(a netip.Addr) bool {
	return a.IsPrivate() || netip.MustParsePrefix("100.64.0.0/10").Contains(a)
}

// removeStale takes away every device and router of ours that is not desired.
func (k *Kernel) removeStale(links map[string]netlink.Link, d Desired) error {
	wanted := map[string]bool{}
	for _, s := range d.Subnets {
		for _, prefix := range []string{bridgePrefix, routerPrefix} {
			wanted[deviceName(prefix, s.ID)] = true
		}
		wanted[deviceName(uplinkPrefix, s.ID)] = s.Egress
		wanted[filepath.Base(k.routerPath(s))] = true
	}
	for _, p := range d.Ports {
		wanted[p.Tap()] = true
	}
	for id, s := range k.running {
		if !wanted[deviceName(bridgePrefix, id)] {
			k.stop(id, s)
		}
	}
	var errs []error
	for name, l := range links {
		if isOurs(l) && !wanted[name] {
			errs = append(errs, k.remove(links, name))
		}
	}
	files, err := os.ReadDir(k.config.StateDir)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		errs = append(errs, err)
	}
	for _, f := range files {
		if !wanted[f.Name()] && deviceShape.MatchString(f.Name()) {
			errs = append(errs, removeNamespace(filepath.Join(k.config.StateDir, f.Name())))
		}
	}
	return errors.Join(errs...)
}

// alias marks our devices for people, and tells them from a stranger's with a like name.
const alias = "outcrop "

// isOurs: a crash may have come between the making of a device and its alias, so none is ours too.
func isOurs(l netlink.Link) bool {
	a := l.Attrs()
	if !deviceShape.MatchString(a.Name) || a.Alias != "" && !strings.HasPrefix(a.Alias, alias) {
		return false
	}
	switch a.Name[:len(tapPrefix)] {
	case tapPrefix:
		return l.Type() == "tuntap" || l.Type() == "tun"
	case bridgePrefix:
		return l.Type() == "bridge"
	}
	return l.Type() == "veth"
}

func (k *Kernel) remove(links map[string]netlink.Link, name string) error {
	l, ok := links[name]
	if !ok {
		return nil
	}
	delete(links, name)
	if err := k.netlink.LinkDel(l); err != nil && !isNoDevice(err) {
		return fmt.Errorf("network: remove %s: %w", name, err)
	}
	return nil
}

func isNoDevice(err error) bool {
	return errors.Is(err, unix.ENODEV) || errors.As(err, &netlink.LinkNotFoundError{})
}

func (k *Kernel) routerPath(s Subnet) string {
	return filepath.Join(k.config.StateDir, deviceName(bridgePrefix, s.ID))
}
