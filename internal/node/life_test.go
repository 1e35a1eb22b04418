package node

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/outcrop-cloud/outcrop/internal/api"
	"github.com/outcrop-cloud/outcrop/internal/compute"
	"github.com/outcrop-cloud/outcrop/internal/hypervisor"
	"github.com/outcrop-cloud/outcrop/internal/hypervisor/fake"
)

const (
	idA = "i-aaaaaaaaa"
	idB = "i-bbbbbbbbb"
)

// bubble runs a test with an agent on fake time.
func bubble(t *testing.T, test func(t *testing.T, e *env)) {
	synctest.Test(t, func(t *testing.T) {
		e := newEnv(t)
		e.up(t)
		defer func() {
			e.downAgent()
			e.vms.Close()
		}()
		test(t, e)
	})
}

// contract: U-03 U-11
func TestLaunchStopReplaceStart(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		e.create(idA, "first\x00\xff")
		e.reaches(t, idA, compute.StateRunning, 10*time.Second)
		if !e.vms.sawUserData(idA, "first\x00\xff") {
			t.Error("the guest did not get the bytes")
		}
		dir := filepath.Join(e.vms.dir, "instances", idA)
		for name, want := range map[string]os.FileMode{
			".": 0o711, "..": 0o711, "../../images": 0o700, fileSeed: 0o600, fileBase: 0o600, fileRoot: 0o600, fileState: 0o600,
		} {
			info, err := os.Stat(filepath.Join(dir, name))
			if err != nil {
				t.Error(err)
			} else if info.Mode().Perm() != want {
				t.Errorf("%s has mode %o, want %o", name, info.Mode().Perm(), want)
			}
		}

		e.stop(idA, 90*time.Second, false)
		e.reaches(t, idA, compute.StateStopped, 10*time.Second)
		if s := e.vm(idA); s != hypervisor.Off {
			t.Errorf("the VM is %s", s)
		}
		if n := e.vms.Calls(fake.VerbDestroy, idA); n != 0 {
			t.Errorf("the plug was pulled %d times, though the guest went down", n)
		}

		e.edit(func() { e.setUserData(idA, "second") })
		e.start(idA)
		e.reaches(t, idA, compute.StateRunning, 10*time.Second)
		if !e.vms.sawUserData(idA, "second") || e.vms.boots(idA) != 2 {
			t.Errorf("boot %d did not get the new bytes", e.vms.boots(idA))
		}

		e.terminate(idA)
		e.reaches(t, idA, compute.StateTerminated, 10*time.Second)
		<-time.After(time.Minute)
		if s := e.vm(idA); s != "none" {
			t.Errorf("the VM is still %s", s)
		}
		if files := e.files(); len(files) != 2 { // lock and the cached image
			t.Errorf("left behind: %v", files)
		}
		if n := len(e.lastSync().Instances); n != 0 {
			t.Errorf("%d VMs are still reported", n)
		}
	})
}

func TestSpec(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		e.create(idA, "x")
		e.reaches(t, idA, compute.StateRunning, 10*time.Second)
		w := e.agent.workers[idA]
		vols, err := readVolumes(w.order().desired)
		if err != nil {
			t.Fatal(err)
		}
		spec := w.spec(w.order().desired, vols, e.agent.dir.socket(idA))
		if err := spec.Validate(); err != nil {
			t.Error(err)
		}
		if !strings.HasPrefix(spec.UUID, "ec2") || spec.UUID != systemUUID(idA) || spec.UUID == systemUUID(idB) {
			t.Errorf("uuid %s", spec.UUID)
		}
		last := spec.Disks[len(spec.Disks)-1]
		if spec.Disks[0].Serial != e.instance(idA).RootVolumeID || last.Serial != "cidata" || !last.ReadOnly {
			t.Errorf("disks %+v", spec.Disks)
		}
	})
}

// lesson 20
func TestStopDeadlines(t *testing.T) {
	tests := []struct {
		name   string
		first  time.Duration
		later  func(e *env)
		within time.Duration
	}{
		{"the deadline passes", 20 * time.Second, nil, 21 * time.Second},
		{"a nearer deadline", time.Hour, func(e *env) { e.stop(idA, 5*time.Second, false) }, 16 * time.Second},
		{"a later one changes nothing", 20 * time.Second, func(e *env) { e.stop(idA, time.Hour, false) }, 21 * time.Second},
		{"force", time.Hour, func(e *env) { e.stop(idA, 0, true) }, 11 * time.Second},
		{"terminate", time.Hour, func(e *env) { e.terminate(idA) }, 11 * time.Second},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			bubble(t, func(t *testing.T, e *env) {
				e.vms.IgnoreShutdown(idA, true)
				e.create(idA, "x")
				e.reaches(t, idA, compute.StateRunning, 10*time.Second)
				began := time.Now()
				e.stop(idA, tt.first, false)
				if tt.later != nil {
					<-time.After(10 * time.Second)
					if e.vm(idA) != hypervisor.Running {
						t.Fatal("the plug was pulled too early")
					}
					tt.later(e)
				}
				e.until(t, "down", 2*time.Hour, func() bool { return e.vm(idA) != hypervisor.Running })
				if took := time.Since(began); took > tt.within {
					t.Errorf("took %v, want at most %v", took, tt.within)
				}
			})
		})
	}
}

// A hanging request to go down is cut off by force. lesson 20, lesson 10
func TestForceInterruptsHangingShutdown(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		e.create(idA, "x")
		e.reaches(t, idA, compute.StateRunning, 10*time.Second)
		e.vms.Hang(fake.VerbShutdown, idA, 1)
		e.stop(idA, time.Hour, false)
		<-time.After(5 * time.Second)
		began := time.Now()
		e.stop(idA, 0, true)
		e.reaches(t, idA, compute.StateStopped, 5*time.Second)
		if took := time.Since(began); took > 2*time.Second {
			t.Errorf("took %v", took)
		}
	})
}

// A guest that was asked while it booted is asked again.
func TestShutdownIsAskedAgain(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		e.vms.IgnoreShutdown(idA, true)
		e.create(idA, "x")
		e.reaches(t, idA, compute.StateRunning, 10*time.Second)
		e.stop(idA, 90*time.Second, false)
		<-time.After(5 * time.Second)
		e.vms.IgnoreShutdown(idA, false)
		e.reaches(t, idA, compute.StateStopped, 30*time.Second)
		if e.vms.Calls(fake.VerbDestroy, idA) != 0 {
			t.Error("the plug was pulled")
		}
	})
}

// Each epoch asks for itself.
func TestStopStartReboot(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		e.create(idA, "x")
		e.reaches(t, idA, compute.StateRunning, 10*time.Second)
		for range 2 {
			e.stop(idA, time.Minute, false)
			e.reaches(t, idA, compute.StateStopped, 4*time.Second)
			e.start(idA)
			e.reaches(t, idA, compute.StateRunning, 4*time.Second)
			e.reboot(idA, false)
			e.reaches(t, idA, compute.StateRunning, 4*time.Second)
		}
		if n := e.vms.Calls(fake.VerbDestroy, idA); n != 0 {
			t.Errorf("the plug was pulled %d times", n)
		}
	})
}

func TestReboot(t *testing.T) {
	for _, force := range []bool{false, true} {
		bubble(t, func(t *testing.T, e *env) {
			e.create(idA, "x")
			e.reaches(t, idA, compute.StateRunning, 10*time.Second)
			e.reboot(idA, force)
			e.reaches(t, idA, compute.StateRunning, 10*time.Second)
			if n := e.vms.boots(idA); n != 2 {
				t.Errorf("force %v: %d boots", force, n)
			}
			if asked := e.vms.Calls(fake.VerbShutdown, idA) > 0; asked == force {
				t.Errorf("force %v: the guest was asked: %v", force, asked)
			}
		})
	}
}

func TestGuestEndsByItself(t *testing.T) {
	tests := []struct {
		name   string
		strike func(e *env) error
		want   compute.InstanceState
		text   string
	}{
		{"power off", func(e *env) error { return e.vms.PowerOff(idA) }, compute.StateStopped, ""},
		{"crash", func(e *env) error { return e.vms.Crash(idA, "kernel panic") }, compute.StateError, "kernel panic"},
		{"removed by somebody, unseen", func(e *env) error {
			e.downAgent()
			defer e.up(t)
			return errors.Join(e.vms.Destroy(context.Background(), idA), e.vms.Undefine(context.Background(), idA))
		}, compute.StateError, "somebody removed"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			bubble(t, func(t *testing.T, e *env) {
				e.create(idA, "x")
				e.reaches(t, idA, compute.StateRunning, 10*time.Second)
				if err := tt.strike(e); err != nil {
					t.Fatal(err)
				}
				e.until(t, "seen", time.Minute, func() bool { return e.state(idA) != compute.StateRunning })
				<-time.After(time.Minute)
				if i := e.instance(idA); i.State != tt.want || !strings.Contains(i.Message, tt.text) {
					t.Errorf("state %s, message %q", i.State, i.Message)
				}
				if e.vms.boots(idA) != 1 {
					t.Error("it was started again")
				}
				if tt.want == compute.StateStopped && len(e.consoles[idA]) == 0 {
					t.Error("the last lines of its console were not sent")
				}
			})
		})
	}
}

// One "not found" of a VM that runs is not believed.
func TestAbsenceIsConfirmed(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		e.create(idA, "x")
		e.reaches(t, idA, compute.StateRunning, 10*time.Second)
		e.vms.Fail(fake.VerbGet, idA, 1, hypervisor.ErrNotFound)
		e.agent.wake(idA)
		<-time.After(time.Minute)
		if i := e.instance(idA); i.State != compute.StateRunning || e.vms.boots(idA) != 1 {
			t.Errorf("state %s (%s)", i.State, i.Message)
		}
	})
}

func TestPausedIsReported(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		e.create(idA, "x")
		e.reaches(t, idA, compute.StateRunning, 10*time.Second)
		if err := e.vms.Pause(idA, "no space left for disk vda"); err != nil {
			t.Fatal(err)
		}
		e.until(t, "paused", time.Minute, func() bool { return e.last(idA).Phase == "paused" })
		if m := e.instance(idA).Message; m != "no space left for disk vda" {
			t.Errorf("message %q", m)
		}
	})
}

// Terminate does not wait for a launch. lesson 19
func TestTerminateDuringImageFetch(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		e.onImage = func(ctx context.Context) { <-ctx.Done() }
		e.create(idA, "x")
		e.until(t, "fetching", 10*time.Second, func() bool { return e.last(idA).Step == stepImage })
		e.terminate(idA)
		e.reaches(t, idA, compute.StateTerminated, 2*time.Second)
	})
}

// contract: U-21, lesson 3
func TestUnnamedVMIsKept(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		e.create(idA, "x")
		e.reaches(t, idA, compute.StateRunning, 10*time.Second)
		e.edit(func() { delete(e.instances, idA) })
		for range 2 {
			<-time.After(5 * time.Minute)
			if o := e.last(idA); e.vm(idA) != hypervisor.Running || o.Phase != "running" || o.Epoch != 1 {
				t.Fatalf("VM %s, report %+v", e.vm(idA), o)
			}
			e.downAgent()
			e.up(t)
		}
		// Even with its directory lost it is found and reported.
		e.downAgent()
		if err := os.RemoveAll(filepath.Join(e.vms.dir, "instances", idA)); err != nil {
			t.Fatal(err)
		}
		e.up(t)
		<-time.After(5 * time.Minute)
		if o := e.last(idA); e.vm(idA) != hypervisor.Running || o.Phase != "running" {
			t.Errorf("VM %s, report %+v", e.vm(idA), o)
		}
	})
}

// A server that was restored from a backup has earlier epochs.
func TestEarlierEpochRestartsNothing(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		e.create(idA, "x")
		e.reaches(t, idA, compute.StateRunning, 10*time.Second)
		e.reboot(idA, true)
		e.reaches(t, idA, compute.StateRunning, 10*time.Second)
		e.edit(func() { e.instances[idA].Epoch, e.instances[idA].State = 1, compute.StateStarting })
		e.reaches(t, idA, compute.StateRunning, 10*time.Second)
		if e.vms.boots(idA) != 2 {
			t.Errorf("%d boots", e.vms.boots(idA))
		}
	})
}

// lesson 9
func TestUnreadableHypervisor(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		e.create(idA, "x")
		e.reaches(t, idA, compute.StateRunning, 10*time.Second)
		e.vms.SetDown(true)
		e.until(t, "unknown", time.Minute, func() bool { return e.lastSync().Unknown })
		finding := func(code string) bool {
			for _, f := range e.lastSync().Findings {
				if f.Code == code {
					return true
				}
			}
			return false
		}
		if !finding(findingUnreachable) {
			t.Errorf("findings %+v", e.lastSync().Findings)
		}
		e.downAgent()
		e.up(t) // it knows even less now
		<-time.After(time.Minute)
		if !e.lastSync().Unknown {
			t.Error("an agent that never saw the hypervisor claims to know")
		}
		e.vms.SetDown(false)
		e.until(t, "known again", 15*time.Second, func() bool {
			return !e.lastSync().Unknown && e.last(idA).Phase == "running" && !finding(findingUnreachable)
		})
		if e.state(idA) != compute.StateRunning || e.vms.boots(idA) != 1 {
			t.Errorf("state %s, %d boots", e.state(idA), e.vms.boots(idA))
		}
	})
}

// lesson 10
func TestStuckVMHoldsUpNobody(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		e.create(idA, "x")
		e.reaches(t, idA, compute.StateRunning, 10*time.Second)
		for n := range 20 {
			e.vms.Hang(fake.VerbGet, idA, n+1)
		}
		e.reboot(idA, true)
		began := time.Now()
		e.create(idB, "y")
		e.reaches(t, idB, compute.StateRunning, 2*time.Second)
		e.stop(idB, time.Minute, false)
		e.reaches(t, idB, compute.StateStopped, 5*time.Second)
		if took := time.Since(began); took > 8*time.Second {
			t.Errorf("took %v", took)
		}
		e.reaches(t, idA, compute.StateRunning, time.Hour)
	})
}

// What retrying cannot cure is said at once, what it can is retried.
func TestFailures(t *testing.T) {
	t.Run("refused", func(t *testing.T) {
		bubble(t, func(t *testing.T, e *env) {
			e.vms.Fail(fake.VerbDefine, idA, 1, hypervisor.ErrRefused)
			e.create(idA, "x")
			e.reaches(t, idA, compute.StateError, 5*time.Second)
			e.start(idA)
			e.reaches(t, idA, compute.StateRunning, 5*time.Second)
		})
	})
	t.Run("unavailable", func(t *testing.T) {
		bubble(t, func(t *testing.T, e *env) {
			for n := range 3 {
				e.vms.Fail(fake.VerbStart, idA, n+1, hypervisor.ErrUnavailable)
			}
			e.create(idA, "x")
			e.reaches(t, idA, compute.StateRunning, 30*time.Second)
			if e.vms.boots(idA) != 1 {
				t.Errorf("%d boots", e.vms.boots(idA))
			}
		})
	})
	t.Run("delays grow", func(t *testing.T) {
		bubble(t, func(t *testing.T, e *env) {
			for n := range 6 {
				e.vms.Fail(fake.VerbStart, idA, n+1, errors.New("odd"))
			}
			began := time.Now()
			e.create(idA, "x")
			e.until(t, "said", time.Second, func() bool { o := e.last(idA); return o.Step == stepBoot && strings.Contains(o.Message, "odd") })
			e.reaches(t, idA, compute.StateRunning, 2*time.Minute)
			if took := time.Since(began); took < 15*time.Second {
				t.Errorf("7 tries in %v", took)
			}
		})
	})
	t.Run("a new order does not wait for an old delay", func(t *testing.T) {
		bubble(t, func(t *testing.T, e *env) {
			for n := range 50 {
				e.vms.Fail(fake.VerbStart, idA, n+1, errors.New("odd"))
			}
			e.create(idA, "x")
			<-time.After(2 * time.Minute)
			e.terminate(idA)
			e.reaches(t, idA, compute.StateTerminated, 2*time.Second)
		})
	})
	t.Run("lost root volume", func(t *testing.T) {
		bubble(t, func(t *testing.T, e *env) {
			e.create(idA, "x")
			e.reaches(t, idA, compute.StateRunning, 10*time.Second)
			e.stop(idA, time.Minute, false)
			e.reaches(t, idA, compute.StateStopped, 10*time.Second)
			if err := os.Remove(filepath.Join(e.vms.dir, "instances", idA, fileRoot)); err != nil {
				t.Fatal(err)
			}
			e.start(idA)
			e.reaches(t, idA, compute.StateError, 10*time.Second)
			if m := e.instance(idA).Message; !strings.Contains(m, "is missing") {
				t.Errorf("message %q", m)
			}
		})
	})
	t.Run("lost folder", func(t *testing.T) { // its disk, or a machine with a new system
		bubble(t, func(t *testing.T, e *env) {
			e.create(idA, "x")
			e.reaches(t, idA, compute.StateRunning, 10*time.Second)
			e.stop(idA, time.Minute, false)
			e.reaches(t, idA, compute.StateStopped, 10*time.Second)
			if err := os.RemoveAll(filepath.Join(e.vms.dir, "instances", idA)); err != nil {
				t.Fatal(err)
			}
			e.start(idA)
			e.reaches(t, idA, compute.StateError, 10*time.Second)
			if m := e.instance(idA).Message; !strings.Contains(m, "is missing") {
				t.Errorf("message %q", m)
			}
			if n := e.vms.boots(idA); n != 1 {
				t.Errorf("%d boots, the last with an empty disk", n)
			}
		})
	})
	t.Run("damaged mark", func(t *testing.T) {
		bubble(t, func(t *testing.T, e *env) {
			e.create(idA, "x")
			e.reaches(t, idA, compute.StateRunning, 10*time.Second)
			if err := os.WriteFile(filepath.Join(e.vms.dir, "instances", idA, fileState), []byte("{"), 0o600); err != nil {
				t.Fatal(err)
			}
			e.reboot(idA, true)
			e.until(t, "unknown", time.Minute, func() bool { return e.last(idA).Phase == "unknown" })
			if e.vm(idA) != hypervisor.Running {
				t.Error("it was not left alone")
			}
			e.terminate(idA)
			e.reaches(t, idA, compute.StateTerminated, time.Minute)
		})
	})
}

// Boots of emulated guests follow one another.
func TestBootsAreBounded(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		limit := cap(e.agent.boots.slots)
		for i := range limit + 2 {
			e.create("i-"+strings.Repeat(string(rune('a'+i)), 9), "x")
		}
		<-time.After(2 * time.Second)
		running, waiting := 0, 0
		for _, o := range e.lastSync().Instances {
			if o.Phase == "running" {
				running++
			}
			if o.Step == stepBoot && strings.Contains(o.Message, "waits") {
				waiting++
			}
		}
		if running != limit || waiting != 2 {
			t.Errorf("%d running, %d waiting, limit %d", running, waiting, limit)
		}
		e.until(t, "all", 10*time.Second, func() bool {
			return !slices.ContainsFunc(e.lastSync().Instances, func(o api.ObservedInstance) bool { return o.Phase != "running" })
		})
	})
}
