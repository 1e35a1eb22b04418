package network

import (
	"crypto/sha256"
	"fmt"
	"net"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// The names of the router's two devices, the same in each router.
const (
	guestLink  = "guest"
	uplinkLink = "uplink"
)

// bridge makes the subnet's bridge. It has no address, and the host does not take part in it.
func (k *Kernel) bridge(links map[string]netlink.Link, s Subnet) (netlink.Link, error) {
	name := deviceName(bridgePrefix, s.ID)
	if l, ok := links[name]; !ok || l.Type() != "bridge" {
		if err := k.remove(links, name); err != nil {
			return nil, err
		}
		snooping := false // there is no multicast querier: snooping would lose groups
		b := &netlink.Bridge{
			LinkAttrs:         netlink.LinkAttrs{Name: name, HardwareAddr: derivedMAC("bridge", s.ID)},
			MulticastSnooping: &snooping,
		}
		if err := k.netlink.LinkAdd(b); err != nil {
			return nil, fmt.Errorf("make bridge %s: %w", name, err)
		}
	}
	return k.settle(links, name, "subnet "+s.ID, s.MTU, nil)
}

// tap makes the port's tap and plugs it into the bridge. Whoever opens it later (QEMU) chooses offloads.
func (k *Kernel) tap(links map[string]netlink.Link, p Port, s Subnet) error {
	bridge, ok := links[deviceName(bridgePrefix, s.ID)]
	if !ok {
		return fmt.Errorf("its subnet %s has no bridge yet", s.ID)
	}
	name := p.Tap()
	l, ok := links[name]
	if t, isTap := l.(*netlink.Tuntap); ok && (!isTap || t.Mode != netlink.TUNTAP_MODE_TAP || !k.owns(t)) {
		if err := k.remove(links, name); err != nil {
			return err
		}
		ok = false
	}
	if !ok {
		t := &netlink.Tuntap{
			LinkAttrs: netlink.LinkAttrs{Name: name},
			Mode:      netlink.TUNTAP_MODE_TAP,
			Flags:     netlink.TUNTAP_NO_PI | netlink.TUNTAP_VNET_HDR,
			Owner:     k.config.TapUID,
			Group:     k.config.TapGID,
		}
		if err := k.host.do(func() error { return netlink.LinkAdd(t) }); err != nil {
			return fmt.Errorf("make tap %s: %w", name, err)
		}
	}
	_, err := k.settle(links, name, "port "+p.ID+" of "+p.InstanceID, s.MTU, bridge)
	return err
}

// owns tells whether the tap may be opened by whom the configuration says. The kernel reports no owner as -1.
func (k *Kernel) owns(t *netlink.Tuntap) bool {
	is := func(got, want uint32) bool { return got == want || want == 0 && int32(got) == -1 }
	return is(t.Owner, k.config.TapUID) && is(t.Group, k.config.TapGID)
}

// veth makes a pair with one end here and the other, peer, inside the router, both at once. A pair whose other end is
// not in the router (it was made anew) is replaced.
func (k *Kernel) veth(links map[string]netlink.Link, name, peer string, router *router, s Subnet, master netlink.Link) (netlink.Link, error) {
	l, ok := links[name]
	far, err := router.netlink.LinkByName(peer)
	if err != nil && !isNoDevice(err) {
		return nil, err
	}
	joined := ok && err == nil && l.Type() == "veth" && l.Attrs().ParentIndex == far.Attrs().Index
	if !joined {
		if err := k.remove(links, name); err != nil {
			return nil, err
		}
		if far != nil {
			if err := router.netlink.LinkDel(far); err != nil && !isNoDevice(err) {
				return nil, fmt.Errorf("remove %s of the router: %w", peer, err)
			}
		}
		v := &netlink.Veth{
			LinkAttrs:        netlink.LinkAttrs{Name: name, MTU: s.MTU},
			PeerName:         peer,
			PeerHardwareAddr: derivedMAC(peer, s.ID),
			PeerNamespace:    netlink.NsFd(router.fd()),
		}
		if err := k.netlink.LinkAdd(v); err != nil {
			return nil, fmt.Errorf("make %s: %w", name, err)
		}
	}
	return k.settle(links, name, "subnet "+s.ID, s.MTU, master)
}

// settle brings a device of ours to its settings: alias, no IPv6 of the host's, MTU, bridge, up. It reads before it
// writes, so that an unchanged device is not disturbed.
func (k *Kernel) settle(links map[string]netlink.Link, name, what string, mtu int, master netlink.Link) (netlink.Link, error) {
	l, err := k.netlink.LinkByName(name)
	if err != nil {
		return nil, fmt.Errorf("find %s: %w", name, err)
	}
	links[name] = l
	a := l.Attrs()
	steps := []struct {
		needed bool
		do     func() error
	}{
		{a.Alias != alias+what, func() error { return k.netlink.LinkSetAlias(l, alias+what) }},
		{a.Flags&net.FlagUp == 0, func() error {
			return k.host.sysctls([2]string{"ipv6/conf/" + name + "/disable_ipv6", "1"})
		}},
		{a.MTU != mtu, func() error { return k.netlink.LinkSetMTU(l, mtu) }},
		{master != nil && a.MasterIndex != master.Attrs().Index, func() error { return k.netlink.LinkSetMaster(l, master) }},
		{a.Flags&net.FlagUp == 0, func() error { return k.netlink.LinkSetUp(l) }},
	}
	for _, s := range steps {
		if !s.needed {
			continue
		}
		if err := s.do(); err != nil {
			return nil, fmt.Errorf("set up %s: %w", name, err)
		}
	}
	return l, nil
}

// derivedMAC gives our own devices an address that a router made anew has again, so that guests' ARP caches stay right.
func derivedMAC(what, id string) net.HardwareAddr {
	sum := sha256.Sum256([]byte("outcrop device\x00" + what + "\x00" + id))
	return append(net.HardwareAddr{0x02}, sum[:5]...)
}

// ensureAddress adds an address where it is missing.
func ensureAddress(h *netlink.Handle, l netlink.Link, a *netlink.Addr) error {
	have, err := h.AddrList(l, unix.AF_INET)
	if err != nil {
		return err
	}
	for _, b := range have {
		if b.IPNet.String() == a.IPNet.String() {
			return nil
		}
	}
	if err := h.AddrAdd(l, a); err != nil {
		return fmt.Errorf("give %s the address %s: %w", l.Attrs().Name, a.IPNet, err)
	}
	return nil
}
