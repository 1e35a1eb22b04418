package node

import (
	"context"
	"errors"
	"net"
	"sync"
	"time"
)

// weather is what a link does to those who speak over it.
type weather string

const (
	fair    weather = "fair"
	refused weather = "refused" // connections break and none can be made
	silent  weather = "silent"  // bytes wait, both ways, as on a cable that is out
	oneWay  weather = "one way" // the server gets and does what is asked, its answer is lost
)

// link is the way from one machine to the server. Its connections are pipes, which
// a bubble of synctest can wait for.
type link struct {
	server func() *switchboard // nil while nobody listens

	mu      sync.Mutex
	weather weather
	changed chan struct{} // closed and renewed by every change of the weather
	conns   map[*wire]bool
}

func newLink(server func() *switchboard) *link {
	return &link{server: server, weather: fair, changed: make(chan struct{}), conns: map[*wire]bool{}}
}

// turn changes the weather.
func (l *link) turn(w weather) {
	l.mu.Lock()
	l.weather = w
	close(l.changed)
	l.changed = make(chan struct{})
	l.mu.Unlock()
	if w == refused {
		l.cut()
	}
}

// cut breaks all connections.
func (l *link) cut() {
	l.mu.Lock()
	var all []*wire
	for c := range l.conns {
		all = append(all, c)
	}
	l.mu.Unlock()
	for _, c := range all {
		c.Close()
	}
}

func (l *link) now() (weather, chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.weather, l.changed
}

var errCut = errors.New("connection reset")

// dialPatience is that of the client's own dialler.
const dialPatience = 10 * time.Second

func (l *link) dial(ctx context.Context, _, _ string) (net.Conn, error) {
	late := time.NewTimer(dialPatience)
	defer late.Stop()
	for {
		w, changed := l.now()
		switch w {
		case refused:
			return nil, errCut
		case fair, oneWay:
			return l.connect(ctx)
		}
		select {
		case <-changed:
		case <-late.C:
			return nil, errors.New("no route to host")
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

func (l *link) connect(ctx context.Context) (net.Conn, error) {
	s := l.server()
	if s == nil {
		return nil, errors.New("connection refused")
	}
	near, far := net.Pipe()
	ours, theirs := &wire{Conn: near, l: l, closed: make(chan struct{})}, &wire{Conn: far, l: l, closed: make(chan struct{}), server: true}
	select {
	case s.calls <- theirs:
	case <-s.closed:
		return nil, errors.New("connection refused")
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.conns[ours], l.conns[theirs] = true, true
	return ours, nil
}

// wire is one end of a connection.
type wire struct {
	net.Conn
	l      *link
	server bool
	once   sync.Once
	closed chan struct{}
}

func (w *wire) Write(b []byte) (int, error) {
	for {
		now, changed := w.l.now()
		switch {
		case now == refused || now == oneWay && w.server:
			w.Close()
			return 0, errCut
		case now != silent:
			return w.Conn.Write(b)
		}
		select {
		case <-changed:
		case <-w.closed:
			return 0, net.ErrClosed
		}
	}
}

func (w *wire) Close() error {
	w.once.Do(func() { close(w.closed) })
	w.l.mu.Lock()
	delete(w.l.conns, w)
	w.l.mu.Unlock()
	return w.Conn.Close()
}

// switchboard is a net.Listener of pipes.
type switchboard struct {
	calls  chan net.Conn
	once   sync.Once
	closed chan struct{}
}

func newSwitchboard() *switchboard {
	return &switchboard{calls: make(chan net.Conn), closed: make(chan struct{})}
}

func (s *switchboard) Accept() (net.Conn, error) {
	select {
	case c := <-s.calls:
		return c, nil
	case <-s.closed:
		return nil, net.ErrClosed
	}
}

func (s *switchboard) Close() error {
	s.once.Do(func() { close(s.closed) })
	return nil
}

func (s *switchboard) Addr() net.Addr { return &net.UnixAddr{Name: "outcrop", Net: "pipe"} }
