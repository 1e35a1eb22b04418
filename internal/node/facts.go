package node

import (
	"context"
	"fmt"
	"maps"
	"reflect"
	"sync"
	"time"

	"github.com/outcrop-cloud/outcrop/internal/api"
	"github.com/outcrop-cloud/outcrop/internal/compute"
	"github.com/outcrop-cloud/outcrop/internal/hypervisor"
)

// facts is the cache that heartbeats are made of: a beat never waits for what
// may hang (DESIGN, Heartbeat).
type facts struct {
	fresh chan struct{} // capacity 1: something has changed, beat now

	mu         sync.Mutex
	machine    *api.Heartbeat // nil until it was detected
	detectedAt time.Time
	detecting  chan struct{} // closed when the detection at work is over; nil: none is
	err        error         // of the last detection
	hypervisor *hypervisor.Info
}

func newFacts() *facts { return &facts{fresh: make(chan struct{}, 1)} }

const (
	// detectPatience is what a beat waits for fresh facts; older ones go out after.
	detectPatience = 2 * time.Second
	// detectTimeout ends a detection, so that one that hangs is tried again.
	detectTimeout = time.Minute
	probeInterval = 5 * time.Minute
	probeTimeout  = 2 * time.Minute
)

// refresh detects the machine and waits a little for it.
func (f *facts) refresh(ctx context.Context, detect func(context.Context) (api.Heartbeat, error)) {
	f.mu.Lock()
	done := f.detecting
	if done == nil {
		done = make(chan struct{})
		f.detecting = done
		go f.detect(ctx, detect, done)
	}
	f.mu.Unlock()
	t := time.NewTimer(detectPatience)
	defer t.Stop()
	select {
	case <-done:
	case <-t.C:
	case <-ctx.Done():
	}
}

func (f *facts) detect(ctx context.Context, detect func(context.Context) (api.Heartbeat, error), done chan struct{}) {
	defer close(done)
	ctx, cancel := context.WithTimeout(ctx, detectTimeout)
	defer cancel()
	at := time.Now()
	m, err := detect(ctx)
	f.mu.Lock()
	defer f.mu.Unlock()
	f.detecting, f.err = nil, err
	if err == nil {
		f.machine, f.detectedAt = &m, at
	}
}

// probe keeps asking the hypervisor what it is; see facts.hypervisor.
func (a *agent) probe(ctx context.Context) {
	delay := backoff{first: time.Second, most: time.Minute}
	for {
		call, cancel := context.WithTimeout(ctx, probeTimeout)
		info, err := a.cfg.Hypervisor.Info(call)
		cancel()
		next := probeInterval
		if err == nil {
			delay.reset()
			a.facts.learn(info)
		} else {
			a.log.Debug("the hypervisor does not describe itself", "error", err)
			next = delay.next()
		}
		if !sleep(ctx, next) {
			return
		}
	}
}

func (f *facts) learn(info hypervisor.Info) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.hypervisor == nil || !reflect.DeepEqual(*f.hypervisor, info) {
		f.hypervisor = &info
		nudge(f.fresh)
	}
}

// info is what the hypervisor said of itself; ok is false before it did.
func (f *facts) info() (info hypervisor.Info, ok bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.hypervisor == nil {
		return info, false
	}
	return *f.hypervisor, true
}

// emulatedBoot is how long an emulated guest is left to boot before the next.
const emulatedBoot = 5 * time.Second

// bootTime is how long a boot keeps its slot after the VM's process is there.
func (f *facts) bootTime() time.Duration {
	if info, ok := f.info(); ok && info.Acceleration == hypervisor.KVM {
		return 0
	}
	return emulatedBoot
}

// heartbeat puts a beat together.
func (a *agent) heartbeat() (api.Heartbeat, error) {
	a.facts.mu.Lock()
	defer a.facts.mu.Unlock()
	if a.facts.machine == nil {
		if a.facts.err != nil {
			return api.Heartbeat{}, fmt.Errorf("the machine could not be read: %w", a.facts.err)
		}
		return api.Heartbeat{}, fmt.Errorf("the machine could not be read within %v", detectPatience)
	}
	h := *a.facts.machine
	h.Role, h.Region, h.AvailabilityZone = string(a.cfg.Role), a.cfg.Region, a.cfg.Zone
	at := a.facts.detectedAt
	h.Capacity.SampledAt = &at
	h.Capabilities = maps.Clone(h.Capabilities)
	if i := a.facts.hypervisor; i != nil {
		h.Capacity.KVMVersion = i.Version
		if h.Capabilities == nil {
			h.Capabilities = map[string]string{}
		}
		h.Capabilities["hypervisor"] = i.Name
		h.Capabilities["acceleration"] = string(i.Acceleration)
	}
	a.keepBack(&h.Capacity)
	h.Capacity.CommittedVCPUs, h.Capacity.CommittedMemoryBytes = a.committed()
	return h, nil
}

// Default overcommit ratios (contract N-09).
const (
	defaultVCPURatio   = 4.0
	defaultMemoryRatio = 1.0
)

// keepBack fills in reservation and ratios (contract N-09).
func (a *agent) keepBack(c *api.HeartbeatCapacity) {
	r := compute.HalfReservation(c.TotalVCPUs, c.TotalMemoryBytes)
	c.ReservedVCPUs = or(a.cfg.ReservedVCPUs, r.VCPUs)
	c.ReservedMemoryBytes = or(a.cfg.ReservedMemoryBytes, r.MemoryBytes)
	vcpu, memory := or(a.cfg.VCPURatio, defaultVCPURatio), or(a.cfg.MemoryRatio, defaultMemoryRatio)
	c.VCPUOvercommitRatio, c.MemoryOvercommitRatio = &vcpu, &memory
}

func or[T any](p *T, otherwise T) T {
	if p != nil {
		return *p
	}
	return otherwise
}

// committed is the agent's own count of what its VMs are to have.
func (a *agent) committed() (vcpus, memory int64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, w := range a.workers {
		if o := w.order(); o.goal == compute.GoalRunning {
			vcpus += o.desired.VCPUs
			memory += o.desired.MemoryBytes
		}
	}
	return vcpus, memory
}

// bootID is that of the machine; empty before it was detected.
func (f *facts) bootID() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.machine == nil {
		return ""
	}
	return f.machine.BootID
}
