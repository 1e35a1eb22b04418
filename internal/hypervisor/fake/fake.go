// Package fake is a hypervisor in memory: VMs are records, guests are timers.
// It follows the same suite as the real one, so tests of whole fleets and load
// tests (outcrop node --hypervisor fake) run against it, with faults on demand.
//
// All waiting is done with package time, so inside testing/synctest it takes no
// real time.
package fake

import (
	"context"
	"crypto/rand"
	"fmt"
	"io"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/outcrop-cloud/outcrop/internal/hypervisor"
)

// Options of a Hypervisor. The zero value is a fast and faultless one that
// forgets everything with its process.
type Options struct {
	// Dir keeps the VMs as files, so that an agent that was killed finds them
	// again, running as it left them. It is made if it is missing; two
	// processes must not share it. Empty keeps them in memory only.
	Dir string
	// BootTime passes between Start or Reset and the guest's login prompt on
	// the console.
	BootTime time.Duration
	// ShutdownTime is what a guest takes to power off after Shutdown.
	ShutdownTime time.Duration
	// Latency, if set, says how long a call takes. It may be called
	// concurrently.
	Latency func(v Verb, id string) time.Duration
}

// Hypervisor is a hypervisor.Hypervisor without any virtualisation.
type Hypervisor struct {
	opts   Options
	events chan string

	mu       sync.Mutex
	vms      map[string]*vm
	faults   []*fault
	calls    map[call]int
	deaf     map[string]bool // guests that ignore the power button
	consoles map[string]*console
	down     bool
	closed   bool
	cut      chan struct{} // closed when the calls under way are cut off
}

var _ hypervisor.Hypervisor = (*Hypervisor)(nil)

// vm is one VM; its exported fields are what a file of Options.Dir holds.
type vm struct {
	Spec   hypervisor.Spec // holds from the next start
	Live   hypervisor.Spec // of the current run
	State  hypervisor.State
	BootID string
	Reason string

	timer *time.Timer // what the guest does next, or nil
}

// New makes a Hypervisor and reads the VMs of Options.Dir.
func New(opts Options) (*Hypervisor, error) {
	h := &Hypervisor{
		opts:     opts,
		events:   make(chan string, 256),
		calls:    make(map[call]int),
		deaf:     make(map[string]bool),
		consoles: make(map[string]*console),
		cut:      make(chan struct{}),
	}
	var err error
	h.vms, err = load(opts.Dir)
	if err != nil {
		return nil, fmt.Errorf("fake: read the VMs of %s: %w", opts.Dir, err)
	}
	return h, nil
}

// Info describes the hypervisor; see hypervisor.Hypervisor.
func (h *Hypervisor) Info(ctx context.Context) (hypervisor.Info, error) {
	info := hypervisor.Info{Name: "fake", Version: "1", Acceleration: hypervisor.TCG}
	return info, h.call(ctx, VerbInfo, "", func() error { return nil })
}

// List returns all VMs by id; see hypervisor.Hypervisor.
func (h *Hypervisor) List(ctx context.Context) ([]hypervisor.VM, error) {
	var list []hypervisor.VM
	err := h.call(ctx, VerbList, "", func() error {
		for _, id := range slices.Sorted(maps.Keys(h.vms)) {
			list = append(list, h.vms[id].view())
		}
		return nil
	})
	return list, err
}

// Get returns one VM; see hypervisor.Hypervisor.
func (h *Hypervisor) Get(ctx context.Context, id string) (hypervisor.VM, error) {
	var view hypervisor.VM
	err := h.onVM(ctx, VerbGet, id, func(v *vm) error {
		view = v.view()
		return nil
	})
	return view, err
}

func (v *vm) view() hypervisor.VM {
	return hypervisor.VM{ID: v.Spec.ID, State: v.State, BootID: v.BootID, Reason: v.Reason}
}

func (v *vm) alive() bool { return v.State == hypervisor.Running || v.State == hypervisor.Paused }

// Define makes or replaces a definition; see hypervisor.Hypervisor.
func (h *Hypervisor) Define(ctx context.Context, s hypervisor.Spec) error {
	return h.call(ctx, VerbDefine, s.ID, func() error {
		if err := s.Validate(); err != nil {
			return err
		}
		v, ok := h.vms[s.ID]
		if !ok {
			v = &vm{State: hypervisor.Off}
			h.vms[s.ID] = v
		}
		v.Spec = s
		return h.changed(v)
	})
}

// Start boots a VM or lets a paused one go on; see hypervisor.Hypervisor.
func (h *Hypervisor) Start(ctx context.Context, id string) error {
	return h.onVM(ctx, VerbStart, id, func(v *vm) error {
		switch v.State {
		case hypervisor.Running:
			return nil
		case hypervisor.Paused:
			v.State, v.Reason = hypervisor.Running, ""
			return h.changed(v)
		}
		v.State, v.Reason, v.BootID, v.Live = hypervisor.Running, "", "fake-"+rand.Text()[:12], v.Spec
		h.boot(v)
		return h.changed(v)
	})
}

// Shutdown presses the power button; see hypervisor.Hypervisor.
func (h *Hypervisor) Shutdown(ctx context.Context, id string) error {
	return h.onVM(ctx, VerbShutdown, id, func(v *vm) error {
		if v.State == hypervisor.Running && !h.deaf[id] {
			h.guest(v, h.opts.ShutdownTime, func() { _ = h.end(v, hypervisor.Off, "") })
		}
		return nil
	})
}

// Destroy pulls the plug; see hypervisor.Hypervisor.
func (h *Hypervisor) Destroy(ctx context.Context, id string) error {
	return h.onVM(ctx, VerbDestroy, id, func(v *vm) error {
		if !v.alive() {
			return nil
		}
		return h.end(v, hypervisor.Off, "")
	})
}

// Reset restarts the guest inside its process; see hypervisor.Hypervisor.
func (h *Hypervisor) Reset(ctx context.Context, id string) error {
	return h.onVM(ctx, VerbReset, id, func(v *vm) error {
		if !v.alive() {
			return fmt.Errorf("%w: it is not running; start it", hypervisor.ErrRefused)
		}
		h.boot(v)
		return h.changed(v)
	})
}

// Undefine forgets a VM; see hypervisor.Hypervisor.
func (h *Hypervisor) Undefine(ctx context.Context, id string) error {
	return h.call(ctx, VerbUndefine, id, func() error {
		v, ok := h.vms[id]
		if !ok {
			return nil
		}
		if v.alive() {
			return fmt.Errorf("%w: it is running; destroy it first", hypervisor.ErrRefused)
		}
		delete(h.vms, id)
		h.emit(id)
		return forget(h.opts.Dir, id)
	})
}

// Console opens a console whose guest echoes; see hypervisor.Hypervisor.
func (h *Hypervisor) Console(ctx context.Context, id string) (io.ReadWriteCloser, error) {
	var c io.ReadWriteCloser
	err := h.onVM(ctx, VerbConsole, id, func(v *vm) error {
		if !v.alive() {
			return fmt.Errorf("%w: it is not running; start it", hypervisor.ErrRefused)
		}
		if h.consoles[id] != nil {
			return fmt.Errorf("%w: somebody has the console open; close it there first", hypervisor.ErrRefused)
		}
		c = h.openConsole(v)
		return nil
	})
	return c, err
}

// Events carries ids of VMs that may have changed; see hypervisor.Hypervisor.
func (h *Hypervisor) Events() <-chan string { return h.events }

// Close ends all guests' timers and consoles without changing any VM.
func (h *Hypervisor) Close() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		return nil
	}
	h.closed = true
	close(h.cut)
	for _, v := range h.vms {
		h.still(v)
	}
	for _, c := range h.consoles {
		c.hangUp()
	}
	return nil
}

// boot writes what a guest's console says while it comes up. Under the lock.
func (h *Hypervisor) boot(v *vm) {
	h.say(v, fmt.Sprintf("fake: %s boots, %s\r\n", v.Live.ID, v.BootID))
	h.guest(v, h.opts.BootTime, func() { h.say(v, v.Live.ID+" login: ") })
}

// guest lets do happen in the guest after a while, in place of what it was
// about to do. Under the lock.
func (h *Hypervisor) guest(v *vm, after time.Duration, do func()) {
	h.still(v)
	boot := v.BootID
	var timer *time.Timer
	timer = time.AfterFunc(after, func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		if v.timer == timer && v.BootID == boot && !h.closed {
			v.timer = nil
			do()
		}
	})
	v.timer = timer
}

func (h *Hypervisor) still(v *vm) {
	if v.timer != nil {
		v.timer.Stop()
		v.timer = nil
	}
}

// end takes a VM down. Under the lock.
func (h *Hypervisor) end(v *vm, state hypervisor.State, reason string) error {
	h.still(v)
	if c := h.consoles[v.Spec.ID]; c != nil {
		c.hangUp()
	}
	v.State, v.Reason, v.BootID = state, reason, ""
	return h.changed(v)
}

// changed saves a VM and tells of it. Under the lock.
func (h *Hypervisor) changed(v *vm) error {
	h.emit(v.Spec.ID)
	return save(h.opts.Dir, v)
}

func (h *Hypervisor) emit(id string) {
	select {
	case h.events <- id:
	default:
	}
}
