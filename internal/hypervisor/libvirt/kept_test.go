package libvirt

import (
	"encoding/json"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/outcrop-cloud/outcrop/internal/hypervisor"
	"github.com/outcrop-cloud/outcrop/internal/hypervisor/libvirt/libvirtdtest"
)

func TestVerdictHolds(t *testing.T) {
	now := time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)
	good := verdict{"k", hypervisor.KVM, now}
	for name, c := range map[string]struct {
		change func(*verdict)
		key    string
		want   bool
	}{
		"same host":      {func(*verdict) {}, "k", true},
		"tcg":            {func(v *verdict) { v.Acceleration = hypervisor.TCG }, "k", true},
		"a day later":    {func(v *verdict) { v.At = now.Add(-keptFor) }, "k", false},
		"almost":         {func(v *verdict) { v.At = now.Add(-keptFor + time.Second) }, "k", true},
		"from tomorrow":  {func(v *verdict) { v.At = now.Add(time.Second) }, "k", false},
		"another host":   {func(*verdict) {}, "other", false},
		"no key":         {func(v *verdict) { v.Key = "" }, "", false},
		"no such kind":   {func(v *verdict) { v.Acceleration = "xen" }, "k", false},
		"nothing of all": {func(v *verdict) { *v = verdict{} }, "k", false},
	} {
		v := good
		c.change(&v)
		if got := v.holds(c.key, now); got != c.want {
			t.Errorf("%s: holds is %v", name, got)
		}
	}
}

// Whatever the answer depends on makes another key.
func TestDependencies(t *testing.T) {
	base := dependencies{"boot", "versions", "capabilities", "kvm", "settings"}
	seen := map[string]bool{base.key(): true}
	for i, d := range []dependencies{
		{"boot2", "versions", "capabilities", "kvm", "settings"}, {"boot", "versions2", "capabilities", "kvm", "settings"},
		{"boot", "versions", "capabilities2", "kvm", "settings"}, {"boot", "versions", "capabilities", "kvm2", "settings"},
		{"boot", "versions", "capabilities", "kvm", "settings2"}, {"boot", "versionscapabilities", "", "kvm", "settings"},
	} {
		if k := d.key(); k == "" || seen[k] {
			t.Errorf("%d: a change is not seen", i)
		} else {
			seen[k] = true
		}
	}
	if base.boot = ""; base.key() != "" {
		t.Error("a key without knowing the boot")
	}
}

func TestFileState(t *testing.T) {
	path := filepath.Join(t.TempDir(), "kvm")
	seen := map[string]string{}
	look := func(what string) {
		t.Helper()
		s := fileState(path)
		if before, ok := seen[s]; ok {
			t.Errorf("%s reads like %s", what, before)
		}
		seen[s] = what
		if again := fileState(path); again != s {
			t.Errorf("%s changes by itself: %s, %s", what, s, again)
		}
	}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	look("absent")
	must(os.WriteFile(path, nil, 0o600))
	look("made")
	must(os.Chmod(path, 0o660))
	look("other mode")
	must(os.WriteFile(path, []byte("x"), 0o600))
	look("other bytes")
	must(os.WriteFile(path+"2", []byte("x"), 0o660))
	must(os.Rename(path+"2", path))
	look("another file")
}

func TestRecall(t *testing.T) {
	file := filepath.Join(t.TempDir(), "probe.json")
	d := &Driver{kept: file, log: slog.New(slog.DiscardHandler)}
	if a, ok := d.recall("k"); ok {
		t.Errorf("recalls %s from no file", a)
	}
	d.keep("", hypervisor.TCG)
	forced := &Driver{kept: file, forced: hypervisor.TCG}
	forced.keep("k", hypervisor.TCG)
	if _, err := os.Stat(file); err == nil {
		t.Error("kept what was set, or of a host that is not known")
	}
	d.keep("k", hypervisor.KVM)
	if a, ok := d.recall("k"); !ok || a != hypervisor.KVM {
		t.Errorf("recalls %q, %v", a, ok)
	}
	if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info, err)
	}
	for what, recall := range map[string]func() (hypervisor.Acceleration, bool){
		"another host":        func() (hypervisor.Acceleration, bool) { return d.recall("k2") },
		"a forced driver":     func() (hypervisor.Acceleration, bool) { return forced.recall("k") },
		"a driver of no file": func() (hypervisor.Acceleration, bool) { return (&Driver{}).recall("k") },
		"a broken file": func() (hypervisor.Acceleration, bool) {
			if err := os.WriteFile(file, []byte("{"), 0o600); err != nil {
				t.Fatal(err)
			}
			return d.recall("k")
		},
	} {
		if a, ok := recall(); ok {
			t.Errorf("%s recalls %s", what, a)
		}
	}
}

// An answer is used again by the next driver on the same host, and by no other.
func TestKeptProbe(t *testing.T) {
	daemon := libvirtdtest.Start(t)
	file := filepath.Join(t.TempDir(), "probe.json")
	look := func(what string) hypervisor.Acceleration {
		t.Helper()
		d, err := Open(daemon.URI, WithDir(daemon.Dir), WithKeptProbe(file))
		if err != nil {
			t.Fatal(err)
		}
		defer d.Close()
		began := time.Now()
		info, err := d.Info(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("%s: %s, %v", what, info.Acceleration, time.Since(began).Round(time.Millisecond))
		return info.Acceleration
	}
	read := func() (v verdict) {
		t.Helper()
		b, err := os.ReadFile(file)
		if err := errors.Join(err, json.Unmarshal(b, &v)); err != nil {
			t.Fatal(err)
		}
		return v
	}
	write := func(v verdict) {
		t.Helper()
		b, err := json.Marshal(v)
		if err := errors.Join(err, os.WriteFile(file, b, 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	truth := look("first")
	kept := read()
	if kept.Acceleration != truth || kept.Key == "" {
		t.Fatalf("kept %+v, found %s", kept, truth)
	}
	daemon.Restart(t) // changes nothing that the answer depends on
	if look("second") != truth || read() != kept {
		t.Errorf("asked again: %+v, then %+v", kept, read())
	}
	// A false answer shows what is believed.
	lie := kept
	if lie.Acceleration = hypervisor.KVM; truth == hypervisor.KVM {
		lie.Acceleration = hypervisor.TCG
	}
	write(lie)
	if _, err := os.Stat(kvmDevice); err == nil { // else no guest starts with it, and all is asked anew
		if got := look("told"); got != lie.Acceleration {
			t.Errorf("the kept answer was not used: %s", got)
		}
	}
	lie.Key = "of another boot"
	write(lie)
	if got := look("of another boot"); got != truth || read().Key != kept.Key || read().Acceleration != truth {
		t.Errorf("a stale answer was used: %s, kept %+v", got, read())
	}
}
