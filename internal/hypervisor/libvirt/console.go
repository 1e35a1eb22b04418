package libvirt

import (
	"context"
	"fmt"
	"io"
	"net"
	"sync"

	"github.com/outcrop-cloud/outcrop/internal/hypervisor"
)

// consoles remembers which are open: QEMU accepts one peer at a time and would
// let a second one wait without a word.
type consoles struct {
	mu   sync.Mutex
	open map[string]bool
}

// take returns false when the console of id is open already.
func (c *consoles) take(id string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.open[id] {
		return false
	}
	if c.open == nil {
		c.open = make(map[string]bool)
	}
	c.open[id] = true
	return true
}

func (c *consoles) release(id string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.open, id)
}

// backlog is how much a console keeps for a reader who is behind.
const backlog = 64 << 10

// console is an open serial console. It reads ahead and drops the oldest output
// of a reader who is behind: QEMU would else stop taking output from the guest,
// and the guest would stop with it.
type console struct {
	net.Conn
	release func()

	mu   sync.Mutex
	more *sync.Cond
	kept []byte
	end  error // of the connection; Read gives what is kept first
}

func newConsole(raw net.Conn, release func()) *console {
	c := &console{Conn: raw, release: release}
	c.more = sync.NewCond(&c.mu)
	go c.readAhead()
	return c
}

func (c *console) readAhead() {
	buf := make([]byte, 4096)
	for {
		n, err := c.Conn.Read(buf)
		c.mu.Lock()
		c.kept = append(c.kept, buf[:n]...)
		c.kept = c.kept[max(0, len(c.kept)-backlog):]
		c.end = err
		c.more.Broadcast()
		c.mu.Unlock()
		if err != nil {
			return
		}
	}
}

func (c *console) Read(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for len(c.kept) == 0 && c.end == nil {
		c.more.Wait()
	}
	if len(c.kept) == 0 {
		return 0, c.end
	}
	n := copy(p, c.kept)
	c.kept = c.kept[n:]
	return n, nil
}

// Close ends the console; it may be called more than once.
func (c *console) Close() error {
	defer c.release()
	return c.Conn.Close()
}

// Console opens the serial console; see hypervisor.Hypervisor.
func (d *Driver) Console(ctx context.Context, id string) (io.ReadWriteCloser, error) {
	path, err := query(ctx, d, func(c *conn) (string, error) { return consolePath(c, id) })
	if err != nil {
		return nil, fmt.Errorf("libvirt: console of VM %s: %w", id, err)
	}
	if !d.consoles.take(id) {
		return nil, fmt.Errorf("libvirt: console of VM %s: %w: somebody has it open; close it there first", id, hypervisor.ErrRefused)
	}
	release := sync.OnceFunc(func() { d.consoles.release(id) })
	var dialer net.Dialer
	raw, err := dialer.DialContext(ctx, "unix", path)
	if err != nil {
		release()
		return nil, fmt.Errorf("libvirt: console of VM %s: %w: %w", id, hypervisor.ErrUnavailable, err)
	}
	return newConsole(raw, release), nil
}

// consolePath reads the socket from the running domain: a definition that was
// replaced meanwhile may name another.
func consolePath(c *conn, id string) (string, error) {
	dom, vm, err := find(c, id)
	if err != nil {
		return "", err
	}
	if !alive(vm) {
		return "", fmt.Errorf("%w: it is not running; start it", hypervisor.ErrRefused)
	}
	x, err := currentXML(c, dom)
	if err != nil {
		return "", err
	}
	for _, s := range x.Devices.Serials {
		if s.Source != nil && s.Source.UNIX != nil {
			return s.Source.UNIX.Path, nil
		}
	}
	return "", fmt.Errorf("%w: it has no console socket", hypervisor.ErrRefused)
}
