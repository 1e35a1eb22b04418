package node

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/outcrop-cloud/outcrop/internal/compute"
	"github.com/outcrop-cloud/outcrop/internal/hypervisor"
	"github.com/outcrop-cloud/outcrop/internal/hypervisor/fake"
)

// An agent that was killed at a step leads the same VM on when it is back, and
// the guest gets one boot per start.
func TestKilledAtEachStep(t *testing.T) {
	for _, step := range Steps {
		for _, before := range []bool{true, false} {
			when := map[bool]string{true: "before", false: "after"}[before]
			t.Run(when+" "+step, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					e := newEnv(t)
					defer e.vms.Close()
					defer func() { e.downAgent() }()
					e.cfg.StepHook = e.killAt(step, before, 1)
					kills := 0
					e.up(t)
					alive := func() { // starts the agent again when it was killed
						select {
						case <-e.ended:
							kills++
							e.up(t)
						default:
						}
					}
					reaches := func(s compute.InstanceState) {
						t.Helper()
						e.until(t, string(s), 2*time.Minute, func() bool { alive(); return e.state(idA) == s })
					}
					e.create(idA, "one")
					reaches(compute.StateRunning)
					e.free.Store(0)
					if err := e.vms.Pause(idA, "no space"); err != nil {
						t.Fatal(err)
					}
					e.until(t, "paused", time.Minute, func() bool { return e.last(idA).Phase == "paused" })
					e.free.Store(plenty)
					e.until(t, "resumed", time.Minute, func() bool { alive(); return e.last(idA).Phase == "running" })
					e.vms.IgnoreShutdown(idA, true) // so that destroy is needed
					e.stop(idA, 5*time.Second, false)
					reaches(compute.StateStopped)
					e.edit(func() { e.setUserData(idA, "two") })
					e.start(idA)
					reaches(compute.StateRunning)
					if !e.vms.sawUserData(idA, "two") {
						t.Error("the guest runs with other user-data")
					}
					e.terminate(idA)
					reaches(compute.StateTerminated)
					<-time.After(time.Minute)
					alive()
					<-time.After(time.Minute)
					e.downAgent()
					if kills != 1 {
						t.Errorf("killed %d times", kills)
					}
					if n := e.vms.boots(idA); n != 2 {
						t.Errorf("%d boots for 2 starts", n)
					}
					if files := e.files(); e.vm(idA) != "none" || len(files) != 2 {
						t.Errorf("left behind: VM %s, files %v", e.vm(idA), files)
					}
				})
			})
		}
	}
}

// An agent that comes back to a half done launch, with the server away, says
// nothing that the server could take for the launch's end. lesson 3
func TestHalfDoneLaunchWithoutServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEnv(t)
		defer e.vms.Close()
		defer func() { e.downAgent() }()
		e.cfg.StepHook = e.killAt(stepBoot, true, 1)
		e.up(t)
		e.create(idA, "x")
		<-e.ended
		e.edit(func() { e.server.down = errors.New("down") })
		e.up(t)
		<-time.After(time.Minute)
		e.edit(func() { e.server.down = nil })
		e.reaches(t, idA, compute.StateRunning, 10*time.Second)
		if i := e.instance(idA); i.Epoch != 1 || e.vms.boots(idA) != 1 {
			t.Errorf("epoch %d, %d boots", i.Epoch, e.vms.boots(idA))
		}
	})
}

// A guest that an agent booted and did not live to note is known all the same:
// when it powers itself off, it is not started again.
func TestKilledBeforeConfirm(t *testing.T) {
	for _, kill := range []struct {
		step   string
		before bool
	}{{stepBoot, false}, {stepConfirm, true}} {
		synctest.Test(t, func(t *testing.T) {
			e := newEnv(t)
			defer e.vms.Close()
			defer func() { e.downAgent() }()
			e.cfg.StepHook = e.killAt(kill.step, kill.before, 1)
			e.up(t)
			e.create(idA, "x")
			<-e.ended
			e.up(t)
			e.reaches(t, idA, compute.StateRunning, 10*time.Second)
			if err := e.vms.PowerOff(idA); err != nil {
				t.Fatal(err)
			}
			e.reaches(t, idA, compute.StateStopped, 30*time.Second)
			<-time.After(time.Minute)
			if n := e.vms.boots(idA); n != 1 {
				t.Errorf("killed at %s: %d boots", kill.step, n)
			}
		})
	}
}

// A VM that is up for a moment only, after an agent that did not see it boot, has not
// booted: QEMU died with libvirtd, which told of it as running once more.
func TestGoneBeforeConfirm(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEnv(t)
		defer e.vms.Close()
		defer func() { e.downAgent() }()
		e.cfg.StepHook = e.killAt(stepBoot, false, 1)
		e.up(t)
		e.create(idA, "x")
		<-e.ended
		e.up(t)
		<-time.After(confirmUp / 2)
		if err := e.vms.Crash(idA, "QEMU was gone"); err != nil {
			t.Fatal(err)
		}
		e.reaches(t, idA, compute.StateRunning, 30*time.Second)
		if n := e.vms.boots(idA); n != 2 {
			t.Errorf("%d boots, want 2", n)
		}
	})
}

// deed is one thing that happens in the property test.
type deed struct {
	what string
	id   string
	n    int           // says which user-data, step, verb …
	wait time.Duration // until the next
}

var deeds = []string{
	"create", "start", "stop", "force-stop", "reboot", "force-reboot", "terminate", "user-data",
	"kill", "kill-at", "crash", "power-off", "hang", "fail", "hypervisor-down", "hypervisor-up",
	"server-down", "server-up", "damage-image", "deaf",
}

func drawDeeds(t *rapid.T) []deed {
	return rapid.SliceOfN(rapid.Custom(func(t *rapid.T) deed {
		return deed{
			what: rapid.SampledFrom(deeds).Draw(t, "what"),
			id:   rapid.SampledFrom([]string{idA, idB, "i-ccccccccc"}).Draw(t, "id"),
			n:    rapid.IntRange(0, 1000).Draw(t, "n"),
			wait: time.Duration(rapid.SampledFrom([]int{0, 0, 20, 150, 1000, 5000, 30000}).Draw(t, "wait")) * time.Millisecond,
		}
	}), 1, 40).Draw(t, "deeds")
}

// Whatever is asked and whatever breaks, when it is over the node has what is
// wanted and nothing else.
func TestConverges(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		list := drawDeeds(rt)
		dir, err := os.MkdirTemp("", "node")
		if err != nil {
			rt.Fatal(err)
		}
		defer os.RemoveAll(dir)
		synctest.Test(t, func(t *testing.T) { err = runDeeds(t, dir, list) })
		if err != nil {
			rt.Fatal(err)
		}
	})
}

// history is what the property test expects at the end.
type history struct {
	userData map[string]string
	want     map[string]compute.InstanceState // absent where a guest's own end leaves it open
}

func runDeeds(t *testing.T, dir string, list []deed) error {
	e := newEnvIn(t, dir, fake.Options{BootTime: 4 * time.Second, ShutdownTime: 2 * time.Second})
	defer e.vms.Close()
	h := history{map[string]string{}, map[string]compute.InstanceState{}}
	e.up(t)
	for _, d := range list {
		select {
		case <-e.ended:
			e.up(t)
		default:
		}
		e.strike(t, d, h)
		e.ask(d, h)
		<-time.After(d.wait)
	}
	// All that is broken is put right, and the agent started a last time.
	e.edit(func() { e.server.down = nil })
	e.vms.SetDown(false)
	e.downAgent()
	e.cfg.StepHook = nil
	e.up(t)
	<-time.After(20 * time.Minute)
	e.downAgent()
	return e.settled(h)
}

var verbs = []fake.Verb{fake.VerbGet, fake.VerbDefine, fake.VerbStart, fake.VerbShutdown, fake.VerbDestroy, fake.VerbUndefine}

// strike breaks something.
func (e *env) strike(t *testing.T, d deed, h history) {
	switch d.what {
	case "kill":
		e.downAgent()
		e.up(t)
	case "kill-at":
		e.downAgent()
		e.cfg.StepHook = e.killAt(Steps[d.n%len(Steps)], d.n%2 == 0, 1)
		e.up(t)
	case "hang":
		e.vms.Hang(verbs[d.n%len(verbs)], d.id, 1+d.n%3)
	case "fail":
		e.vms.Fail(verbs[d.n%len(verbs)], d.id, 1+d.n%3, hypervisor.ErrUnavailable)
	case "deaf":
		e.vms.IgnoreShutdown(d.id, d.n%2 == 0)
	case "crash":
		if e.vms.Crash(d.id, "crashed") == nil {
			delete(h.want, d.id)
		}
	case "power-off":
		if e.vms.PowerOff(d.id) == nil {
			delete(h.want, d.id)
		}
	case "hypervisor-down", "hypervisor-up":
		e.vms.SetDown(d.what == "hypervisor-down")
	case "server-down":
		e.edit(func() { e.server.down = errors.New("down") })
	case "server-up":
		e.edit(func() { e.server.down = nil })
	case "damage-image":
		e.mu.Lock()
		defer e.mu.Unlock()
		_ = os.WriteFile(filepath.Join(e.vms.dir, "images", e.image.SHA256), []byte("short"), 0o600)
	}
}

// ask does what a customer would.
func (e *env) ask(d deed, h history) {
	text := fmt.Sprintf("user-data %d of %s", d.n, d.id)
	e.mu.Lock()
	known := e.instances[d.id] != nil
	e.mu.Unlock()
	accepted, leads := false, compute.StateRunning
	switch {
	case d.what == "create" && !known:
		e.create(d.id, text)
		h.userData[d.id], accepted = text, true
	case d.what == "start":
		accepted = e.server.start(d.id)
	case d.what == "stop":
		accepted, leads = e.server.stop(d.id, time.Duration(d.n)*100*time.Millisecond, false), compute.StateStopped
	case d.what == "force-stop":
		accepted, leads = e.server.stop(d.id, 0, true), compute.StateStopped
	case d.what == "reboot" || d.what == "force-reboot":
		accepted = e.server.reboot(d.id, d.what == "force-reboot")
	case d.what == "terminate":
		accepted, leads = e.server.terminate(d.id), compute.StateTerminated
	case d.what == "user-data" && known: // contract U-02: while it is stopped
		e.edit(func() {
			if e.instances[d.id].State == compute.StateStopped {
				e.setUserData(d.id, text)
				h.userData[d.id] = text
			}
		})
	}
	if accepted {
		h.want[d.id] = leads
	}
}

// settled says what is not as it should be at the end.
func (e *env) settled(h history) error {
	var wrong []error
	for _, id := range slices.Sorted(maps.Keys(e.instances)) {
		i, vm := e.instances[id], e.vm(id)
		if want, ok := h.want[id]; ok && i.State != want {
			wrong = append(wrong, fmt.Errorf("%s is %s (%s), and %s was asked for", id, i.State, i.Message, want))
		}
		files := exists(e.agent.dir.instance(id))
		switch i.State {
		case compute.StateRunning:
			if vm != hypervisor.Running || !e.vms.sawUserData(id, h.userData[id]) {
				wrong = append(wrong, fmt.Errorf("%s should run with its user-data: VM %s", id, vm))
			}
		case compute.StateStopped, compute.StateError:
			if vm == hypervisor.Running || vm == hypervisor.Paused {
				wrong = append(wrong, fmt.Errorf("%s is %s (%s) and its VM %s", id, i.State, i.Message, vm))
			}
		case compute.StateTerminated:
			if vm != "none" || files {
				wrong = append(wrong, fmt.Errorf("%s is terminated: VM %s, directory: %v", id, vm, files))
			}
		default:
			wrong = append(wrong, fmt.Errorf("%s is still %s", id, i.State))
		}
	}
	for _, f := range e.files() {
		if strings.HasSuffix(f, ".tmp") || strings.Contains(f, partial) {
			wrong = append(wrong, fmt.Errorf("%s was left behind", f))
		}
	}
	if vms, err := e.vms.List(context.Background()); len(vms) > len(e.instances) || err != nil {
		wrong = append(wrong, fmt.Errorf("%d VMs, %v", len(vms), err))
	}
	return errors.Join(wrong...)
}
