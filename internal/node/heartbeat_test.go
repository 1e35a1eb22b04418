package node

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/outcrop-cloud/outcrop/internal/api"
	"github.com/outcrop-cloud/outcrop/internal/compute"
	"github.com/outcrop-cloud/outcrop/internal/fault"
	"github.com/outcrop-cloud/outcrop/internal/hypervisor/fake"
	"github.com/outcrop-cloud/outcrop/internal/node/detect"
)

// logs keeps what is logged at Info and above.
type logs struct {
	mu    sync.Mutex
	lines []string
}

func (l *logs) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lines = append(l.lines, string(p))
	return len(p), nil
}

func (l *logs) count(text string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := 0
	for _, line := range l.lines {
		if strings.Contains(line, text) {
			n++
		}
	}
	return n
}

func (e *env) beatTimes() []time.Time {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.Clone(e.beats)
}

// contract: N-02 N-04 N-09
func TestHeartbeatBody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEnv(t)
		e.cfg.Region, e.cfg.Zone = "eu", "eu-1"
		yes := true
		e.tweak = func(a *agent) {
			a.detect = func() detect.Facts {
				m := machine()
				m.TPM, m.CPUModel, m.WakeOnLANMACs, m.KVMVersion = &yes, "Opteron", []string{"52:54:00:00:00:01"}, "6.1"
				return m
			}
		}
		e.up(t)
		defer func() { e.downAgent(); e.vms.Close() }()
		<-time.After(10 * time.Second)
		e.mu.Lock()
		defer e.mu.Unlock()
		h := e.beat
		if h.Hostname != "host" || h.Role != "hypervisor" || h.Region != "eu" || h.AvailabilityZone != "eu-1" ||
			h.BootID != "boot-1" || h.MachineID != "machine-1" || h.WakeOnLanMAC != "52:54:00:00:00:01" {
			t.Errorf("heartbeat %+v", h)
		}
		c := h.Capacity
		if c.TotalVCPUs != 2 || c.ReservedVCPUs != 1 || c.ReservedMemoryBytes != 3<<30 || *c.VCPUOvercommitRatio != 4 || *c.MemoryOvercommitRatio != 1 {
			t.Errorf("capacity %+v", c)
		}
		if c.HasTPM == nil || !*c.HasTPM || c.HasGPU != nil {
			t.Errorf("TPM %v, GPU %v: what is not known is not reported", c.HasTPM, c.HasGPU)
		}
		if h.Capabilities[labelAcceleration] != "tcg" || h.Capabilities["capability.cpu.model"] != "Opteron" || c.KVMVersion != "" {
			t.Errorf("labels %v, KVM %q", h.Capabilities, c.KVMVersion)
		}
	})
}

// contract: N-09
func TestReservationIsSettable(t *testing.T) {
	zero, gib, one, half := int64(0), int64(1<<30), 1.0, 0.5
	a := &agent{cfg: Config{ReservedVCPUs: &zero, ReservedMemoryBytes: &gib, VCPURatio: &one, MemoryRatio: &half}}
	c := api.HeartbeatCapacity{TotalVCPUs: 64, TotalMemoryBytes: 256 << 30}
	a.keepBack(&c)
	if c.ReservedVCPUs != 0 || c.ReservedMemoryBytes != gib || *c.VCPUOvercommitRatio != 1 || *c.MemoryOvercommitRatio != 0.5 {
		t.Errorf("capacity %+v", c)
	}
}

// contract: N-06
func TestHeartbeatPace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEnv(t)
		e.interval = 20
		began := time.Now()
		e.up(t)
		defer func() { e.downAgent(); e.vms.Close() }()
		<-time.After(10 * time.Minute)
		beats := e.beatTimes()
		if len(beats) < 25 || beats[0].Sub(began) > time.Second {
			t.Fatalf("%d beats, the first after %v", len(beats), beats[0].Sub(began))
		}
		gaps := map[time.Duration]bool{}
		for i := 2; i < len(beats); i++ { // the second may follow at once, with the hypervisor's facts
			gap := beats[i].Sub(beats[i-1])
			gaps[gap] = true
			if gap < 18*time.Second || gap > 22*time.Second {
				t.Errorf("gap %v", gap)
			}
		}
		if len(gaps) < 5 {
			t.Error("no jitter")
		}
	})
}

// A server that is back hears from the node within 5 s, and a down one is not
// called all the time. contract: N-06, lesson 2
func TestReconnect(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEnv(t)
		var calls []time.Time
		var mu sync.Mutex
		e.up(t)
		defer func() { e.downAgent(); e.vms.Close() }()
		e.create(idA, "x")
		e.reaches(t, idA, compute.StateRunning, 10*time.Second)
		e.agent.up.mu.Lock()
		e.agent.up.server = through{e.server, func(context.Context, string, string) error {
			mu.Lock()
			calls = append(calls, time.Now())
			mu.Unlock()
			return nil
		}}
		e.agent.up.mu.Unlock()
		for range 20 {
			e.edit(func() { e.server.down = errors.New("down") })
			<-time.After(10*time.Minute + 137*time.Millisecond)
			mu.Lock()
			if n := len(calls); n > 2*10*60/2+20 { // two loops, at most every 2 s
				t.Fatalf("%d calls in ten minutes", n)
			}
			calls = nil
			mu.Unlock()
			before := len(e.beatTimes())
			back := time.Now()
			e.edit(func() { e.server.down = nil })
			e.until(t, "a heartbeat", 5*time.Second, func() bool { return len(e.beatTimes()) > before })
			if took := time.Since(back); took > 5*time.Second {
				t.Errorf("back after %v", took)
			}
		}
		if e.vms.boots(idA) != 1 {
			t.Error("the VM was started again")
		}
	})
}

// contract: N-01, lesson 7: a refusal is said once, with what to do, and asked
// about rarely.
func TestRefusals(t *testing.T) {
	tests := []struct {
		err    *fault.Error
		advice string
	}{
		{fault.Coded(fault.Conflict, fault.NodeIDConflict, "another machine"), "--id"},
		{fault.New(fault.Unauthenticated, "unknown token"), "token create"},
		{fault.New(fault.Forbidden, "another node"), "--role"},
	}
	for _, tt := range tests {
		synctest.Test(t, func(t *testing.T) {
			e := newEnv(t)
			said := &logs{}
			e.cfg.Log = slog.New(slog.NewTextHandler(said, nil))
			e.server.down = tt.err
			var calls atomic.Int32
			e.tweak = func(a *agent) {
				a.up.server = through{e.server, func(context.Context, string, string) error { calls.Add(1); return nil }}
			}
			e.up(t)
			defer func() { e.downAgent(); e.vms.Close() }()
			<-time.After(10 * time.Minute)
			if n := said.count("heartbeat failed"); n != 1 || said.count(tt.advice) != 1 {
				t.Errorf("%s: said %d times: %v", tt.err.Code, n, said.lines)
			}
			if n := calls.Load(); n > 25 {
				t.Errorf("%s: %d calls in ten minutes", tt.err.Code, n)
			}
			// A renewed token ends the wait.
			e.edit(func() { e.server.down = nil })
			if err := os.WriteFile(e.cfg.TokenFile, []byte("renewed"), 0o600); err != nil {
				t.Fatal(err)
			}
			e.until(t, "a heartbeat", tokenCheck+time.Second, func() bool { return len(e.beatTimes()) > 0 })
			if said.count("works again") == 0 {
				t.Error("the end of the trouble was not said")
			}
		})
	}
}

type busy time.Duration

func (b busy) Error() string             { return "busy" }
func (b busy) RetryAfter() time.Duration { return time.Duration(b) }

// lesson 2
func TestRetryAfter(t *testing.T) {
	p := newPace(slog.New(slog.DiscardHandler), "call")
	for range 100 {
		if d := p.failed(busy(time.Minute)); d < time.Minute || d > 67*time.Second {
			t.Fatalf("waits %v", d)
		}
	}
}

func TestBackoff(t *testing.T) {
	b := backoff{first: time.Second, most: 30 * time.Second}
	for _, want := range []time.Duration{1, 2, 4, 8, 16, 30, 30} {
		if d := b.next(); d < want*time.Second/2 || d > want*time.Second {
			t.Errorf("%v, want up to %d s", d, want)
		}
	}
	b.reset()
	if d := b.next(); d > time.Second {
		t.Errorf("%v after a reset", d)
	}
}

// A detection that hangs holds no heartbeat up, and neither does libvirt.
func TestHeartbeatWaitsForNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEnv(t)
		hang := make(chan struct{})
		n := 0
		e.tweak = func(a *agent) {
			a.detect = func() detect.Facts {
				if n++; n > 1 {
					<-hang
				}
				return machine()
			}
		}
		for i := range 1000 {
			e.vms.Hang(fake.VerbInfo, "", i+1)
			e.vms.Hang(fake.VerbList, "", i+1)
		}
		e.up(t)
		defer func() { e.downAgent(); e.vms.Close(); close(hang) }()
		<-time.After(10 * time.Minute)
		if beats := len(e.beatTimes()); beats < 9 {
			t.Errorf("%d beats in ten minutes", beats)
		}
		e.mu.Lock()
		defer e.mu.Unlock()
		if age := time.Since(*e.beat.Capacity.SampledAt); age < 5*time.Minute {
			t.Errorf("the sample is said to be %v old", age)
		}
	})
}
