package libvirt

import (
	"context"
	"fmt"
	"net"
	"sync"
	"sync/atomic"

	golibvirt "github.com/digitalocean/go-libvirt"

	"github.com/outcrop-cloud/outcrop/internal/hypervisor"
)

// conn is one connection to libvirtd. go-libvirt knows no deadlines, so the
// socket under it is kept at hand: closing it ends every call on it.
type conn struct {
	*golibvirt.Libvirt
	socket *socket
}

// socket notes when its peer is gone, so that a pooled connection which died in
// the meantime is not used again.
type socket struct {
	net.Conn
	dead atomic.Bool
}

func (s *socket) Read(p []byte) (int, error) {
	n, err := s.Conn.Read(p)
	if err != nil {
		s.dead.Store(true)
	}
	return n, err
}

func (s *socket) Close() error {
	s.dead.Store(true)
	return s.Conn.Close()
}

// Dial hands go-libvirt the connected socket.
func (s *socket) Dial() (net.Conn, error) { return s, nil }

func (c *conn) close() { _ = c.socket.Close() }

// dial opens a connection; the handshake ends with ctx.
func dial(ctx context.Context, path string) (*conn, error) {
	var dialer net.Dialer
	raw, err := dialer.DialContext(ctx, "unix", path)
	if err != nil {
		return nil, err
	}
	s := &socket{Conn: raw}
	c := &conn{Libvirt: golibvirt.NewWithDialer(s), socket: s}
	stop := context.AfterFunc(ctx, c.close)
	err = c.ConnectToURI(golibvirt.QEMUSystem)
	if !stop() {
		err = ctx.Err() // says more than what a closed socket brought about
	}
	if err != nil {
		c.close()
		return nil, err
	}
	return c, nil
}

// maxIdle connections are kept for the next calls.
const maxIdle = 4

// pool lends connections, one call each: a call that hangs holds up no other.
type pool struct {
	path string

	mu     sync.Mutex
	idle   []*conn
	closed bool
}

func (p *pool) get(ctx context.Context) (*conn, error) {
	p.mu.Lock()
	for n := len(p.idle); n > 0; n = len(p.idle) {
		c := p.idle[n-1]
		p.idle = p.idle[:n-1]
		if !c.socket.dead.Load() {
			p.mu.Unlock()
			return c, nil
		}
		c.close()
	}
	closed := p.closed
	p.mu.Unlock()
	if closed {
		return nil, net.ErrClosed
	}
	return dial(ctx, p.path)
}

func (p *pool) put(c *conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed || c.socket.dead.Load() || len(p.idle) == maxIdle {
		c.close()
		return
	}
	p.idle = append(p.idle, c)
}

func (p *pool) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	for _, c := range p.idle {
		c.close()
	}
	p.idle = nil
}

// query runs fn on a connection that nobody else uses. When ctx ends first,
// the connection is closed, which ends fn, and the error is ErrUnavailable.
func query[T any](ctx context.Context, d *Driver, fn func(*conn) (T, error)) (T, error) {
	var zero T
	ctx, cancel := context.WithTimeout(ctx, hypervisor.CallTimeout)
	defer cancel()
	c, err := d.pool.get(ctx)
	if err != nil {
		return zero, fmt.Errorf("%w: libvirtd at %s: %w", hypervisor.ErrUnavailable, d.pool.path, err)
	}
	stop := context.AfterFunc(ctx, c.close)
	v, err := fn(c)
	if !stop() && err != nil {
		return zero, fmt.Errorf("%w: libvirtd did not answer in time: %w", hypervisor.ErrUnavailable, ctx.Err())
	}
	dead := c.socket.dead.Load()
	d.pool.put(c)
	if err != nil {
		return zero, classify(err, dead)
	}
	return v, nil
}

// exec is query for calls without a result.
func exec(ctx context.Context, d *Driver, fn func(*conn) error) error {
	_, err := query(ctx, d, func(c *conn) (struct{}, error) { return struct{}{}, fn(c) })
	return err
}
