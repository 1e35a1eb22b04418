package network

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/outcrop-cloud/outcrop/internal/vpc"
)

// router is the open namespace of a subnet.
type router struct {
	*namespace
	netlink *netlink.Handle
}

func (r *router) Close() error {
	r.netlink.Close()
	return r.namespace.Close()
}

// subnet makes bridge and router of a subnet what they should be, and sees to its services.
func (k *Kernel) subnet(links map[string]netlink.Link, s Subnet, ports []Port) error {
	bridge, err := k.bridge(links, s)
	if err != nil {
		return err
	}
	ns, err := ensureNamespace(k.routerPath(s))
	if err != nil {
		return err
	}
	h, err := netlink.NewHandleAt(netns.NsHandle(ns.fd()), unix.NETLINK_ROUTE)
	if err != nil {
		return errors.Join(err, ns.Close())
	}
	r := &router{ns, h}
	defer r.Close()
	if err := k.loadRules(ns, fmt.Sprint(s), 1, func() error { return guardRouter(ns, s) }); err != nil {
		return err
	}
	if err := r.prepare(); err != nil {
		return err
	}
	if _, err := k.veth(links, deviceName(routerPrefix, s.ID), guestLink, r, s, bridge); err != nil {
		return err
	}
	if err := r.guestSide(s); err != nil {
		return err
	}
	if s.Egress {
		if err := k.uplink(links, r, s); err != nil {
			return err
		}
	}
	return k.serve(r, s, ports)
}

// prepare sets what holds for the router as a whole, before it has any device.
func (r *router) prepare() error {
	lo, err := r.netlink.LinkByName("lo")
	if err != nil {
		return err
	}
	if err := r.netlink.LinkSetUp(lo); err != nil {
		return err
	}
	return r.sysctls(
		[2]string{"ipv6/conf/all/disable_ipv6", "1"},
		[2]string{"ipv6/conf/default/disable_ipv6", "1"},
		[2]string{"ipv4/ip_forward", "1"},
		[2]string{"ipv4/conf/all/send_redirects", "0"},
		[2]string{"ipv4/conf/default/send_redirects", "0"},
		[2]string{"ipv4/conf/default/rp_filter", "1"},
		[2]string{"ipv4/conf/default/arp_ignore", "1"},
		[2]string{"ipv4/conf/default/arp_announce", "2"},
	)
}

// guestSide gives the router its addresses on the subnet.
func (r *router) guestSide(s Subnet) error {
	l, err := r.netlink.LinkByName(guestLink)
	if err != nil {
		return err
	}
	if err := r.up(l, s.MTU); err != nil {
		return err
	}
	for _, p := range []netip.Prefix{
		netip.PrefixFrom(vpc.Gateway(s.CIDR), s.CIDR.Bits()),
		host(vpc.DNS(s.CIDR)),
		host(MetadataAddr),
	} {
		if err := ensureAddress(r.netlink, l, &netlink.Addr{IPNet: ipNet(p)}); err != nil {
			return err
		}
	}
	return nil
}

func (r *router) up(l netlink.Link, mtu int) error {
	if l.Attrs().MTU != mtu {
		if err := r.netlink.LinkSetMTU(l, mtu); err != nil {
			return err
		}
	}
	return r.netlink.LinkSetUp(l)
}

// uplink joins the router to the host by two addresses of the transit range.
func (k *Kernel) uplink(links map[string]netlink.Link, r *router, s Subnet) error {
	l, err := k.veth(links, deviceName(uplinkPrefix, s.ID), uplinkLink, r, s, nil)
	if err != nil {
		return err
	}
	pair, err := k.transitPair(l)
	if err != nil {
		return err
	}
	if err := ensureAddress(k.netlink, l, &netlink.Addr{IPNet: ipNet(pair), Scope: int(netlink.SCOPE_LINK)}); err != nil {
		return err
	}
	inner, err := r.netlink.LinkByName(uplinkLink)
	if err != nil {
		return err
	}
	if err := r.up(inner, s.MTU); err != nil {
		return err
	}
	far := netip.PrefixFrom(pair.Addr().Next(), pair.Bits())
	if err := ensureAddress(r.netlink, inner, &netlink.Addr{IPNet: ipNet(far)}); err != nil {
		return err
	}
	err = r.netlink.RouteReplace(&netlink.Route{LinkIndex: inner.Attrs().Index, Gw: pair.Addr().AsSlice()})
	if err != nil {
		return fmt.Errorf("route the way out: %w", err)
	}
	return nil
}

// transitPair is the /31 of a router's link, named by the host's address in it: the one that the link has, or the first
// that no other link of ours has. The links themselves are the record of what is taken.
func (k *Kernel) transitPair(l netlink.Link) (netip.Prefix, error) {
	addrs, err := k.netlink.AddrList(nil, unix.AF_INET)
	if err != nil {
		return netip.Prefix{}, err
	}
	taken := map[netip.Addr]bool{}
	for _, a := range addrs {
		ip, _ := netip.AddrFromSlice(a.IP.To4())
		if !k.config.Transit.Contains(ip) {
			continue
		}
		if ones, _ := a.Mask.Size(); a.LinkIndex == l.Attrs().Index && ones == 31 {
			return netip.PrefixFrom(ip, 31), nil
		}
		taken[netip.PrefixFrom(ip, 31).Masked().Addr()] = true
	}
	base := k.config.Transit.Masked().Addr().As4()
	for i := uint32(0); i < 1<<(32-k.config.Transit.Bits()); i += 2 {
		var b [4]byte
		binary.BigEndian.PutUint32(b[:], binary.BigEndian.Uint32(base[:])+i)
		if a := netip.AddrFrom4(b); !taken[a] {
			return netip.PrefixFrom(a, 31), nil
		}
	}
	return netip.Prefix{}, fmt.Errorf("the transit range %s is used up; give a larger Config.Transit", k.config.Transit)
}

func ipNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}
