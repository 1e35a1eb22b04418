package fake_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/outcrop-cloud/outcrop/internal/hypervisor"
	"github.com/outcrop-cloud/outcrop/internal/hypervisor/fake"
	"github.com/outcrop-cloud/outcrop/internal/hypervisor/hypertest"
)

func TestSuite(t *testing.T) {
	hypertest.Run(t, func(t *testing.T) (hypervisor.Hypervisor, hypertest.Fixture) {
		h := open(t, fake.Options{Dir: t.TempDir(), BootTime: time.Millisecond, ShutdownTime: time.Millisecond})
		dir, err := os.MkdirTemp("", "f") // short, for sockets
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { os.RemoveAll(dir) })
		disk := func(t *testing.T) hypervisor.Disk {
			path := filepath.Join(t.TempDir(), "disk")
			if err := os.WriteFile(path, nil, 0o600); err != nil {
				t.Fatal(err)
			}
			return hypervisor.Disk{Path: path, Format: "raw"}
		}
		return h, hypertest.Fixture{
			Dir: dir,
			Idle: func(t *testing.T) hypervisor.Disk {
				h.IgnoreShutdown("i-deafguest1", true)
				return disk(t)
			},
			Guest: disk,
			Up:    "login: ",
			Kill:  func(t *testing.T, id string) { check(t, h.Crash(id, "killed")) },
			Pause: func(t *testing.T, id string) { check(t, h.Pause(id, "no space left")) },
			Hang:  func(t *testing.T, id string) { h.Hang(fake.VerbShutdown, id, 1) },
			Restart: func(*testing.T) {
				h.SetDown(true)
				h.SetDown(false)
			},
		}
	})
}

func open(t *testing.T, o fake.Options) *fake.Hypervisor {
	t.Helper()
	h, err := fake.New(o)
	check(t, err)
	t.Cleanup(func() { h.Close() })
	return h
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func spec(id string) hypervisor.Spec {
	return hypervisor.Spec{
		ID: id, UUID: "ec200000-0000-4000-8000-000000000001", VCPUs: 1, MemoryBytes: 1 << 30,
		Disks:      []hypervisor.Disk{{Path: "/disk", Format: "qcow2"}},
		ConsoleLog: "/nowhere/log", ConsoleSocket: "/nowhere/socket",
	}
}

// TestVirtualTime: latencies, guests and hangs take no real time in a bubble.
func TestVirtualTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := open(t, fake.Options{
			BootTime:     20 * time.Second,
			ShutdownTime: time.Minute,
			Latency:      func(fake.Verb, string) time.Duration { return time.Second },
		})
		ctx, start := t.Context(), time.Now()
		check(t, h.Define(ctx, spec("i-1")))
		check(t, h.Start(ctx, "i-1"))
		check(t, h.Shutdown(ctx, "i-1"))
		if took := time.Since(start); took != 3*time.Second {
			t.Errorf("three calls took %v", took)
		}
		for want := hypervisor.Running; ; {
			vm, err := h.Get(ctx, "i-1")
			check(t, err)
			if vm.State != want {
				break
			}
		}
		if took := time.Since(start).Round(time.Second); took < 62*time.Second || took > 65*time.Second {
			t.Errorf("the guest was off after %v", took)
		}
		h.Hang(fake.VerbList, "", 2)
		_, err := h.List(ctx)
		check(t, err)
		start = time.Now()
		if _, err = h.List(ctx); !errors.Is(err, hypervisor.ErrUnavailable) || time.Since(start) != hypervisor.CallTimeout {
			t.Errorf("a hanging list ended after %v with %v", time.Since(start), err)
		}
	})
}

func TestFaults(t *testing.T) {
	h := open(t, fake.Options{})
	ctx := t.Context()
	check(t, h.Define(ctx, spec("i-1")))
	check(t, h.Define(ctx, spec("i-2")))
	broken := errors.New("broken")
	h.Fail(fake.VerbStart, "i-2", 2, broken)
	check(t, h.Start(ctx, "i-1"))
	check(t, h.Start(ctx, "i-2"))
	if err := h.Start(ctx, "i-2"); !errors.Is(err, broken) {
		t.Errorf("the second start ended with %v", err)
	}
	check(t, h.Start(ctx, "i-2"))
	if n := h.Calls(fake.VerbStart, "i-2"); n != 3 {
		t.Errorf("counted %d starts", n)
	}
	h.SetDown(true)
	if _, err := h.Get(ctx, "i-1"); !errors.Is(err, hypervisor.ErrUnavailable) {
		t.Errorf("while down: %v", err)
	}
	h.SetDown(false)
	check(t, h.PowerOff("i-1"))
	if err := h.Crash("i-1", "x"); err == nil {
		t.Error("a VM that is off crashed")
	}
}

// TestCutOff: a hypervisor that goes away ends the calls under way.
func TestCutOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := open(t, fake.Options{})
		h.Hang(fake.VerbInfo, "", 1)
		ended := make(chan error, 1)
		go func() {
			_, err := h.Info(context.Background())
			ended <- err
		}()
		synctest.Wait()
		h.SetDown(true)
		if err := <-ended; !errors.Is(err, hypervisor.ErrUnavailable) {
			t.Errorf("ended with %v", err)
		}
	})
}

// TestFound: an agent that was killed finds its VMs as they were.
func TestFound(t *testing.T) {
	dir := t.TempDir()
	first := open(t, fake.Options{Dir: dir})
	ctx := t.Context()
	for _, id := range []string{"i-off", "i-on", "i-gone"} {
		check(t, first.Define(ctx, spec(id)))
	}
	check(t, first.Start(ctx, "i-on"))
	check(t, first.Undefine(ctx, "i-gone"))
	want, err := first.List(ctx)
	check(t, err)
	second := open(t, fake.Options{Dir: dir})
	got, err := second.List(ctx)
	check(t, err)
	if len(got) != 2 || got[0] != want[0] || got[1] != want[1] {
		t.Errorf("found %+v, left %+v", got, want)
	}
	check(t, os.WriteFile(filepath.Join(dir, "i-bad.json"), []byte("{"), 0o600))
	if _, err := fake.New(fake.Options{Dir: dir}); err == nil {
		t.Error("a damaged file went unnoticed")
	}
}
