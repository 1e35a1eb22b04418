package host

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/outcrop-cloud/outcrop/internal/compute"
)

// stage is a machine below a folder, with a systemctl that notes how it was called
// and does what its control group would see.
func stage(t *testing.T, script string) *Systemd {
	t.Helper()
	root := t.TempDir()
	for _, dir := range []string{"run/systemd/system", "sys/fs/cgroup/system.slice"} {
		if err := os.MkdirAll(filepath.Join(root, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	s := &Systemd{Root: root, Program: filepath.Join(root, "systemctl")}
	if err := os.WriteFile(s.Program, fmt.Appendf(nil, "#!/bin/sh\nroot=%s\necho \"$*\" >>$root/calls\n%s\n", root, script), 0o755); err != nil {
		t.Fatal(err)
	}
	return s
}

func calls(t *testing.T, s *Systemd) string {
	t.Helper()
	b, err := os.ReadFile(s.path("calls"))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	return string(b)
}

// contract: N-18 N-19
func TestSystemdPower(t *testing.T) {
	s := stage(t, "")
	for _, v := range []compute.PowerVerb{compute.PowerShutdown, compute.PowerReboot} {
		if err := s.Power(t.Context(), v); err != nil {
			t.Error(err)
		}
	}
	if err := s.Power(t.Context(), "hibernate"); err == nil {
		t.Error("it does what it does not know")
	}
	if got, want := calls(t, s), "--no-ask-password poweroff\n--no-ask-password reboot\n"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	s = stage(t, "echo 'Operation inhibited by \"backup\"'\necho 'ask it' >&2; exit 1")
	if err := s.Power(t.Context(), compute.PowerReboot); err == nil || !strings.Contains(err.Error(), `Operation inhibited by "backup" ask it`) {
		t.Errorf("%v", err)
	}
}

// Where systemd does not run, or where it may not be asked, nothing is called.
// contract: N-10 N-19
func TestNoSystemd(t *testing.T) {
	s := stage(t, "")
	if err := os.Remove(s.path("run/systemd/system")); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(s.Power(t.Context(), compute.PowerReboot)); !errors.Is(err, ErrNoSystemd) {
		t.Error(err)
	}
	if err := s.KeepMemory(t.Context(), 1); !errors.Is(err, ErrNoSystemd) {
		t.Error(err)
	}
	if got := calls(t, s); got != "" {
		t.Errorf("called %q", got)
	}
	if (None{}).Power(t.Context(), compute.PowerReboot) == nil || (None{}).KeepMemory(t.Context(), 1) == nil || (None{}).Wake(card) == nil {
		t.Error("a machine that nobody may act on is acted on")
	}
}

// asIs stores what set-property is told, in whole pages, as the kernel does.
const asIs = `for arg; do case $arg in
MemoryMin=*) n=${arg#*=}; echo $((n / 4096 * 4096)) >$root/sys/fs/cgroup/system.slice/memory.min;;
MemoryLow=*) n=${arg#*=}; echo $((n / 4096 * 4096)) >$root/sys/fs/cgroup/system.slice/memory.low;;
esac; done`

// contract: N-10
func TestSystemdKeepsMemory(t *testing.T) {
	if os.Getpagesize() != 4096 {
		t.Skip("the script knows pages of 4 KiB")
	}
	s := stage(t, asIs)
	for _, n := range []int64{6 << 30, 4097, 0} {
		if err := s.KeepMemory(t.Context(), n); err != nil {
			t.Errorf("%d bytes: %v", n, err)
		}
	}
	if got, want := calls(t, s), "--no-ask-password set-property --runtime system.slice MemoryMin=6442450944 MemoryLow=6442450944\n"; !strings.HasPrefix(got, want) {
		t.Errorf("%q, want %q first", got, want)
	}

	s = stage(t, "") // no memory controller
	if err := s.KeepMemory(t.Context(), 1<<30); err == nil || !strings.Contains(err.Error(), "version 2 of control groups") {
		t.Errorf("%v", err)
	}
	s = stage(t, "echo 0 >$root/sys/fs/cgroup/system.slice/memory.min")
	if err := s.KeepMemory(t.Context(), 1<<30); err == nil || !strings.Contains(err.Error(), "memory.min of system.slice is 0 in place of 1073741824") {
		t.Errorf("%v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := s.KeepMemory(ctx, 1<<30); err == nil {
		t.Error("a call that was cut off succeeds")
	}
}

// contract: N-18
func TestRecord(t *testing.T) {
	file := filepath.Join(t.TempDir(), "new", "host.log")
	h, err := Open("record", file)
	if err != nil {
		t.Fatal(err)
	}
	for _, err := range []error{h.Power(t.Context(), compute.PowerReboot), h.KeepMemory(t.Context(), 0), h.Wake(card)} {
		if err != nil {
			t.Error(err)
		}
	}
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(string(b)), "\n")
	var power, memory, wake Recorded
	if len(lines) != 3 || json.Unmarshal([]byte(lines[0]), &power) != nil || json.Unmarshal([]byte(lines[1]), &memory) != nil || json.Unmarshal([]byte(lines[2]), &wake) != nil {
		t.Fatalf("%q", b)
	}
	if power.Power != compute.PowerReboot || power.At.IsZero() || power.KeepMemory != nil || memory.KeepMemory == nil || *memory.KeepMemory != 0 || memory.Power != "" || wake.Wake != card.String() {
		t.Errorf("%+v, %+v", power, memory)
	}
}

func TestOpen(t *testing.T) {
	for kind, want := range map[string]string{"": "*host.Systemd", "systemd": "*host.Systemd", "record": "host.Record", "none": "host.None", "real": "<nil>"} {
		h, err := Open(kind, "file")
		if got := fmt.Sprintf("%T", h); got != want || (err != nil) != (want == "<nil>") {
			t.Errorf("%q: %s, %v", kind, got, err)
		}
	}
}
