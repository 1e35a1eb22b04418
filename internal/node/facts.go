package node

import (
	"context"
	"fmt"
	"reflect"
	"strconv"
	"sync"
	"time"

	"github.com/outcrop-cloud/outcrop/internal/api"
	"github.com/outcrop-cloud/outcrop/internal/compute"
	"github.com/outcrop-cloud/outcrop/internal/hypervisor"
	"github.com/outcrop-cloud/outcrop/internal/node/detect"
)

// facts is the cache that heartbeats are made of: a beat never waits for what
// may hang (DESIGN, Heartbeat).
type facts struct {
	fresh chan struct{} // capacity 1: something has changed, beat now

	mu         sync.Mutex
	machine    *detect.Facts // nil until it was detected
	detectedAt time.Time
	detecting  chan struct{} // closed when the detection at work is over; nil: none is
	hypervisor *hypervisor.Info
	server     string // commit of its build; empty until it said so
}

func newFacts() *facts { return &facts{fresh: make(chan struct{}, 1)} }

const (
	// detectPatience is what a beat waits for fresh facts; then older ones go out.
	detectPatience = 2 * time.Second
	probeInterval  = 5 * time.Minute
	probeTimeout   = 2 * time.Minute
)

// refresh detects the machine and waits a little for it. A detection that hangs,
// as on a dead network file system, is not begun a second time.
func (f *facts) refresh(ctx context.Context, look func() detect.Facts) {
	f.mu.Lock()
	done := f.detecting
	if done == nil {
		done = make(chan struct{})
		f.detecting = done
		go f.detect(look, done)
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

func (f *facts) detect(look func() detect.Facts, done chan struct{}) {
	defer close(done)
	at, m := time.Now(), look()
	f.mu.Lock()
	defer f.mu.Unlock()
	f.machine, f.detectedAt, f.detecting = &m, at, nil
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

// learnServer notes the commit that the server was built from.
func (f *facts) learnServer(commit string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.server != commit {
		f.server = commit
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

// Labels that the agent adds to the machine's own (contract N-12, N-16).
const (
	labelHypervisor   = "capability.virt.hypervisor"
	labelVersion      = "capability.virt.version"
	labelAcceleration = "capability.virt.acceleration"
	labelCommit       = "capability.host.binaries_commit"
	labelStale        = "capability.host.binaries_stale"
)

// heartbeat puts a beat together of what is known.
func (a *agent) heartbeat() (api.Heartbeat, error) {
	a.facts.mu.Lock()
	m, at, hv, server := a.facts.machine, a.facts.detectedAt, a.facts.hypervisor, a.facts.server
	a.facts.mu.Unlock()
	if m == nil {
		return api.Heartbeat{}, fmt.Errorf("the machine does not tell of itself within %v; is a file system or a device of it stuck?", detectPatience)
	}
	h := api.Heartbeat{
		Hostname: m.Hostname, Role: string(a.cfg.Role), Region: a.cfg.Region, AvailabilityZone: a.cfg.Zone,
		Architecture: m.Architecture, Capabilities: m.Capabilities(), BootID: m.BootID, MachineID: m.MachineID,
		Capacity: api.HeartbeatCapacity{
			TotalVCPUs: m.VCPUs, TotalMemoryBytes: m.MemoryBytes, TotalDiskBytes: m.DiskBytes,
			HasGPU: m.GPU, HasNestedVirt: m.NestedVirt, HasSecureBoot: m.SecureBoot, HasTPM: m.TPM,
			Architecture: m.Architecture, SampledAt: &at,
		},
	}
	if h.WakeOnLanMAC = a.cfg.WakeMAC; h.WakeOnLanMAC == "" && len(m.WakeOnLANMACs) > 0 {
		h.WakeOnLanMAC = m.WakeOnLANMACs[0]
	}
	if hv != nil {
		h.Capabilities[labelHypervisor] = hv.Name
		h.Capabilities[labelVersion] = hv.Version
		h.Capabilities[labelAcceleration] = string(hv.Acceleration)
		if hv.Acceleration == hypervisor.KVM {
			h.Capacity.KVMVersion = m.KVMVersion
		}
	}
	if commit := a.cfg.Commit; commit != "" { // else nothing was checked, and no key says so
		h.Capabilities[labelCommit] = commit
		if server != "" {
			h.Capabilities[labelStale] = strconv.FormatBool(commit != server)
		}
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
