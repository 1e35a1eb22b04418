package network

import (
	"fmt"
	"net/netip"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/outcrop-cloud/outcrop/internal/vpc"
)

const (
	arpType  = 0x0806
	ipv4Type = 0x0800

	dhcpServerPort = 67
	dhcpClientPort = 68
	dnsPort        = 53
	httpPort       = 80

	rawPriority    = nftables.ChainPriority(-300) // before connection tracking
	filterPriority = nftables.ChainPriority(-10)  // before the host's own filter
	natPriority    = nftables.ChainPriority(100)
	bridgePriority = nftables.ChainPriority(-300) // before br_netfilter
)

// guardTaps writes the bridge rules: a guest sends only from its own MAC and address, over IPv4 and ARP, and is no DHCP
// server. Anything else of it (IPv6 and so router advertisements, VLAN tags, other protocols) goes nowhere. A tap that
// the sets do not know can send nothing, so a tap is safe from the moment it exists. No state is kept: this family has
// no connection tracking on every kernel.
func guardTaps(ns *namespace, ports []Port) error {
	r, err := newRuleset(ns, nftables.TableFamilyBridge)
	if err != nil {
		return err
	}
	var macs, addrs [][]byte
	for _, p := range ports {
		macs = append(macs, key(p.Tap(), p.MAC[:]))
		addrs = append(addrs, key(p.Tap(), p.Address.AsSlice()))
	}
	mac, err := r.set("macs", nftables.MustConcatSetType(nftables.TypeIFName, nftables.TypeEtherAddr), macs)
	if err != nil {
		return err
	}
	addr, err := r.set("addresses", nftables.MustConcatSetType(nftables.TypeIFName, nftables.TypeIPAddr), addrs)
	if err != nil {
		return err
	}
	anywhere := netip.MustParseAddr("255.255.255.255")
	nobody := host(netip.IPv4Unspecified())

	arp := r.chain("guest-arp")
	ip := r.chain("guest-ip")
	guest := r.chain("guest")
	r.rule(guest, owned(mac, expr.PayloadBaseLLHeader, 6, 6, true), drop)
	r.rule(guest, etherType(arpType), goTo(arp.Name))
	r.rule(guest, etherType(ipv4Type), goTo(ip.Name))
	r.rule(guest, drop)

	// Ethernet and IPv4, the sender's MAC and address its own; the address may be 0.0.0.0, as in a probe (RFC 5227).
	ethernetIPv4 := payload(expr.PayloadBaseNetworkHeader, 0, 0, 1, 8, 0, 6, 4)
	r.rule(arp, owned(mac, expr.PayloadBaseNetworkHeader, 8, 6, true), drop)
	r.rule(arp, ethernetIPv4, owned(addr, expr.PayloadBaseNetworkHeader, 14, 4, false), accept)
	r.rule(arp, ethernetIPv4, payload(expr.PayloadBaseNetworkHeader, 14, 0, 0, 0, 0), accept)
	r.rule(arp, drop)

	r.rule(ip, source(nobody), destination(host(anywhere)),
		sourcePort(unix.IPPROTO_UDP, dhcpClientPort), port(unix.IPPROTO_UDP, dhcpServerPort), accept)
	r.rule(ip, sourcePort(unix.IPPROTO_UDP, dhcpServerPort), drop)
	r.rule(ip, owned(addr, expr.PayloadBaseNetworkHeader, 12, 4, false), accept)
	r.rule(ip, drop)

	pre := r.hook("prerouting", nftables.ChainTypeFilter, nftables.ChainHookPrerouting, bridgePriority, nftables.ChainPolicyAccept)
	r.rule(pre, in(tapPrefix+"*"), goTo(guest.Name))

	// The host itself is no station on our bridges: nothing goes up to it, whatever MAC it is addressed to.
	input := r.hook("input", nftables.ChainTypeFilter, nftables.ChainHookInput, bridgePriority, nftables.ChainPolicyAccept)
	r.rule(input, in(tapPrefix+"*"), drop)
	r.rule(input, in(routerPrefix+"*"), drop)

	// A guest's DHCP questions are for the router alone.
	forward := r.hook("forward", nftables.ChainTypeFilter, nftables.ChainHookForward, bridgePriority, nftables.ChainPolicyAccept)
	r.rule(forward, out(tapPrefix+"*"), etherType(ipv4Type), port(unix.IPPROTO_UDP, dhcpServerPort), drop)
	return wrapRules("bridge", r.commit())
}

// neverOutside are destinations that no guest's packet may leave for: this host, the link and with it a metadata service
// beneath us, multicast, reserved.
var neverOutside = []netip.Prefix{
	netip.MustParsePrefix("0.0.0.0/8"),
	netip.MustParsePrefix("127.0.0.0/8"),
	netip.MustParsePrefix("169.254.0.0/16"),
	netip.MustParsePrefix("224.0.0.0/3"),
}

// guardHost writes the host's rules: what comes out of a router never ends at the host, leaves only to where guests may
// go, and wears the host's address; what goes in is a reply.
func guardHost(ns *namespace, transit netip.Prefix, allow, deny []netip.Prefix) error {
	r, err := newRuleset(ns, nftables.TableFamilyINet)
	if err != nil {
		return err
	}
	// With br_netfilter the host's IP hooks see what only crosses a bridge. Tracking it would mix up tenants.
	raw := r.hook("raw", nftables.ChainTypeFilter, nftables.ChainHookPrerouting, rawPriority, nftables.ChainPolicyAccept)
	r.rule(raw, in(bridgePrefix+"*"), notrack)

	input := r.hook("input", nftables.ChainTypeFilter, nftables.ChainHookInput, filterPriority, nftables.ChainPolicyAccept)
	r.rule(input, in(uplinkPrefix+"*"), drop)
	r.rule(input, in(bridgePrefix+"*"), drop)

	forward := r.hook("forward", nftables.ChainTypeFilter, nftables.ChainHookForward, filterPriority, nftables.ChainPolicyAccept)
	r.rule(forward, out(uplinkPrefix+"*"), replies(), accept)
	r.rule(forward, out(uplinkPrefix+"*"), drop)
	from := in(uplinkPrefix + "*")
	r.rule(forward, from, out(bridgePrefix+"*"), drop)
	for _, p := range neverOutside {
		r.rule(forward, from, ipv4(), destination(p), drop)
	}
	for _, p := range allow {
		r.rule(forward, from, ipv4(), destination(p), accept)
	}
	for _, p := range deny {
		r.rule(forward, from, ipv4(), destination(p), reject(icmpAdminProhibited))
	}

	post := r.hook("postrouting", nftables.ChainTypeNAT, nftables.ChainHookPostrouting, natPriority, nftables.ChainPolicyAccept)
	r.rule(post, ipv4(), source(transit), notOut("oc*"), masquerade)
	return wrapRules("host", r.commit())
}

// guardRouter writes a router's rules: guests reach DHCP, DNS, the metadata port and the way out, and nothing from
// outside reaches them but replies.
func guardRouter(ns *namespace, s Subnet) error {
	r, err := newRuleset(ns, nftables.TableFamilyINet)
	if err != nil {
		return err
	}
	// The services need no connection tracking, so a flood on them fills no table.
	raw := r.hook("raw", nftables.ChainTypeFilter, nftables.ChainHookPrerouting, rawPriority, nftables.ChainPolicyAccept)
	for _, local := range toLocal() {
		r.rule(raw, in(guestLink), local, notrack)
	}
	output := r.hook("raw-output", nftables.ChainTypeFilter, nftables.ChainHookOutput, rawPriority, nftables.ChainPolicyAccept)
	r.rule(output, out(guestLink), notrack)

	input := r.hook("input", nftables.ChainTypeFilter, nftables.ChainHookInput, filterPriority, nftables.ChainPolicyDrop)
	r.rule(input, in(guestLink), port(unix.IPPROTO_UDP, dhcpServerPort), accept)
	from := append(in(guestLink), append(ipv4(), source(s.CIDR)...)...)
	dns, metadata := destination(host(vpc.DNS(s.CIDR))), destination(host(MetadataAddr))
	r.rule(input, from, dns, port(unix.IPPROTO_UDP, dnsPort), accept)
	r.rule(input, from, dns, port(unix.IPPROTO_TCP, dnsPort), accept)
	r.rule(input, from, metadata, port(unix.IPPROTO_TCP, httpPort), accept)
	r.rule(input, from, protocol(unix.IPPROTO_ICMP), accept)
	r.rule(input, from, reject(icmpPortUnreachable))

	forward := r.hook("forward", nftables.ChainTypeFilter, nftables.ChainHookForward, filterPriority, nftables.ChainPolicyDrop)
	r.rule(forward, in(uplinkLink), out(guestLink), replies(), accept)
	for _, p := range neverOutside {
		r.rule(forward, ipv4(), destination(p), drop)
	}
	if s.Egress {
		r.rule(forward, in(guestLink), out(uplinkLink), clampMSS())
		r.rule(forward, from, out(uplinkLink), accept)
	}
	r.rule(forward, from, reject(icmpAdminProhibited))

	post := r.hook("postrouting", nftables.ChainTypeNAT, nftables.ChainHookPostrouting, natPriority, nftables.ChainPolicyAccept)
	r.rule(post, out(uplinkLink), masquerade)
	return wrapRules("router", r.commit())
}

func wrapRules(which string, err error) error {
	if err != nil {
		return fmt.Errorf("network: load the %s rules: %w", which, err)
	}
	return nil
}
