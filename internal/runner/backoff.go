package runner

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"
)

// backoff doubles from first to most, with jitter: a delay is between half of
// the step and the whole of it, so that many hosts do not come in step (lesson 2).
type backoff struct {
	first, most time.Duration
	step        time.Duration
}

// next is how long to wait after err. What the server asked for is a floor, with
// a tenth on top, so that those whom it sent away do not come back together.
func (b *backoff) next(err error) time.Duration {
	b.step = min(max(2*b.step, b.first), b.most)
	d := b.step/2 + rand.N(b.step/2+1)
	var r *refusal
	if errors.As(err, &r) && r.RetryAfter > 0 {
		d = max(d, r.RetryAfter+rand.N(r.RetryAfter/10+1))
	}
	return d
}

func (b *backoff) reset() { b.step = 0 }

// jitter spreads d by a tenth to both sides.
func jitter(d time.Duration) time.Duration { return d - d/10 + rand.N(d/5+1) }

// pause waits for d, less when early gets a message. It reports whether ctx still
// lives.
func pause(ctx context.Context, d time.Duration, early <-chan struct{}) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-early:
	case <-t.C:
	}
	return ctx.Err() == nil
}

// nudge is a channel that holds one message at most.
type nudge chan struct{}

func newNudge() nudge { return make(nudge, 1) }

func (n nudge) send() {
	select {
	case n <- struct{}{}:
	default:
	}
}
