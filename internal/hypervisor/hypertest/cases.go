package hypertest

import (
	"bufio"
	"context"
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/outcrop-cloud/outcrop/internal/hypervisor"
)

func testInfo(t *testing.T, s suite) {
	info, err := s.Info(deadline(t))
	must(t, "info", err)
	if info.Name == "" || info.Version == "" {
		t.Errorf("nameless: %+v", info)
	}
	if info.Acceleration != hypervisor.KVM && info.Acceleration != hypervisor.TCG {
		t.Errorf("acceleration %q", info.Acceleration)
	}
}

func testUnknown(t *testing.T, s suite) {
	ctx, id := deadline(t), "i-nobody"
	_, err := s.Get(ctx, id)
	wants(t, "get", err, hypervisor.ErrNotFound)
	_, err = s.Console(ctx, id)
	wants(t, "console", err, hypervisor.ErrNotFound)
	wants(t, "start", s.Start(ctx, id), hypervisor.ErrNotFound)
	wants(t, "shutdown", s.Shutdown(ctx, id), hypervisor.ErrNotFound)
	wants(t, "destroy", s.Destroy(ctx, id), hypervisor.ErrNotFound)
	wants(t, "reset", s.Reset(ctx, id), hypervisor.ErrNotFound)
	must(t, "undefine", s.Undefine(ctx, id))
}

func testDefine(t *testing.T, s suite) {
	ctx, spec := deadline(t), s.spec(t, 1, s.Idle(t))
	for range 2 {
		must(t, "define", s.Define(ctx, spec))
		s.is(t, spec.ID, hypervisor.Off)
	}
	spec.VCPUs, spec.MemoryBytes = 2, 256<<20
	must(t, "define bigger", s.Define(ctx, spec))
	for range 2 {
		must(t, "undefine", s.Undefine(ctx, spec.ID))
		_, err := s.Get(ctx, spec.ID)
		wants(t, "get", err, hypervisor.ErrNotFound)
	}
	if _, err := os.Stat(spec.Disks[0].Path); err != nil {
		t.Errorf("undefine took a disk with it: %v", err)
	}
}

func testRefused(t *testing.T, s suite) {
	good := s.spec(t, 1, s.Idle(t))
	for name, spoil := range map[string]func(*hypervisor.Spec){
		"id":      func(s *hypervisor.Spec) { s.ID = "../x" },
		"uuid":    func(s *hypervisor.Spec) { s.UUID = "ec2" },
		"vcpus":   func(s *hypervisor.Spec) { s.VCPUs = 0 },
		"memory":  func(s *hypervisor.Spec) { s.MemoryBytes = -1 },
		"no disk": func(s *hypervisor.Spec) { s.Disks = nil },
		"path":    func(s *hypervisor.Spec) { s.Disks = []hypervisor.Disk{{Path: "a", Format: "raw"}} },
		"format":  func(s *hypervisor.Spec) { s.Disks = []hypervisor.Disk{{Path: "/a", Format: "vmdk"}} },
		"serial": func(s *hypervisor.Spec) {
			s.Disks = []hypervisor.Disk{{Path: "/a", Format: "raw", Serial: strings.Repeat("v", 21)}}
		},
		"mac":    func(s *hypervisor.Spec) { s.NICs = []hypervisor.NIC{{Tap: "t", MAC: "52:54:00:00:00:AA", MTU: 1500}} },
		"tap":    func(s *hypervisor.Spec) { s.NICs = []hypervisor.NIC{{MAC: "52:54:00:00:00:aa", MTU: 1500}} },
		"mtu":    func(s *hypervisor.Spec) { s.NICs = []hypervisor.NIC{{Tap: "t", MAC: "52:54:00:00:00:aa"}} },
		"log":    func(s *hypervisor.Spec) { s.ConsoleLog = "log" },
		"socket": func(s *hypervisor.Spec) { s.ConsoleSocket = "/" + strings.Repeat("s", 107) },
	} {
		bad := good
		spoil(&bad)
		wants(t, "define with a bad "+name, s.Define(deadline(t), bad), hypervisor.ErrRefused)
	}
	_, err := s.Get(deadline(t), good.ID)
	wants(t, "get what was refused", err, hypervisor.ErrNotFound)
}

// testLife goes through every verb in every state. The guest hears no button.
func testLife(t *testing.T, s suite) {
	ctx := deadline(t)
	spec := s.defined(t, 1, s.Idle(t))
	id := spec.ID
	off := func() {
		t.Helper()
		must(t, "shut down what is off", s.Shutdown(ctx, id))
		must(t, "destroy what is off", s.Destroy(ctx, id))
		wants(t, "reset what is off", s.Reset(ctx, id), hypervisor.ErrRefused)
		_, err := s.Console(ctx, id)
		wants(t, "console of what is off", err, hypervisor.ErrRefused)
		s.is(t, id, hypervisor.Off)
	}
	off()
	boots := make(map[string]bool)
	for range 2 {
		must(t, "start", s.Start(ctx, id))
		boot := s.is(t, id, hypervisor.Running).BootID
		boots[boot] = true
		same := func(after string) {
			t.Helper()
			if vm := s.is(t, id, hypervisor.Running); vm.BootID != boot {
				t.Errorf("after %s the boot id is %q, was %q", after, vm.BootID, boot)
			}
		}
		must(t, "start again", s.Start(ctx, id))
		same("a second start")
		must(t, "define while running", s.Define(ctx, spec))
		same("a define")
		wants(t, "undefine while running", s.Undefine(ctx, id), hypervisor.ErrRefused)
		same("a refused undefine")
		must(t, "reset", s.Reset(ctx, id))
		same("a reset")
		must(t, "destroy", s.Destroy(ctx, id))
		off()
	}
	if len(boots) != 2 {
		t.Errorf("two starts have boot ids %v", boots)
	}
}

func testEvents(t *testing.T, s suite) {
	ctx := deadline(t)
	id := s.defined(t, 1, s.Idle(t)).ID
	must(t, "start", s.Start(ctx, id))
	s.event(t, id)
	must(t, "destroy", s.Destroy(ctx, id))
	s.event(t, id)
	must(t, "start", s.Start(ctx, id))
	s.event(t, id)
	s.Kill(t, id)
	s.event(t, id)
	s.becomes(t, id, hypervisor.Crashed)
}

// testList: a list is complete, whatever state a VM is in.
func testList(t *testing.T, s suite) { // lesson 9
	s.defined(t, 1, s.Idle(t))
	s.running(t, 2, s.Idle(t))
	list, err := s.List(deadline(t))
	must(t, "list", err)
	found := make(map[string]hypervisor.VM)
	for _, vm := range list {
		if _, twice := found[vm.ID]; twice {
			t.Errorf("VM %s is listed twice", vm.ID)
		}
		found[vm.ID] = vm
	}
	for _, id := range []string{"i-list1", "i-list2"} {
		if got, want := found[id], s.get(t, id); got != want {
			t.Errorf("listed %+v, got %+v", got, want)
		}
	}
}

func testCrash(t *testing.T, s suite) {
	vm := s.running(t, 1, s.Idle(t))
	s.Kill(t, vm.ID)
	if got := s.becomes(t, vm.ID, hypervisor.Crashed); got.Reason == "" {
		t.Error("a crash without a reason")
	}
	must(t, "shut down what crashed", s.Shutdown(deadline(t), vm.ID))
	must(t, "start", s.Start(deadline(t), vm.ID))
	if got := s.is(t, vm.ID, hypervisor.Running); got.BootID == vm.BootID || got.Reason != "" {
		t.Errorf("after a crash and a start: %+v, before %+v", got, vm)
	}
}

func testPause(t *testing.T, s suite) {
	vm := s.running(t, 1, s.Idle(t))
	s.Pause(t, vm.ID)
	paused := s.becomes(t, vm.ID, hypervisor.Paused)
	if paused.Reason == "" || paused.BootID != vm.BootID {
		t.Errorf("paused: %+v, before %+v", paused, vm)
	}
	must(t, "start", s.Start(deadline(t), vm.ID))
	if got := s.is(t, vm.ID, hypervisor.Running); got.BootID != vm.BootID || got.Reason != "" {
		t.Errorf("after the pause: %+v, before %+v", got, vm)
	}
	s.Pause(t, vm.ID)
	must(t, "destroy what is paused", s.Destroy(deadline(t), vm.ID))
	s.is(t, vm.ID, hypervisor.Off)
}

// testDeafGuest: destroying does not wait for a shutdown that gets nowhere.
func testDeafGuest(t *testing.T, s suite) { // lesson 20
	vm := s.running(t, 1, s.Idle(t))
	must(t, "shut down", s.Shutdown(deadline(t), vm.ID))
	s.is(t, vm.ID, hypervisor.Running)
	must(t, "destroy", s.Destroy(deadline(t), vm.ID))
	s.is(t, vm.ID, hypervisor.Off)
}

// testHang: a VM that does not answer costs the calls to itself, no others, and
// can be destroyed.
func testHang(t *testing.T, s suite) { // lesson 10
	stuck, other := s.running(t, 1, s.Idle(t)), s.running(t, 2, s.Idle(t))
	s.Hang(t, stuck.ID)
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	start, called := time.Now(), make(chan error, 1)
	go func() { called <- s.Shutdown(ctx, stuck.ID) }()
	must(t, "reset another VM meanwhile", s.Reset(deadline(t), other.ID))
	_, err := s.List(deadline(t))
	must(t, "list meanwhile", err)
	s.get(t, stuck.ID)
	err = <-called
	wants(t, "shut down a VM that hangs", err, hypervisor.ErrUnavailable)
	if took := time.Since(start); took > 10*time.Second {
		t.Errorf("a call with a deadline of a second took %v", took)
	}
	must(t, "destroy a VM that hangs", s.Destroy(deadline(t), stuck.ID))
	s.is(t, stuck.ID, hypervisor.Off)
}

func testCancelled(t *testing.T, s suite) {
	id := s.defined(t, 1, s.Idle(t)).ID
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	wants(t, "start", s.Start(ctx, id), hypervisor.ErrUnavailable)
	_, err := s.List(ctx)
	wants(t, "list", err, hypervisor.ErrUnavailable)
	s.is(t, id, hypervisor.Off)
}

func testRestart(t *testing.T, s suite) {
	vm, off := s.running(t, 1, s.Idle(t)), s.defined(t, 2, s.Idle(t))
	s.Restart(t)
	s.event(t, "")
	if got := s.is(t, vm.ID, hypervisor.Running); got.BootID != vm.BootID {
		t.Errorf("boot id %q became %q", vm.BootID, got.BootID)
	}
	s.is(t, off.ID, hypervisor.Off)
	must(t, "destroy", s.Destroy(deadline(t), vm.ID))
	s.event(t, vm.ID)
	s.is(t, vm.ID, hypervisor.Off)
}

func testForeign(t *testing.T, s suite) {
	if s.Foreign == nil {
		return
	}
	ctx, spec := deadline(t), s.spec(t, 1, s.Idle(t))
	s.Foreign(t, spec.ID)
	list, err := s.List(ctx)
	must(t, "list", err)
	for _, vm := range list {
		if vm.ID == spec.ID {
			t.Error("a VM that is not ours is listed")
		}
	}
	_, err = s.Get(ctx, spec.ID)
	wants(t, "get", err, hypervisor.ErrNotFound)
	wants(t, "start", s.Start(ctx, spec.ID), hypervisor.ErrNotFound)
	wants(t, "destroy", s.Destroy(ctx, spec.ID), hypervisor.ErrNotFound)
	wants(t, "define over it", s.Define(ctx, spec), hypervisor.ErrRefused)
	must(t, "undefine", s.Undefine(ctx, spec.ID))
}

// testGuest needs an operating system in the VM.
func testGuest(t *testing.T, s suite) {
	ctx := deadline(t)
	spec := s.defined(t, 1, s.Guest(t))
	must(t, "start", s.Start(ctx, spec.ID))
	boot := s.is(t, spec.ID, hypervisor.Running).BootID
	logged(t, spec.ConsoleLog, s.Up)

	typed, err := s.Console(ctx, spec.ID)
	must(t, "console", err)
	_, err = s.Console(ctx, spec.ID)
	wants(t, "a second console", err, hypervisor.ErrRefused)
	answers(t, typed)
	must(t, "close console", typed.Close())
	_ = typed.Close()
	typed, err = s.Console(ctx, spec.ID)
	must(t, "console again", err)
	answers(t, typed)

	if vm := s.is(t, spec.ID, hypervisor.Running); vm.BootID != boot {
		t.Errorf("boot id %q became %q", boot, vm.BootID)
	}
	must(t, "shut down", s.Shutdown(ctx, spec.ID))
	s.becomes(t, spec.ID, hypervisor.Off)
	if line, err := bufio.NewReader(typed).ReadString(0); err == nil {
		t.Errorf("the console of a VM that is off says %q", line)
	}
	_ = typed.Close()

	before, err := os.ReadFile(spec.ConsoleLog)
	must(t, "read console log", err)
	must(t, "start again", s.Start(ctx, spec.ID))
	poll(t, "more in the console log", func() bool {
		after, err := os.ReadFile(spec.ConsoleLog)
		return err == nil && len(after) > len(before) && strings.HasPrefix(string(after), string(before))
	})
}

// answers types a line and reads until it comes back.
func answers(t *testing.T, console interface {
	Read([]byte) (int, error)
	Write([]byte) (int, error)
}) {
	t.Helper()
	const line = "hello-console"
	if _, err := console.Write([]byte(line + "\n")); err != nil {
		t.Fatalf("type: %v", err)
	}
	heard := make(chan error, 1)
	go func() {
		var got strings.Builder
		buf := make([]byte, 512)
		for {
			n, err := console.Read(buf)
			got.Write(buf[:n])
			if strings.Contains(got.String(), line) {
				heard <- nil
				return
			}
			if err != nil {
				heard <- errors.Join(errors.New("heard "+got.String()), err)
				return
			}
		}
	}()
	select {
	case err := <-heard:
		must(t, "listen", err)
	case <-time.After(limit):
		t.Fatal("the console does not answer")
	}
}
