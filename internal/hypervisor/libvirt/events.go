package libvirt

import (
	"context"
	"strings"
	"time"

	"github.com/outcrop-cloud/outcrop/internal/hypervisor"
)

// A lost libvirtd is looked for again after these waits: soon, because a
// restart takes a fraction of a second, then calmly.
const (
	firstRetry = 100 * time.Millisecond
	lastRetry  = 5 * time.Second
)

// Events carries ids of VMs that may have changed; see hypervisor.Hypervisor.
func (d *Driver) Events() <-chan string { return d.events }

// emit never waits for the reader: an event is a hint.
func (d *Driver) emit(id string) {
	select {
	case d.events <- id:
	default:
	}
}

// watch keeps one subscription to lifecycle events alive.
func (d *Driver) watch(ctx context.Context) {
	wait, lost := firstRetry, false
	for ctx.Err() == nil {
		err := d.forward(ctx, func() {
			if lost {
				d.log.Info("libvirtd is back", "socket", d.pool.path)
				d.emit("")
			}
			wait, lost = firstRetry, false
		})
		if ctx.Err() != nil {
			return
		}
		if !lost {
			d.log.Warn("libvirtd is away; trying again", "socket", d.pool.path, "error", err)
		}
		lost = true
		select {
		case <-ctx.Done():
		case <-time.After(wait):
		}
		wait = min(2*wait, lastRetry)
	}
}

// forward subscribes, calls ready, and passes events on until the connection
// ends.
func (d *Driver) forward(ctx context.Context, ready func()) error {
	handshake, cancel := context.WithTimeout(ctx, hypervisor.CallTimeout)
	defer cancel()
	c, err := dial(handshake, d.pool.path)
	if err != nil {
		return err
	}
	defer c.close()
	stop := context.AfterFunc(handshake, c.close)
	events, err := c.LifecycleEvents(context.WithoutCancel(ctx))
	if err != nil {
		return err
	}
	if !stop() {
		return handshake.Err()
	}
	defer context.AfterFunc(ctx, c.close)()
	ready()
	for e := range events {
		if id, ours := strings.CutPrefix(e.Dom.Name, prefix); ours {
			d.emit(id)
		}
	}
	return nil
}
