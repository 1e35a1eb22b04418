package control

import (
	"context"
	"fmt"
	"sync"
	"time"
)

// readyWithin is how long the database may take to answer before the server
// counts as not ready.
const readyWithin = 5 * time.Second

// readiness is the question to the database that is open, if any. All who ask
// meanwhile wait for its answer, so a database that is gone costs one write.
type readiness struct {
	mu   sync.Mutex
	open *question
}

type question struct {
	done chan struct{}
	err  error
}

// Ready answers nil when the server can do its work; it answers in time even
// where the database does not.
func (c *Control) Ready(ctx context.Context) error {
	q := c.ask()
	late := time.NewTimer(readyWithin)
	defer late.Stop()
	select {
	case <-q.done:
		if q.err != nil {
			return fmt.Errorf("the database does not answer: %w", q.err)
		}
		return nil
	case <-late.C:
		return fmt.Errorf("the database did not answer within %s", readyWithin)
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (c *Control) ask() *question {
	c.ready.mu.Lock()
	defer c.ready.mu.Unlock()
	if c.ready.open != nil {
		return c.ready.open
	}
	q := &question{done: make(chan struct{})}
	c.ready.open = q
	go func() {
		q.err = c.db.Ping(context.Background())
		c.ready.mu.Lock()
		c.ready.open = nil
		c.ready.mu.Unlock()
		close(q.done)
	}()
	return q
}
