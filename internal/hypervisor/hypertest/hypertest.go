// Package hypertest says what a hypervisor.Hypervisor does: an implementation
// is right when it passes Run.
package hypertest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/outcrop-cloud/outcrop/internal/hypervisor"
)

// Fixture is what the suite needs beside the hypervisor itself. All functions
// are set.
type Fixture struct {
	// Dir is a directory for consoles that the hypervisor can reach; paths in
	// it are short enough for a socket.
	Dir string
	// Idle makes a disk whose guest runs, hears nothing and says nothing. It
	// costs little.
	Idle func(t *testing.T) hypervisor.Disk
	// Guest makes a disk with a guest that prints Up to its console when it is
	// up, powers off when it is asked to, and answers what is typed to its
	// console. It may skip the test.
	Guest func(t *testing.T) hypervisor.Disk
	// Up is what the guest prints when it is up.
	Up string
	// Kill ends the running VM as a crash of its process would.
	Kill func(t *testing.T, id string)
	// Pause stops the VM's CPUs for a reason that needs somebody.
	Pause func(t *testing.T, id string)
	// Hang lets the VM leave Shutdown and Reset unanswered, and nothing else
	// but that VM.
	Hang func(t *testing.T, id string)
	// Restart restarts the hypervisor; VMs go on.
	Restart func(t *testing.T)
	// Foreign makes a VM called outcrop-<id> that is not ours. It is nil where
	// there can be none.
	Foreign func(t *testing.T, id string)
}

// limit is how long anything in the suite may take. It is generous: guests boot
// under emulation on busy machines.
const limit = 2 * time.Minute

// suite is one hypervisor under test.
type suite struct {
	hypervisor.Hypervisor
	Fixture
	tag string // makes ids of one test its own
}

// Run runs the suite. open is called for each test and may return the same
// hypervisor again.
func Run(t *testing.T, open func(t *testing.T) (hypervisor.Hypervisor, Fixture)) {
	tests := []struct {
		name string
		run  func(*testing.T, suite)
	}{
		{"Info", testInfo},
		{"Unknown", testUnknown},
		{"Define", testDefine},
		{"Refused", testRefused},
		{"Life", testLife},
		{"Events", testEvents},
		{"List", testList},
		{"Crash", testCrash},
		{"Pause", testPause},
		{"DeafGuest", testDeafGuest},
		{"Hang", testHang},
		{"Cancelled", testCancelled},
		{"Restart", testRestart},
		{"Foreign", testForeign},
		{"Guest", testGuest},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			h, f := open(t)
			test.run(t, suite{Hypervisor: h, Fixture: f, tag: strings.ToLower(test.name)})
		})
	}
}

// deadline is the context of one call that must succeed.
func deadline(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	t.Cleanup(cancel)
	return ctx
}

// spec makes the spec of a VM of this test and lets it vanish afterwards.
func (s suite) spec(t *testing.T, n int, disk hypervisor.Disk) hypervisor.Spec {
	id := fmt.Sprintf("i-%s%d", s.tag, n)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), limit)
		defer cancel()
		if err := s.Destroy(ctx, id); err != nil && !errors.Is(err, hypervisor.ErrNotFound) {
			t.Errorf("clean up: %v", err)
		}
		if err := s.Undefine(ctx, id); err != nil {
			t.Errorf("clean up: %v", err)
		}
	})
	return hypervisor.Spec{
		ID:            id,
		UUID:          fmt.Sprintf("ec2%05x-0000-4000-8000-%012x", n, hash(s.tag)),
		VCPUs:         1,
		MemoryBytes:   128 << 20,
		Disks:         []hypervisor.Disk{disk},
		ConsoleLog:    filepath.Join(s.Dir, id+".log"),
		ConsoleSocket: filepath.Join(s.Dir, id+".sock"),
	}
}

func hash(s string) (h uint32) {
	for _, c := range []byte(s) {
		h = h*31 + uint32(c)
	}
	return h
}

// defined returns a VM that is off; running one that runs.
func (s suite) defined(t *testing.T, n int, disk hypervisor.Disk) hypervisor.Spec {
	t.Helper()
	spec := s.spec(t, n, disk)
	must(t, "define", s.Define(deadline(t), spec))
	return spec
}

func (s suite) running(t *testing.T, n int, disk hypervisor.Disk) hypervisor.VM {
	t.Helper()
	spec := s.defined(t, n, disk)
	must(t, "start", s.Start(deadline(t), spec.ID))
	return s.is(t, spec.ID, hypervisor.Running)
}

// get reads a VM that must be there.
func (s suite) get(t *testing.T, id string) hypervisor.VM {
	t.Helper()
	vm, err := s.Get(deadline(t), id)
	must(t, "get", err)
	if vm.ID != id {
		t.Fatalf("get %s returned VM %q", id, vm.ID)
	}
	if alive := vm.State == hypervisor.Running || vm.State == hypervisor.Paused; alive != (vm.BootID != "") {
		t.Errorf("VM %s is %s with boot id %q", id, vm.State, vm.BootID)
	}
	return vm
}

// is reads a VM that must be in a state already.
func (s suite) is(t *testing.T, id string, want hypervisor.State) hypervisor.VM {
	t.Helper()
	vm := s.get(t, id)
	if vm.State != want {
		t.Fatalf("VM %s is %s (%s), want %s", id, vm.State, vm.Reason, want)
	}
	return vm
}

// becomes waits until a VM is in a state.
func (s suite) becomes(t *testing.T, id string, want hypervisor.State) hypervisor.VM {
	t.Helper()
	return s.until(t, id, string(want), func(vm hypervisor.VM) bool { return vm.State == want })
}

func (s suite) until(t *testing.T, id, what string, ok func(hypervisor.VM) bool) hypervisor.VM {
	t.Helper()
	var vm hypervisor.VM
	poll(t, fmt.Sprintf("VM %s to be %s", id, what), func() bool {
		vm = s.get(t, id)
		return ok(vm)
	})
	return vm
}

// poll looks again and again until ok.
func poll(t *testing.T, what string, ok func() bool) {
	t.Helper()
	over := time.After(limit)
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-tick.C:
		case <-over:
			t.Fatalf("waited in vain for %s", what)
		}
	}
}

// event waits for an event that names a VM, or for "any".
func (s suite) event(t *testing.T, ids ...string) {
	t.Helper()
	over := time.After(limit)
	for {
		select {
		case got := <-s.Events():
			if slices.Contains(ids, got) {
				return
			}
		case <-over:
			t.Fatalf("no event for any of %q", ids)
		}
	}
}

// logged waits until a console log holds a text.
func logged(t *testing.T, path, text string) {
	t.Helper()
	poll(t, fmt.Sprintf("%q in %s", text, path), func() bool {
		content, err := os.ReadFile(path)
		return err == nil && strings.Contains(string(content), text)
	})
}

func must(t *testing.T, what string, err error) {
	t.Helper()
	if err != nil {
		t.Fatalf("%s: %v", what, err)
	}
}

func wants(t *testing.T, what string, err, kind error) {
	t.Helper()
	if !errors.Is(err, kind) {
		t.Errorf("%s: got error %v, want %v", what, err, kind)
	}
}
