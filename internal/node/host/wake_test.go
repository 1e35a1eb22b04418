package host

import (
	"bytes"
	"encoding/hex"
	"net"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/mdlayher/packet"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

var card = net.HardwareAddr{0x3c, 0xfd, 0xfe, 0x00, 0x00, 0x0a}

// contract: N-18
func TestMagic(t *testing.T) {
	got := magic(card)
	if want := "ffffffffffff" + strings.Repeat("3cfdfe00000a", 16); hex.EncodeToString(got) != want || len(got) != 102 {
		t.Errorf("%x", got)
	}
	if err := new(Systemd).Wake(card[:5]); err == nil {
		t.Error("half an address is sent to")
	}
}

// A packet really sent, in a network of its own: two ends of a cable, one of them
// with an address.
// contract: N-18
func TestWakeSends(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root: it makes a network namespace")
	}
	failed := make(chan string, 1)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine, and the namespace with it
		failed <- wakeSends()
	}()
	if why := <-failed; why != "" {
		t.Error(why)
	}
}

func wakeSends() string {
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		return err.Error()
	}
	if err := new(Systemd).Wake(card); err == nil || !strings.Contains(err.Error(), "no network card") {
		return "without a card: " + errText(err)
	}
	far, err := cable()
	if err != nil {
		return err.Error()
	}
	const ipv4 = 0x0800
	frames, err := packet.Listen(far, packet.Raw, wakeEtherType, nil)
	if err != nil {
		return err.Error()
	}
	defer frames.Close()
	datagrams, err := packet.Listen(far, packet.Raw, ipv4, nil)
	if err != nil {
		return err.Error()
	}
	defer datagrams.Close()
	if err := new(Systemd).Wake(card); err != nil {
		return err.Error()
	}
	frame, err := next(frames)
	if err != nil || !bytes.Equal(frame[:6], everybody) || !bytes.Equal(frame[12:14], []byte{0x08, 0x42}) || !bytes.Equal(frame[14:], magic(card)) {
		return "the frame: " + hex.EncodeToString(frame) + errText(err)
	}
	// Ethernet, IPv4 without options, UDP.
	d, err := next(datagrams)
	if err != nil || len(d) != 14+20+8+102 || !bytes.Equal(d[:6], everybody) || !bytes.Equal(d[30:34], []byte{192, 0, 2, 255}) ||
		!bytes.Equal(d[36:38], []byte{0, 9}) || !bytes.Equal(d[42:], magic(card)) {
		return "the datagram: " + hex.EncodeToString(d) + errText(err)
	}
	return ""
}

func errText(err error) string {
	if err == nil {
		return ""
	}
	return " " + err.Error()
}

func next(c *packet.Conn) ([]byte, error) {
	b := make([]byte, 1500)
	if err := c.SetReadDeadline(time.Now().Add(5 * time.Second)); err != nil {
		return nil, err
	}
	n, _, err := c.ReadFrom(b)
	return b[:n], err
}

// cable makes two ends, both up, and an address on one; it returns the other.
func cable() (*net.Interface, error) {
	near := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "near"}, PeerName: "far"}
	if err := netlink.LinkAdd(near); err != nil {
		return nil, err
	}
	addr, err := netlink.ParseAddr("192.0.2.1/24")
	if err != nil {
		return nil, err
	}
	for _, name := range []string{"near", "far"} {
		link, err := netlink.LinkByName(name)
		if err != nil {
			return nil, err
		}
		if err := netlink.LinkSetUp(link); err != nil {
			return nil, err
		}
		if name == "near" {
			if err := netlink.AddrAdd(link, addr); err != nil {
				return nil, err
			}
		}
	}
	// The kernel drops what is sent before it has seen that the cable is plugged in.
	for end := time.Now().Add(5 * time.Second); ; <-time.After(5 * time.Millisecond) {
		link, err := netlink.LinkByName("near")
		if err != nil {
			return nil, err
		}
		if link.Attrs().OperState == netlink.OperUp || time.Now().After(end) {
			return net.InterfaceByName("far")
		}
	}
}
