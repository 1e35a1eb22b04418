package node

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/outcrop-cloud/outcrop/internal/network"
)

// wiring keeps the node's network as it is wanted. Its own goroutine converges; a
// step of a VM waits for it, and nothing else does.
type wiring struct {
	net  network.Network
	log  *slog.Logger
	poke chan struct{} // capacity 1: converge now

	mu    sync.Mutex
	want  *network.Desired // nil: nothing is known, so nothing is touched
	bad   map[string]error // interfaces that cannot be, by id
	asked int              // runs that were asked for
	done  int              // value of asked when the latest run began
	err   error            // of that run
	ran   chan struct{}    // closed and renewed by each run
}

func newWiring(n network.Network, log *slog.Logger) *wiring {
	return &wiring{net: n, log: log, poke: make(chan struct{}, 1), ran: make(chan struct{})}
}

// convergeInterval is how long what somebody else took away may be missing.
const convergeInterval = time.Minute

// run converges when asked to, again and again while it fails, and now and then.
func (w *wiring) run(ctx context.Context) {
	delay := backoff{first: time.Second, most: 30 * time.Second}
	for {
		next := convergeInterval
		if w.converge(ctx) == nil {
			delay.reset()
		} else {
			next = delay.next()
		}
		if wait(ctx, next, w.poke) == cut {
			return
		}
	}
}

// set is the newest wish.
func (w *wiring) set(d network.Desired, bad map[string]error) {
	w.mu.Lock()
	w.want, w.bad = &d, bad
	w.mu.Unlock()
	nudge(w.poke)
}

const convergeTimeout = time.Minute

func (w *wiring) converge(ctx context.Context) error {
	w.mu.Lock()
	want, asked, before := w.want, w.asked, w.err
	w.mu.Unlock()
	if want == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, convergeTimeout)
	defer cancel()
	err := w.net.Converge(ctx, *want)
	if err != nil && (before == nil || before.Error() != err.Error()) {
		w.log.Error("the node's network is not as it should be; it is tried again", "error", err)
	} else if err == nil && before != nil {
		w.log.Info("the node's network is as it should be again")
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.err, w.done = err, asked
	close(w.ran)
	w.ran = make(chan struct{})
	return err
}

// ready waits for a run that begins from here on, so that a tap which somebody
// took away is there again, and says what keeps the interfaces from being used.
func (w *wiring) ready(ctx context.Context, ids []string) error {
	w.mu.Lock()
	w.asked++
	mine := w.asked
	w.mu.Unlock()
	nudge(w.poke)
	for {
		w.mu.Lock()
		done, ran := w.done >= mine, w.ran
		err := w.failure(ids)
		w.mu.Unlock()
		if done {
			return err
		}
		select {
		case <-ran:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// failure is what is wrong with the interfaces; w.mu is held.
func (w *wiring) failure(ids []string) error {
	var errs []error
	for _, id := range ids {
		errs = append(errs, w.bad[id], network.PortFailure(w.err, id))
	}
	return errors.Join(errs...)
}

// trouble is what is wrong with the network as a whole; empty when nothing is.
func (w *wiring) trouble() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	err := w.err
	for _, e := range w.bad {
		err = errors.Join(err, e)
	}
	if err == nil {
		return ""
	}
	return err.Error()
}
