package node

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"sync"

	"github.com/outcrop-cloud/outcrop/internal/api"
	"github.com/outcrop-cloud/outcrop/internal/compute"
)

// streams remembers which two-way consoles are open: the server may name one again
// until it has the node's call.
type streams struct {
	mu   sync.Mutex
	open map[string]bool
}

func newStreams() *streams { return &streams{open: map[string]bool{}} }

func (s *streams) take(id string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.open[id] {
		return false
	}
	s.open[id] = true
	return true
}

func (s *streams) release(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.open, id)
}

// openStreams dials each console that somebody waits for.
func (a *agent) openStreams(ctx context.Context, list []api.ConsoleStream) {
	for _, s := range list {
		if !volumeForm.MatchString(s.ID) || !compute.ValidInstanceID(s.InstanceID) || !a.streams.take(s.ID) {
			continue
		}
		a.running.Go(func() {
			defer a.streams.release(s.ID)
			if err := a.stream(ctx, s); err != nil && ctx.Err() == nil {
				a.log.Warn("a console could not be connected", "instance", s.InstanceID, "error", err)
			}
		})
	}
}

// stream joins a VM's console with the connection to the server. Why a console
// cannot be had is said to the person at the other end.
func (a *agent) stream(ctx context.Context, s api.ConsoleStream) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	conn, err := a.up.Upgrade(ctx, http.MethodPost, a.path("streams", s.ID), api.ConsoleProtocol)
	if err != nil {
		return err
	}
	defer conn.Close()
	console, err := a.cfg.Hypervisor.Console(ctx, s.InstanceID)
	if err != nil {
		_, _ = fmt.Fprintf(conn, "\r\nno console: %v\r\n", err)
		return err
	}
	defer console.Close()
	join(ctx, conn, console)
	return nil
}

// join copies both ways until one of the two ends, or ctx, and closes both.
func join(ctx context.Context, a, b io.ReadWriteCloser) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var both sync.WaitGroup
	for _, way := range [][2]io.ReadWriteCloser{{a, b}, {b, a}} {
		both.Go(func() {
			defer cancel()
			_, _ = io.Copy(way[0], way[1])
		})
	}
	<-ctx.Done()
	a.Close()
	b.Close()
	both.Wait()
}
