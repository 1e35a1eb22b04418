package metadata

import (
	"context"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// Limits bound what one guest may take of the node, so that a flood by one does not slow another's requests. Zero fields
// have defaults.
type Limits struct {
	Connections int // open at once; one more is closed. Default 64
	Rate        int // requests per second; faster ones wait. Default 500
	Burst       int // requests at once before they wait. Default 500
}

// maxWait is how long a request may be held back before it is refused.
const maxWait = time.Second

func (l Limits) withDefaults() Limits {
	set := func(n *int, value int) {
		if *n <= 0 {
			*n = value
		}
	}
	set(&l.Connections, 64)
	set(&l.Rate, 500)
	set(&l.Burst, 500)
	return l
}

// caller is what is kept of one port between its requests.
type caller struct {
	key   PortKey
	tree  atomic.Pointer[tree]
	conns atomic.Int64

	mu   sync.Mutex
	next time.Time // when the next request would be due at the steady rate
}

// delay takes a request's place and says how long it must wait; false when that is too long.
func (c *caller) delay(l Limits, now time.Time) (time.Duration, bool) {
	step := time.Second / time.Duration(l.Rate)
	c.mu.Lock()
	defer c.mu.Unlock()
	next := c.next
	if next.Before(now) {
		next = now
	}
	wait := next.Sub(now) - time.Duration(l.Burst-1)*step
	if wait > maxWait {
		return 0, false
	}
	c.next = next.Add(step)
	return max(wait, 0), true
}

// idle tells whether nothing of the caller needs to be remembered.
func (c *caller) idle(now time.Time) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.conns.Load() == 0 && !c.next.After(now)
}

// pause waits; false when the caller has gone away meanwhile.
func pause(ctx context.Context, d time.Duration) bool {
	if d <= 0 {
		return true
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// admit finds or remembers the caller of a new connection. A new one is rare, and pays for forgetting the idle ones.
func (s *Server) admit(key PortKey) *caller {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.callers[key]
	if c == nil {
		for k, old := range s.callers {
			if old.idle(s.now()) {
				delete(s.callers, k)
			}
		}
		c = &caller{key: key}
		s.callers[key] = c
	}
	c.conns.Add(1)
	return c
}

// listener hands out connections that know their caller, and closes those that are too many.
type listener struct {
	net.Listener
	server *Server
	subnet string
}

func (l listener) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		tcp, ok := c.(*net.TCPConn)
		if !ok {
			c.Close()
			continue
		}
		from := tcp.RemoteAddr().(*net.TCPAddr).AddrPort().Addr().Unmap()
		caller := l.server.admit(PortKey{l.subnet, from})
		if caller.conns.Load() > int64(l.server.limits.Connections) {
			caller.conns.Add(-1)
			l.server.refused.Add(1)
			_ = tcp.SetLinger(0) // a reset: nothing of it stays behind
			c.Close()
			continue
		}
		return &conn{TCPConn: tcp, caller: caller}, nil
	}
}

// conn is a connection that gives its caller's place back once.
type conn struct {
	*net.TCPConn
	caller *caller
	closed atomic.Bool
}

func (c *conn) Close() error {
	if !c.closed.Swap(true) {
		c.caller.conns.Add(-1)
	}
	return c.TCPConn.Close()
}
