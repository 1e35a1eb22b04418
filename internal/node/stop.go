package node

import (
	"context"
	"os"
	"time"

	"github.com/outcrop-cloud/outcrop/internal/hypervisor"
)

// stopSteps take a VM down: the guest is asked and has until the deadline, then
// the plug is pulled. A nearer deadline comes as a new order, which supersedes
// the wait (lesson 20).
func (w *worker) stopSteps(o order) []step {
	return []step{
		{stepShutdown, func(context.Context) (bool, error) { return time.Now().Before(o.deadline), nil },
			func(ctx context.Context) error { return w.shutdown(ctx, o) }},
		{stepDestroy, w.isUp, w.destroy},
	}
}

// removeSteps leave nothing of a VM on the node.
func (w *worker) removeSteps() []step {
	return []step{
		{stepDestroy, w.isUp, w.destroy},
		{stepUndefine, nil, func(context.Context) error {
			return w.call(func(ctx context.Context) error { return w.a.cfg.Hypervisor.Undefine(ctx, w.id) })
		}},
		{stepRemove, nil, func(context.Context) error { return w.removeFiles() }},
	}
}

const (
	// shutdownPoll is how often a VM that goes down is looked at; its event
	// mostly comes first.
	shutdownPoll = 2 * time.Second
	// askAgain is when a guest that goes on is asked once more: one that was
	// still booting did not hear it.
	askAgain = 10 * time.Second
)

// shutdown asks the guest and waits until it is down or its time is over. A
// guest that cannot be asked has the plug pulled when its time is over.
func (w *worker) shutdown(ctx context.Context, o order) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-w.poke:
		case <-timer.C:
		}
		up, err := w.isUp(ctx)
		if err == nil && !up || !time.Now().Before(o.deadline) {
			return nil
		}
		if w.asked.epoch != o.desired.Epoch || time.Since(w.asked.at) >= askAgain {
			w.ask(ctx, o)
		}
		timer.Reset(max(0, min(shutdownPoll, time.Until(o.deadline))))
	}
}

// ask presses the power button. A newer order and the deadline cut it off:
// destroying may interrupt it.
func (w *worker) ask(ctx context.Context, o order) {
	w.asked = asked{o.desired.Epoch, time.Now()}
	ctx, cancel := context.WithDeadline(ctx, o.deadline)
	defer cancel()
	ctx, stop := context.WithTimeout(ctx, hypervisor.CallTimeout)
	defer stop()
	if err := w.a.cfg.Hypervisor.Shutdown(ctx, w.id); err != nil {
		w.log.Warn("the guest could not be asked to go down", "error", err)
	}
}

// isUp looks whether the VM's process exists.
func (w *worker) isUp(ctx context.Context) (bool, error) {
	vm, err := w.get(ctx, false)
	if err != nil {
		return false, err
	}
	w.saw(vm)
	return glance{defined: vm.ID != "", state: vm.State}.up(), nil
}

func (w *worker) destroy(context.Context) error {
	return w.call(func(ctx context.Context) error { return w.a.cfg.Hypervisor.Destroy(ctx, w.id) })
}

// removeFiles removes the directory and, with it, the hold on the image.
func (w *worker) removeFiles() error {
	if err := os.Remove(w.a.dir.socket(w.id)); err != nil && !os.IsNotExist(err) {
		return err
	}
	return os.RemoveAll(w.dir)
}
