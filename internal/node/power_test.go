package node

import (
	"context"
	"errors"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/outcrop-cloud/outcrop/internal/api"
	"github.com/outcrop-cloud/outcrop/internal/compute"
	"github.com/outcrop-cloud/outcrop/internal/hypervisor"
	"github.com/outcrop-cloud/outcrop/internal/hypervisor/fake"
	"github.com/outcrop-cloud/outcrop/internal/node/detect"
	"github.com/outcrop-cloud/outcrop/internal/node/host"
)

// machineHost is a host in a test's hand.
type machineHost struct {
	mu     sync.Mutex
	verbs  []compute.PowerVerb
	kept   []int64
	woken  []string
	err    error
	before func() // called before a power action
}

func (h *machineHost) Power(_ context.Context, v compute.PowerVerb) error {
	if h.before != nil {
		h.before()
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.verbs = append(h.verbs, v)
	return h.err
}

func (h *machineHost) KeepMemory(_ context.Context, bytes int64) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.kept = append(h.kept, bytes)
	return h.err
}

func (h *machineHost) Wake(card net.HardwareAddr) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.woken = append(h.woken, card.String())
	return nil
}

func (h *machineHost) fail(err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.err = err
}

func (h *machineHost) did() []compute.PowerVerb {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.verbs)
}

func (h *machineHost) keeps() []int64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.kept)
}

// onHost runs a test with an agent on a host.
func onHost(t *testing.T, test func(t *testing.T, e *env, h *machineHost)) {
	bubble(t, func(t *testing.T, e *env) {
		h := &machineHost{}
		e.downAgent()
		e.cfg.Host = h
		e.up(t)
		test(t, e, h)
	})
}

// order asks for a power action.
func (e *env) order(verb compute.PowerVerb, generation int64, delay time.Duration) {
	e.edit(func() {
		e.power = &api.DesiredPower{Action: string(verb), Generation: generation, NotBeforeMS: delay.Milliseconds()}
	})
}

// boot is a start of the agent in the next boot of its machine, in which no VM runs.
func (e *env) boot(t *testing.T, id string) {
	t.Helper()
	e.tweak = func(a *agent) {
		a.detect = func() detect.Facts {
			m := machine()
			m.BootID = id
			return m
		}
	}
	e.up(t)
}

func (e *env) says(t *testing.T, generation int64, stage compute.PowerStage) api.PowerReport {
	t.Helper()
	said := func() api.PowerReport {
		if p := e.lastSync().Power; p != nil {
			return *p
		}
		return api.PowerReport{}
	}
	e.until(t, "the agent says "+string(stage), 5*time.Minute, func() bool { return said().Generation == generation && said().Stage == string(stage) })
	return said()
}

func (e *env) finds(code string) bool {
	return slices.ContainsFunc(e.lastSync().Findings, func(f api.Finding) bool { return f.Code == code })
}

// Guests go down in order before their host does: asked, then unplugged; nothing
// starts meanwhile; and what was carried out is not done again after the boot.
// contract: N-18 N-20 lesson 20
func TestPowerActionEndsGuestsFirst(t *testing.T) {
	onHost(t, func(t *testing.T, e *env, h *machineHost) {
		e.create(idA, "")
		e.create(idB, "")
		e.vms.IgnoreShutdown(idB, true)
		e.reaches(t, idA, compute.StateRunning, time.Minute)
		e.reaches(t, idB, compute.StateRunning, time.Minute)
		h.before = func() {
			for _, vm := range e.vms.Look() {
				if vm.State == hypervisor.Running {
					t.Errorf("%s runs as its host goes down", vm.ID)
				}
			}
			if b, _ := os.ReadFile(e.agent.dir.file(filePower)); !strings.Contains(string(b), `"generation":3`) {
				t.Errorf("nothing is written down before the host is asked: %q", b)
			}
		}
		e.order(compute.PowerShutdown, 3, 20*time.Second)
		e.says(t, 3, compute.PowerWaiting)
		<-time.After(19 * time.Second)
		if len(h.did()) != 0 || e.vm(idA) != hypervisor.Running {
			t.Fatalf("before its time: %v, %s", h.did(), e.vm(idA))
		}
		if p := e.says(t, 3, compute.PowerStopping); p.Message != "guests that are still to go down: 2" {
			t.Error(p.Message)
		}
		e.reaches(t, idA, compute.StateStopped, 5*time.Second)
		// It is to run: not before the host is back.
		if !e.start(idA) {
			t.Fatal("it cannot be started")
		}
		e.create("i-ccccccccc", "")
		e.says(t, 3, compute.PowerActing)
		if n := e.vms.Calls(fake.VerbDestroy, idA); n != 0 {
			t.Error("the plug of a guest that goes down was pulled")
		}
		if n := e.vms.Calls(fake.VerbDestroy, idB); n != 1 {
			t.Errorf("the plug of a deaf guest was pulled %d times", n)
		}
		e.reaches(t, idB, compute.StateStopped, 5*time.Second)
		<-time.After(time.Hour) // the server tells it again and again
		if got := h.did(); !slices.Equal(got, []compute.PowerVerb{compute.PowerShutdown}) || e.vm(idA) == hypervisor.Running || e.vm("i-ccccccccc") != "none" {
			t.Errorf("%v, %s, %s", got, e.vm(idA), e.vm("i-ccccccccc"))
		}

		e.downAgent()
		e.boot(t, "boot-2")
		e.reaches(t, idA, compute.StateRunning, time.Minute)
		e.reaches(t, "i-ccccccccc", compute.StateRunning, time.Minute)
		if p := e.lastSync().Power; len(h.did()) != 1 || p == nil || *p != (api.PowerReport{Generation: 3}) {
			t.Errorf("after the boot: %v, it says %+v", h.did(), p)
		}
		e.order(compute.PowerReboot, 2, 0) // of a server that was restored
		<-time.After(time.Minute)
		if len(h.did()) != 1 {
			t.Errorf("an older generation: %v", h.did())
		}
		h.before = nil
		e.order(compute.PowerReboot, 4, 0)
		e.says(t, 4, compute.PowerActing)
		if got := h.did(); len(got) != 2 || got[1] != compute.PowerReboot {
			t.Errorf("the next one: %v", got)
		}
	})
}

// A host that does not act: the agent says why, and guests may run again.
// contract: N-19
func TestHostRefuses(t *testing.T) {
	onHost(t, func(t *testing.T, e *env, h *machineHost) {
		h.fail(host.ErrNoSystemd)
		e.create(idA, "")
		e.reaches(t, idA, compute.StateRunning, time.Minute)
		e.order(compute.PowerReboot, 1, 0)
		if p := e.says(t, 1, compute.PowerGaveUp); p.Message != host.ErrNoSystemd.Error() {
			t.Error(p.Message)
		}
		e.edit(func() { e.power = nil })
		e.start(idA)
		e.reaches(t, idA, compute.StateRunning, time.Minute)
		if !e.finds(findingNoSystemd) {
			t.Errorf("no finding: %+v", e.lastSync().Findings)
		}
		h.fail(nil)
		e.order(compute.PowerReboot, 2, 0)
		e.says(t, 2, compute.PowerActing)
		if len(h.did()) != 2 {
			t.Errorf("%v", h.did())
		}
	})
}

// An action that is taken back, because it failed for the server, lets guests go on.
// contract: N-19
func TestPowerTakenBack(t *testing.T) {
	onHost(t, func(t *testing.T, e *env, h *machineHost) {
		e.create(idA, "")
		e.vms.IgnoreShutdown(idA, true)
		e.reaches(t, idA, compute.StateRunning, time.Minute)
		for generation, stage := range []compute.PowerStage{compute.PowerWaiting, compute.PowerStopping} {
			delay := time.Hour
			if stage == compute.PowerStopping {
				delay = 0
			}
			e.order(compute.PowerShutdown, int64(generation+1), delay)
			e.says(t, int64(generation+1), stage)
			e.edit(func() { e.power = nil })
			<-time.After(2 * time.Hour)
			if e.vm(idA) != hypervisor.Running || len(h.did()) != 0 || e.state(idA) != compute.StateRunning {
				t.Fatalf("taken back while %s: %s, %v", stage, e.vm(idA), h.did())
			}
		}
	})
}

// An agent that dies between its note and the host's act does it again in the same
// boot; one that cannot read its note does nothing.
// contract: N-18
func TestPowerNote(t *testing.T) {
	onHost(t, func(t *testing.T, e *env, h *machineHost) {
		e.order(compute.PowerShutdown, 5, 0)
		e.says(t, 5, compute.PowerActing)
		e.downAgent()
		e.up(t)
		e.until(t, "it is done again", time.Minute, func() bool { return len(h.did()) == 2 })
		e.downAgent()
		if err := os.WriteFile(e.agent.dir.file(filePower), []byte("{"), 0o600); err != nil {
			t.Fatal(err)
		}
		e.up(t)
		if p := e.says(t, 5, compute.PowerGaveUp); !strings.Contains(p.Message, "put the file right") {
			t.Error(p.Message)
		}
		if len(h.did()) != 2 {
			t.Errorf("with a note that cannot be read: %v", h.did())
		}
	})
}

// While the hypervisor is away the host goes down all the same, when the guests
// have had their time.
// contract: N-20 lesson 10
func TestPowerWithoutHypervisor(t *testing.T) {
	onHost(t, func(t *testing.T, e *env, h *machineHost) {
		e.create(idA, "")
		e.reaches(t, idA, compute.StateRunning, time.Minute)
		e.vms.SetDown(true)
		began := time.Now()
		e.order(compute.PowerShutdown, 1, 0)
		e.says(t, 1, compute.PowerActing)
		if took := time.Since(began); took < compute.DefaultStopDeadline || took > compute.DefaultStopDeadline+guestGrace+5*time.Second {
			t.Errorf("it took %v", took)
		}
	})
}

// Each packet is sent once and reported for as long as the server asks.
func TestWakesOthers(t *testing.T) {
	var sent []string
	w := &wakes{send: func(card net.HardwareAddr) error {
		sent = append(sent, card.String())
		if card[5] == 0xee {
			return errors.New("no card is up")
		}
		return nil
	}}
	list := []api.DesiredWake{{ID: "a", MAC: "3c:fd:fe:00:00:0a"}}
	if !w.set(list) || w.set(list) {
		t.Error("a packet is sent not at all, or twice")
	}
	list = append(list, api.DesiredWake{ID: "b", MAC: "3C-FD-FE-00-00-EE"}, api.DesiredWake{ID: "c", MAC: "nonsense"})
	w.set(list)
	if want := []string{"3c:fd:fe:00:00:0a", "3c:fd:fe:00:00:ee"}; !slices.Equal(sent, want) {
		t.Errorf("sent to %v, want %v", sent, want)
	}
	got := map[string]string{}
	for _, r := range w.reports() {
		got[r.ID] = r.Error
	}
	if len(got) != 3 || got["a"] != "" || got["b"] != "no card is up" || !strings.Contains(got["c"], "nonsense") {
		t.Errorf("%v", got)
	}
	w.set(nil)
	if len(w.reports()) != 0 {
		t.Error("it reports what nobody asks for")
	}
}

// An agent that sends packets says so in its syncs.
func TestWakeIsReported(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		e.downAgent()
		h := &machineHost{}
		e.cfg.Host = h
		e.up(t)
		e.edit(func() { e.toWake = []api.DesiredWake{{ID: "a", MAC: "3c:fd:fe:00:00:0a"}} })
		e.until(t, "it is reported", time.Minute, func() bool { return len(e.lastSync().Wakes) == 1 })
		e.edit(func() { e.toWake = nil })
		e.until(t, "it is over", time.Minute, func() bool { return len(e.lastSync().Wakes) == 0 })
		h.mu.Lock()
		defer h.mu.Unlock()
		if !slices.Equal(h.woken, []string{"3c:fd:fe:00:00:0a"}) {
			t.Errorf("packets for %v", h.woken)
		}
	})
}

// The reservation is kept in step, taken back, and what cannot be is found.
// contract: N-10 N-16
func TestReservationIsKept(t *testing.T) {
	onHost(t, func(t *testing.T, e *env, h *machineHost) {
		wish := func(n *int64) {
			e.mu.Lock()
			e.reserved = n
			e.mu.Unlock()
		}
		settles := func(want ...int64) {
			t.Helper()
			e.until(t, "the host keeps memory", 5*time.Minute, func() bool { return slices.Equal(h.keeps(), want) })
			<-time.After(5 * time.Minute)
			if got := h.keeps(); !slices.Equal(got, want) {
				t.Fatalf("it kept %v, want %v", got, want)
			}
		}
		settles() // a node of a cluster
		six, eight := int64(6<<30), int64(8<<30)
		wish(&six)
		settles(six)
		wish(&eight)
		settles(six, eight)
		e.downAgent()
		e.up(t)
		settles(six, eight, eight) // somebody may have changed it meanwhile
		wish(nil)
		settles(six, eight, eight, 0)
		e.downAgent()
		e.up(t)
		settles(six, eight, eight, 0)
		wish(&six)
		settles(six, eight, eight, 0, six)
		e.downAgent()
		wish(nil)
		e.boot(t, "boot-2") // which took it back by itself
		settles(six, eight, eight, 0, six)

		h.fail(host.ErrNoSystemd)
		wish(&six)
		e.until(t, "it is found", 5*time.Minute, func() bool { return e.finds(findingNoSystemd) })
		h.fail(errors.New("the kernel has no memory.min"))
		e.until(t, "it is found", 5*time.Minute, func() bool { return e.finds(findingReservation) && !e.finds(findingNoSystemd) })
		h.fail(nil)
		e.until(t, "it is over", 5*time.Minute, func() bool { return !e.finds(findingReservation) })
	})
}

// contract: N-02 N-18
func TestWakeMAC(t *testing.T) {
	for text, want := range map[string]string{"": "", "3C-FD-FE-00-00-01": "3c:fd:fe:00:00:01", "nonsense": "!", "00:00:00:00:fe:80:00:00": "!"} {
		c := Config{ID: "n1", DataDir: "x", Hypervisor: &fake.Hypervisor{}, WakeMAC: text}
		err := c.check()
		if (err != nil) != (want == "!") || err == nil && c.WakeMAC != want {
			t.Errorf("%q: %q, %v", text, c.WakeMAC, err)
		}
	}
	bubble(t, func(t *testing.T, e *env) {
		e.downAgent()
		e.cfg.WakeMAC = "3c:fd:fe:00:00:01"
		e.up(t)
		e.until(t, "it is reported", time.Minute, func() bool {
			e.mu.Lock()
			defer e.mu.Unlock()
			return e.beat.WakeOnLanMAC == "3c:fd:fe:00:00:01"
		})
	})
}
