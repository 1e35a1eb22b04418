package fake

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/outcrop-cloud/outcrop/internal/hypervisor"
)

// Verb names a method of hypervisor.Hypervisor.
type Verb string

// The verbs that faults and latencies know. Info and List have no VM id.
const (
	VerbInfo     Verb = "info"
	VerbList     Verb = "list"
	VerbGet      Verb = "get"
	VerbDefine   Verb = "define"
	VerbStart    Verb = "start"
	VerbShutdown Verb = "shutdown"
	VerbDestroy  Verb = "destroy"
	VerbReset    Verb = "reset"
	VerbUndefine Verb = "undefine"
	VerbConsole  Verb = "console"
)

type call struct {
	verb Verb
	id   string
}

// fault strikes one call, the left-th that matches from when it was set.
type fault struct {
	verb Verb
	id   string // "" matches every VM
	left int
	err  error // nil hangs
}

// Fail lets the n-th matching call from now (1 is the next) fail with err and do
// nothing. An empty id matches every VM.
func (h *Hypervisor) Fail(v Verb, id string, n int, err error) {
	h.addFault(&fault{verb: v, id: id, left: n, err: err})
}

// Hang lets the n-th matching call from now (1 is the next) stand still until
// its deadline or a Restart, and do nothing. An empty id matches every VM.
func (h *Hypervisor) Hang(v Verb, id string, n int) {
	h.addFault(&fault{verb: v, id: id, left: n})
}

func (h *Hypervisor) addFault(f *fault) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.faults = append(h.faults, f)
}

// Calls returns how often a verb was called for a VM, failed calls included. The
// id of Info and List is empty.
func (h *Hypervisor) Calls(v Verb, id string) int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.calls[call{v, id}]
}

// Look returns all VMs by id as they are, whatever faults are set.
func (h *Hypervisor) Look() []hypervisor.VM {
	h.mu.Lock()
	defer h.mu.Unlock()
	list := []hypervisor.VM{}
	for _, id := range slices.Sorted(maps.Keys(h.vms)) {
		list = append(list, h.vms[id].view())
	}
	return list
}

// Crash ends a running VM as a crash of its QEMU would; reason is for a person.
func (h *Hypervisor) Crash(id, reason string) error {
	return h.strike(id, func(v *vm) error { return h.end(v, hypervisor.Crashed, reason) })
}

// PowerOff lets the guest of a running VM power itself off.
func (h *Hypervisor) PowerOff(id string) error {
	return h.strike(id, func(v *vm) error { return h.end(v, hypervisor.Off, "") })
}

// Pause stops a running VM's CPUs, as a full disk would. Start lets it go on.
func (h *Hypervisor) Pause(id, reason string) error {
	return h.strike(id, func(v *vm) error {
		h.still(v)
		v.State, v.Reason = hypervisor.Paused, reason
		return h.changed(v)
	})
}

func (h *Hypervisor) strike(id string, fn func(*vm) error) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	v, ok := h.vms[id]
	if !ok || !v.alive() {
		return fmt.Errorf("fake: VM %q is not running", id)
	}
	return fn(v)
}

// IgnoreShutdown makes the guest of a VM deaf to the power button, or hear it
// again. It holds for a VM that is not defined yet, too.
func (h *Hypervisor) IgnoreShutdown(id string, deaf bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.deaf[id] = deaf
}

// SetDown lets every call fail with ErrUnavailable until it is called with
// false, which is told as a reconnect. Calls under way are cut off. VMs go on.
func (h *Hypervisor) SetDown(down bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.down == down || h.closed {
		return
	}
	h.down = down
	if down {
		close(h.cut)
		h.cut = make(chan struct{})
		return
	}
	h.emit("")
}

// onVM is call for verbs that need the VM.
func (h *Hypervisor) onVM(ctx context.Context, v Verb, id string, fn func(*vm) error) error {
	return h.call(ctx, v, id, func() error {
		vm, ok := h.vms[id]
		if !ok {
			return hypervisor.ErrNotFound
		}
		return fn(vm)
	})
}

// call runs fn under the lock, after what latency and faults have in store.
func (h *Hypervisor) call(ctx context.Context, v Verb, id string, fn func() error) error {
	ctx, cancel := context.WithTimeout(ctx, hypervisor.CallTimeout)
	defer cancel()
	err := h.delay(ctx, v, id)
	if err == nil {
		h.mu.Lock()
		err = fn()
		h.mu.Unlock()
	}
	if err != nil {
		return fmt.Errorf("fake: %s VM %q: %w", v, id, err)
	}
	return nil
}

func (h *Hypervisor) delay(ctx context.Context, v Verb, id string) error {
	hit, cut, err := h.arrive(v, id)
	if err != nil {
		return err
	}
	var over <-chan time.Time // nil never comes: a call that hangs
	if hit == nil {
		latency := time.Duration(0)
		if h.opts.Latency != nil {
			latency = h.opts.Latency(v, id)
		}
		if latency <= 0 {
			return late(ctx)
		}
		timer := time.NewTimer(latency)
		defer timer.Stop()
		over = timer.C
	} else if hit.err != nil {
		return hit.err
	}
	select {
	case <-over:
		return nil
	case <-cut:
		return fmt.Errorf("%w: the hypervisor went away", hypervisor.ErrUnavailable)
	case <-ctx.Done():
		return late(ctx)
	}
}

// late is the error of a call whose time was up, or nil.
func late(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("%w: no answer in time: %w", hypervisor.ErrUnavailable, err)
	}
	return nil
}

// arrive counts a call and takes the fault that is due for it.
func (h *Hypervisor) arrive(v Verb, id string) (hit *fault, cut <-chan struct{}, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.calls[call{v, id}]++
	if h.down || h.closed {
		return nil, nil, hypervisor.ErrUnavailable
	}
	h.faults = slices.DeleteFunc(h.faults, func(f *fault) bool {
		if f.verb != v || f.id != "" && f.id != id {
			return false
		}
		f.left--
		if f.left <= 0 && hit == nil {
			hit = f
			return true
		}
		return false
	})
	return hit, h.cut, nil
}
