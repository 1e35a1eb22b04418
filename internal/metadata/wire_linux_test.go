package metadata

import (
	"encoding/binary"
	"io"
	"net"
	"os"
	"runtime"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// inNamespace runs fn on a thread in a network namespace of its own, with loopback up.
func inNamespace(t *testing.T, fn func() error) {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("needs root: it makes a network namespace and reads raw packets")
	}
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // the thread ends with the goroutine
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			done <- err
			return
		}
		lo, err := netlink.LinkByName("lo")
		if err == nil {
			err = netlink.LinkSetUp(lo)
		}
		if err == nil {
			err = fn()
		}
		done <- err
	}()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}

// The hop limit is in the packets: the token's answer has it, and so has all that follows on its connection, also what
// TCP might send again.
// contract: U-18
// lesson 27
func TestHopLimitOnTheWire(t *testing.T) {
	for hops, want := range map[int]int{0: 1, 1: 1, 2: 2, 64: 64, 200: 64} {
		inNamespace(t, func() error {
			i := sample()
			i.Options.HopLimit = hops
			srv, err := New(Config{Provider: &instances{by: map[PortKey]*Instance{port1: i}}, TokenKey: tokenKey})
			if err != nil {
				return err
			}
			l, err := net.Listen("tcp4", "127.0.0.1:80")
			if err != nil {
				return err
			}
			defer l.Close()
			go srv.Serve("subnet-a", l)
			raw, err := unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM, int(htons(unix.ETH_P_IP)))
			if err != nil {
				return err
			}
			defer unix.Close(raw)
			tv := unix.NsecToTimeval(int64(2 * time.Second))
			if err := unix.SetsockoptTimeval(raw, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &tv); err != nil {
				return err
			}
			c, err := net.Dial("tcp4", "127.0.0.1:80")
			if err != nil {
				return err
			}
			defer c.Close()
			say := func(text string) (int, error) {
				if _, err := io.WriteString(c, text); err != nil {
					return 0, err
				}
				return answerTTL(raw)
			}
			before, err := say("GET / HTTP/1.1\r\nHost: x\r\n\r\n")
			if err != nil {
				return err
			}
			token, err := say("PUT /latest/api/token HTTP/1.1\r\nHost: x\r\nX-aws-ec2-metadata-token-ttl-seconds: 60\r\n\r\n")
			if err != nil {
				return err
			}
			after, err := say("GET / HTTP/1.1\r\nHost: x\r\n\r\n")
			if err != nil {
				return err
			}
			if before != 64 || token != want || after != want {
				t.Errorf("hop limit %d: TTL %d before, %d of the token, %d after; want 64, %d, %d", hops, before, token, after, want, want)
			}
			return nil
		})
	}
}

func htons(n uint16) uint16 { return binary.NativeEndian.Uint16(binary.BigEndian.AppendUint16(nil, n)) }

// answerTTL reads packets until one from port 80 carries data, and tells its TTL.
func answerTTL(raw int) (int, error) {
	buf := make([]byte, 1<<16)
	for {
		n, _, err := unix.Recvfrom(raw, buf, 0)
		if err != nil {
			return 0, err
		}
		p := buf[:n]
		head := int(p[0]&15) * 4
		tcp := p[head:]
		if p[9] != unix.IPPROTO_TCP || binary.BigEndian.Uint16(tcp) != 80 || len(tcp) <= int(tcp[12]>>4)*4 {
			continue
		}
		return int(p[8]), nil
	}
}
