package node

import (
	"context"
	"sync"
	"time"

	"github.com/outcrop-cloud/outcrop/internal/compute"
	"github.com/outcrop-cloud/outcrop/internal/hypervisor"
)

// view is what is known of the hypervisor as a whole.
type view struct {
	mu     sync.Mutex
	listed bool // all VMs were listed at least once
	down   bool // the last list failed
	err    string
}

// unknown reports whether the set of VMs on the node is not known: a VM that is
// missing from a report must really be missing (lesson 9).
func (v *view) unknown() bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	return !v.listed || v.down
}

// trouble is why the hypervisor cannot be read; empty when it can.
func (v *view) trouble() string {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.err
}

// note keeps the outcome of a list and says whether it changed anything.
func (v *view) note(err error) bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	changed := v.down != (err != nil) || !v.listed
	v.down, v.err = err != nil, ""
	if err != nil {
		v.err = err.Error()
	} else {
		v.listed = true
	}
	return changed
}

// listInterval is how old the hypervisor's word on a VM may become while nothing
// happens.
const listInterval = 10 * time.Second

// observe lists all VMs again and again: one call for the state of all, and the
// way to find VMs that have no directory here. It keeps an eye on the disk and on
// the volumes that are to go, too.
func (a *agent) observe(ctx context.Context) {
	delay := backoff{first: time.Second, most: listInterval}
	for {
		a.images.trim()
		a.sweepVolumes()
		next := listInterval
		if a.list(ctx) {
			delay.reset()
		} else {
			next = delay.next()
		}
		if wait(ctx, next, a.relist) == cut {
			return
		}
	}
}

// list takes in all VMs and reports whether they could be listed.
func (a *agent) list(ctx context.Context) bool {
	call, cancel := context.WithTimeout(ctx, hypervisor.CallTimeout)
	defer cancel()
	at := time.Now() // a sample is as old as its question
	vms, err := a.cfg.Hypervisor.List(call)
	if ctx.Err() != nil {
		return false
	}
	if a.view.note(err) {
		a.changed()
		if err != nil {
			a.log.Warn("the hypervisor cannot be read; nothing is concluded from that", "error", err)
		}
	}
	if err != nil {
		return false
	}
	a.sample(vms, at)
	return true
}

// sample hands the list to the workers. One whose VM is not in it looks itself. A
// VM with an id that no server gives is nobody's to drive or to report.
func (a *agent) sample(vms []hypervisor.VM, at time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	byID := map[string]hypervisor.VM{}
	for _, vm := range vms {
		if !compute.ValidInstanceID(vm.ID) {
			continue
		}
		byID[vm.ID] = vm
		a.worker(vm.ID)
	}
	for id, w := range a.workers {
		w.sample(byID[id], at)
	}
}

// listen wakes the worker of each VM that may have changed.
func (a *agent) listen(ctx context.Context) {
	events := a.cfg.Hypervisor.Events()
	for {
		select {
		case <-ctx.Done():
			return
		case id, ok := <-events:
			if !ok {
				return
			}
			a.wake(id)
		}
	}
}

func (a *agent) wake(id string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if w := a.workers[id]; w != nil {
		nudge(w.poke)
		return
	}
	nudge(a.relist)
}
