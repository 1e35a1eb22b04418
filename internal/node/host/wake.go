package host

import (
	"bytes"
	"errors"
	"fmt"
	"net"

	"github.com/mdlayher/packet"
)

// A magic packet is six bytes of all ones and then the address of the card sixteen
// times, anywhere in a frame (AMD, Magic Packet Technology, 1995). It is sent in
// both usual ways: as UDP to the discard port and as a frame of its own type.
const (
	wakePort      = 9
	wakeEtherType = 0x0842
)

// magic is the packet for a card.
func magic(card net.HardwareAddr) []byte {
	return append(bytes.Repeat([]byte{0xff}, 6), bytes.Repeat(card, 16)...)
}

var everybody = net.HardwareAddr{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}

// Wake sends the packet, whether or not systemd runs; see Host.
func (*Systemd) Wake(card net.HardwareAddr) error {
	if len(card) != 6 {
		return fmt.Errorf("%q is no Ethernet address", card)
	}
	all, err := net.Interfaces()
	if err != nil {
		return err
	}
	var errs []error
	sent := false
	for i := range all {
		addrs, err := addressed(&all[i])
		if err != nil {
			errs = append(errs, err)
		}
		if len(addrs) == 0 {
			continue
		}
		for _, err := range append(wakeByUDP(card, addrs), wakeByFrame(card, &all[i])) {
			sent = sent || err == nil
			errs = append(errs, err)
		}
	}
	switch {
	case sent:
		return nil
	case errors.Join(errs...) != nil:
		return errors.Join(errs...)
	}
	return errors.New("this machine has no network card with an address that is up")
}

// addressed are the addresses of an Ethernet card that is up; of another, none.
func addressed(i *net.Interface) (out []*net.IPNet, err error) {
	if i.Flags&net.FlagUp == 0 || i.Flags&net.FlagBroadcast == 0 || len(i.HardwareAddr) != 6 {
		return nil, nil
	}
	addrs, err := i.Addrs()
	for _, a := range addrs {
		if n, ok := a.(*net.IPNet); ok && n.IP.IsGlobalUnicast() {
			out = append(out, n)
		}
	}
	return out, err
}

func wakeByUDP(card net.HardwareAddr, addrs []*net.IPNet) (errs []error) {
	for _, a := range addrs {
		ip := a.IP.To4()
		if ip == nil || len(a.Mask) != net.IPv4len {
			continue // IPv6 has no broadcast
		}
		to := make(net.IP, net.IPv4len)
		for i := range to {
			to[i] = ip[i] | ^a.Mask[i]
		}
		errs = append(errs, sendUDP(ip, to, magic(card)))
	}
	return errs
}

func sendUDP(from, to net.IP, b []byte) error {
	c, err := net.DialUDP("udp4", &net.UDPAddr{IP: from}, &net.UDPAddr{IP: to, Port: wakePort})
	if err != nil {
		return err
	}
	_, err = c.Write(b)
	return errors.Join(err, c.Close())
}

func wakeByFrame(card net.HardwareAddr, i *net.Interface) error {
	c, err := packet.Listen(i, packet.Raw, wakeEtherType, nil)
	if err != nil {
		return fmt.Errorf("%s: %w", i.Name, err)
	}
	frame := append(append(append([]byte{}, everybody...), i.HardwareAddr...), wakeEtherType>>8, wakeEtherType&0xff)
	_, err = c.WriteTo(append(frame, magic(card)...), &packet.Addr{HardwareAddr: everybody})
	return errors.Join(err, c.Close())
}
