package libvirt

import (
	"bytes"
	"errors"
	"io"
	"net"
	"testing"
)

// TestSlowConsole: a reader who is behind loses the oldest output and does not
// hold up the guest.
func TestSlowConsole(t *testing.T) {
	near, guest := net.Pipe()
	released := 0
	c := newConsole(near, func() { released++ })
	const lines = 3 * backlog / 64
	line := bytes.Repeat([]byte("x"), 64)
	for range lines {
		if _, err := guest.Write(line); err != nil { // waits for a reader
			t.Fatal(err)
		}
	}
	if _, err := guest.Write([]byte("end")); err != nil {
		t.Fatal(err)
	}
	if err := guest.Close(); err != nil {
		t.Fatal(err)
	}
	c.mu.Lock()
	for c.end == nil { // only now all has been read ahead
		c.more.Wait()
	}
	c.mu.Unlock()
	got, err := io.ReadAll(c)
	if err != nil {
		t.Fatal(err)
	}
	if len(got) != backlog || !bytes.HasSuffix(got, []byte("xend")) {
		t.Errorf("kept %d bytes, the last %q", len(got), got[max(0, len(got)-4):])
	}
	if err := c.Close(); err != nil {
		t.Error(err)
	}
	if released != 1 {
		t.Error("not released")
	}
}

// TestClosedConsole: closing ends a read that waits.
func TestClosedConsole(t *testing.T) {
	near, guest := net.Pipe()
	defer guest.Close()
	c := newConsole(near, func() {})
	ended := make(chan error, 1)
	go func() {
		_, err := c.Read(make([]byte, 1))
		ended <- err
	}()
	_ = c.Close()
	if err := <-ended; !errors.Is(err, io.ErrClosedPipe) {
		t.Errorf("read ended with %v", err)
	}
}
