package node

import (
	"context"
	"time"
)

// gate bounds how many VMs boot at once: emulated guests that all boot together
// come up later than one after another, and miss their own time limits.
type gate struct{ slots chan struct{} }

func newGate(n int) *gate { return &gate{make(chan struct{}, n)} }

// enter waits for a slot; waiting is called first where there is none. leave
// gives it back when the guest has had some time to come up.
func (g *gate) enter(ctx context.Context, waiting func()) (leave func(after time.Duration), err error) {
	select {
	case g.slots <- struct{}{}:
		return g.leave, nil
	default:
	}
	waiting()
	select {
	case g.slots <- struct{}{}:
		return g.leave, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (g *gate) leave(after time.Duration) { time.AfterFunc(after, func() { <-g.slots }) }
