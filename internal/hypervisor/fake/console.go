package fake

import (
	"io"
	"net"
	"os"
	"sync"
)

// console is an open serial console: a pipe to a guest that echoes.
type console struct {
	net.Conn
	closed func()
}

// Close ends the console; it may be called more than once.
func (c *console) Close() error {
	c.closed()
	return c.Conn.Close()
}

func (c *console) hangUp() { _ = c.Conn.Close() }

// openConsole connects a caller with the guest of v. Under the lock.
func (h *Hypervisor) openConsole(v *vm) io.ReadWriteCloser {
	near, far := net.Pipe()
	id, spec := v.Live.ID, v.Live
	c := &console{Conn: near}
	c.closed = sync.OnceFunc(func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		if h.consoles[id] == c {
			delete(h.consoles, id)
		}
	})
	h.consoles[id] = c
	go func() {
		defer far.Close()
		_, _ = io.Copy(io.MultiWriter(far, logWriter(spec.ConsoleLog)), far)
	}()
	return c
}

// say lets the guest print to its console log. Under the lock.
func (h *Hypervisor) say(v *vm, text string) {
	_, _ = logWriter(v.Live.ConsoleLog).Write([]byte(text))
}

// logWriter appends to a file. A log that cannot be written loses its text: a
// guest does not stop for that either.
type logWriter string

func (path logWriter) Write(p []byte) (int, error) {
	f, err := os.OpenFile(string(path), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err == nil {
		_, _ = f.Write(p)
		_ = f.Close()
	}
	return len(p), nil
}
