package network

import (
	"encoding/binary"
	"net"
	"net/netip"
	"strings"
	"sync/atomic"

	"github.com/insomniacslk/dhcp/dhcpv4"

	"github.com/outcrop-cloud/outcrop/internal/vpc"
)

// serveDHCP answers from the table until the socket is closed. There is no lease file: the address of a port is fixed,
// so what a guest may have does not depend on what any guest had (lesson 29).
func serveDHCP(conn net.PacketConn, current *atomic.Pointer[table]) {
	buf := make([]byte, 4096)
	for {
		n, from, err := conn.ReadFrom(buf)
		if err != nil {
			return
		}
		answer, to := dhcpAnswer(current.Load(), buf[:n])
		if answer == nil {
			continue
		}
		if from, ok := from.(*net.UDPAddr); ok && to.IsValid() {
			from.IP, from.Port = to.AsSlice(), dhcpClientPort
			_, _ = conn.WriteTo(answer, from) // a guest that got no answer asks again
		}
	}
}

var broadcast = netip.AddrFrom4([4]byte{255, 255, 255, 255})

// dhcpAnswer is the answer to one datagram and where it goes: RFC 2131 for a server whose every binding is fixed. nil for
// what is no question, and for any MAC that no port has.
func dhcpAnswer(t *table, datagram []byte) ([]byte, netip.Addr) {
	ask, err := dhcpv4.FromBytes(datagram)
	if err != nil || ask.OpCode != dhcpv4.OpcodeBootRequest || len(ask.ClientHWAddr) != 6 {
		return nil, netip.Addr{}
	}
	port, known := t.byMAC[vpc.MAC(ask.ClientHWAddr)]
	server := vpc.Gateway(t.CIDR)
	if id := addrOf(ask.ServerIdentifier()); !known || id.IsValid() && id != server {
		return nil, netip.Addr{}
	}
	client := addrOf(ask.ClientIPAddr)
	reply := func(kind dhcpv4.MessageType, mods ...dhcpv4.Modifier) ([]byte, netip.Addr) {
		mods = append([]dhcpv4.Modifier{
			dhcpv4.WithMessageType(kind),
			dhcpv4.WithOption(dhcpv4.OptServerIdentifier(server.AsSlice())),
		}, mods...)
		r, err := dhcpv4.NewReplyFromRequest(ask, mods...)
		if err != nil {
			return nil, netip.Addr{}
		}
		if kind != dhcpv4.MessageTypeNak && client == port.Address {
			return r.ToBytes(), client
		}
		r.SetBroadcast()
		return r.ToBytes(), broadcast
	}
	lease := func(m *dhcpv4.DHCPv4) {
		m.YourIPAddr = port.Address.AsSlice()
		m.UpdateOption(dhcpv4.OptIPAddressLeaseTime(vpc.LeaseTime))
	}
	switch ask.MessageType() {
	case dhcpv4.MessageTypeDiscover:
		return reply(dhcpv4.MessageTypeOffer, lease, t.options(port))
	case dhcpv4.MessageTypeRequest:
		wanted := addrOf(ask.RequestedIPAddress())
		if !wanted.IsValid() {
			wanted = client
		}
		if wanted != port.Address {
			return reply(dhcpv4.MessageTypeNak)
		}
		return reply(dhcpv4.MessageTypeAck, lease, t.options(port))
	case dhcpv4.MessageTypeInform:
		return reply(dhcpv4.MessageTypeAck, t.options(port))
	}
	return nil, netip.Addr{} // a release or a decline changes nothing: the port keeps its address
}

// options are what a guest is told of its subnet. There is no route to the metadata address by option 121: the router
// is enough, and cloud-init 22.4 fails on it.
func (t *table) options(p Port) dhcpv4.Modifier {
	return func(m *dhcpv4.DHCPv4) {
		m.UpdateOption(dhcpv4.OptSubnetMask(net.CIDRMask(t.CIDR.Bits(), 32)))
		m.UpdateOption(dhcpv4.OptRouter(vpc.Gateway(t.CIDR).AsSlice()))
		m.UpdateOption(dhcpv4.OptDNS(vpc.DNS(t.CIDR).AsSlice()))
		m.UpdateOption(dhcpv4.OptDomainName(t.Domain))
		m.UpdateOption(dhcpv4.OptGeneric(dhcpv4.OptionInterfaceMTU, binary.BigEndian.AppendUint16(nil, uint16(t.MTU))))
		if p.Hostname != "" {
			m.UpdateOption(dhcpv4.OptHostName(strings.ToLower(p.Hostname)))
		}
	}
}

// addrOf is the zero Addr for an address that is absent or 0.0.0.0.
func addrOf(ip net.IP) netip.Addr {
	a, ok := netip.AddrFromSlice(ip.To4())
	if !ok || a.IsUnspecified() {
		return netip.Addr{}
	}
	return a
}
