package network

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"testing"

	"github.com/insomniacslk/dhcp/dhcpv4"
	"golang.org/x/sys/unix"

	"github.com/outcrop-cloud/outcrop/internal/vpc"
)

// frame is an Ethernet frame.
func frame(to, from vpc.MAC, etherType uint16, body []byte) []byte {
	return bytes.Join([][]byte{to[:], from[:], binary.BigEndian.AppendUint16(nil, etherType), body}, nil)
}

func arp(op uint16, senderMAC vpc.MAC, sender netip.Addr, target netip.Addr) []byte {
	b := []byte{0, 1, 8, 0, 6, 4, byte(op >> 8), byte(op)}
	b = append(b, senderMAC[:]...)
	b = append(b, sender.AsSlice()...)
	b = append(b, make([]byte, 6)...)
	return append(b, target.AsSlice()...)
}

// udp is an IPv4 packet with a UDP datagram; the UDP checksum is left out, which IPv4 allows.
func udp(from, to netip.AddrPort, data []byte) []byte {
	h := []byte{0x45, 0, 0, 0, 0, 0, 0, 0, 64, unix.IPPROTO_UDP, 0, 0}
	binary.BigEndian.PutUint16(h[2:], uint16(28+len(data)))
	h = append(h, from.Addr().AsSlice()...)
	h = append(h, to.Addr().AsSlice()...)
	var sum uint32
	for i := 0; i < len(h); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(h[i:]))
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	binary.BigEndian.PutUint16(h[10:], ^uint16(sum))
	h = binary.BigEndian.AppendUint16(h, from.Port())
	h = binary.BigEndian.AppendUint16(h, to.Port())
	h = binary.BigEndian.AppendUint16(h, uint16(8+len(data)))
	h = append(h, 0, 0)
	return append(h, data...)
}

var allStations = vpc.MAC{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}

// What a guest may not send does not arrive at its neighbour; what it may does. Each bad frame is followed by a good one,
// so that no waiting is needed: frames of one tap keep their order.
func TestSpoofedFramesAreDropped(t *testing.T) {
	l := newLab(t)
	d, pa1, pa2, _ := twoProjects()
	l.converge(l.kernel(), d)
	liar, witness := l.guest(pa1), l.guest(pa2)
	me, them := pa1.MAC, pa2.MAC
	stranger := mac("02:00:00:00:0f:0f")
	other := addr("172.31.0.99")
	const mark = "0utcr0p-test-mark"
	say := func(src netip.Addr, sport, dport uint16, dst netip.Addr) []byte {
		return udp(netip.AddrPortFrom(src, sport), netip.AddrPortFrom(dst, dport), []byte(mark))
	}
	tagged := append([]byte{0, 1, 8, 0}, say(pa1.Address, 9, 9, pa2.Address)...)
	routerAdvertisement := append([]byte{
		0x60, 0, 0, 0, 0, 16 + byte(len(mark)), 58, 255,
		0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1,
		0xff, 0x02, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1,
		134, 0, 0, 0, 64, 0, 7, 8, 0, 0, 0, 0, 0, 0, 0, 0}, mark...)
	offer, err := dhcpv4.New(dhcpv4.WithMessageType(dhcpv4.MessageTypeOffer), dhcpv4.WithOption(dhcpv4.OptHostName(mark)))
	if err != nil {
		t.Fatal(err)
	}
	arpTrailer := func(b []byte) []byte { return append(b, mark...) }

	bad := map[string][]byte{
		"source MAC":                frame(them, stranger, ipv4Type, say(pa1.Address, 9, 9, pa2.Address)),
		"neighbour's MAC":           frame(them, them, ipv4Type, say(pa1.Address, 9, 9, pa2.Address)),
		"source address":            frame(them, me, ipv4Type, say(other, 9, 9, pa2.Address)),
		"no source address":         frame(them, me, ipv4Type, say(netip.IPv4Unspecified(), 9, 9, pa2.Address)),
		"gateway's address":         frame(them, me, ipv4Type, say(vpc.Gateway(vpc.DefaultCIDR), 9, 9, pa2.Address)),
		"metadata address":          frame(them, me, ipv4Type, say(MetadataAddr, 80, 9, pa2.Address)),
		"ARP sender's address":      frame(allStations, me, arpType, arpTrailer(arp(2, me, vpc.Gateway(vpc.DefaultCIDR), pa2.Address))),
		"ARP sender's MAC":          frame(allStations, me, arpType, arpTrailer(arp(2, stranger, pa1.Address, pa2.Address))),
		"ARP of another kind":       frame(allStations, me, arpType, arpTrailer(append([]byte{0, 6}, arp(1, me, pa1.Address, pa2.Address)[2:]...))),
		"DHCP offer":                frame(allStations, me, ipv4Type, udp(netip.AddrPortFrom(pa1.Address, 67), netip.AddrPortFrom(broadcast, 68), offer.ToBytes())),
		"DHCP offer to one":         frame(them, me, ipv4Type, udp(netip.AddrPortFrom(pa1.Address, 67), netip.AddrPortFrom(pa2.Address, 68), offer.ToBytes())),
		"DHCP question":             frame(allStations, me, ipv4Type, say(netip.IPv4Unspecified(), 68, 67, broadcast)),
		"IPv6 router advertisement": frame(mac("32:33:00:00:00:01"), me, 0x86dd, routerAdvertisement),
		"IPv6 to one":               frame(them, me, 0x86dd, routerAdvertisement),
		"VLAN tag":                  frame(them, me, 0x8100, tagged),
		"unknown protocol":          frame(them, me, 0x88cc, []byte(mark)),
	}
	good := map[string][]byte{
		"IPv4":      frame(them, me, ipv4Type, say(pa1.Address, 9, 9, pa2.Address)),
		"broadcast": frame(allStations, me, ipv4Type, say(pa1.Address, 9, 9, broadcast)),
		"ARP":       frame(allStations, me, arpType, arpTrailer(arp(1, me, pa1.Address, pa2.Address))),
		"ARP probe": frame(allStations, me, arpType, arpTrailer(arp(1, me, netip.IPv4Unspecified(), pa1.Address))),
	}
	is := func(want []byte) func([]byte) bool { return func(f []byte) bool { return bytes.Equal(f, want) } }
	for name, f := range good {
		liar.inject(f)
		witness.waitFor(is(f), nil)
		t.Logf("%s passes", name)
	}
	sentinel := good["IPv4"]
	for name, f := range bad {
		t.Run(name, func(t *testing.T) {
			liar.inject(f)
			liar.inject(sentinel)
			witness.l.t = t
			witness.waitFor(is(sentinel), func(got []byte) bool {
				return !is(sentinel)(got) && bytes.Contains(got, []byte(mark))
			})
			witness.l.t = l.t
		})
	}
}

// A host's stack takes no packet from a bridge, even one that is addressed to the bridge's own MAC and the host's address.
func TestHostTakesNothingFromBridges(t *testing.T) {
	l := newLab(t)
	d, pa1, pa2, _ := twoProjects()
	l.converge(l.kernel(), d)
	liar, witness := l.guest(pa1), l.guest(pa2)
	var got packetCounter
	got.open(l, hostMgmt)
	bridge := vpc.MAC(derivedMAC("bridge", pa1.SubnetID))
	ask := udp(netip.AddrPortFrom(pa1.Address, 9), netip.AddrPortFrom(addr(hostMgmt), 9), []byte("to the host"))
	liar.inject(frame(bridge, pa1.MAC, ipv4Type, ask))
	liar.inject(frame(allStations, pa1.MAC, ipv4Type, ask))
	sentinel := frame(pa2.MAC, pa1.MAC, ipv4Type, udp(netip.AddrPortFrom(pa1.Address, 9), netip.AddrPortFrom(pa2.Address, 9), []byte("end")))
	liar.inject(sentinel)
	witness.waitFor(func(f []byte) bool { return bytes.Equal(f, sentinel) }, nil)
	if n := got.count(); n != 0 {
		t.Errorf("the host received %d packets", n)
	}
}

// packetCounter is a service of the host's.
type packetCounter struct{ fd int }

func (p *packetCounter) open(l *lab, at string) {
	l.in(l.host, func() (err error) {
		if p.fd, err = unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_NONBLOCK, 0); err != nil {
			return err
		}
		return unix.Bind(p.fd, &unix.SockaddrInet4{Port: 9, Addr: addr(at).As4()})
	})
	l.t.Cleanup(func() { unix.Close(p.fd) })
}

func (p *packetCounter) count() (n int) {
	buf := make([]byte, 2048)
	for {
		if _, _, err := unix.Recvfrom(p.fd, buf, 0); err != nil {
			return n
		}
		n++
	}
}
