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

// console is an open serial console; Close may be called more than once.
type console struct {
	net.Conn
	release func()
}

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
	return &console{Conn: raw, release: release}, nil
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
