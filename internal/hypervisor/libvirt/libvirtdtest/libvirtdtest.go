// Package libvirtdtest gives a test a libvirtd of its own, by the script
// scripts/libvirtd-private.sh: real VMs without touching the machine's libvirtd.
package libvirtdtest

import (
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"
)

// required is set where a missing tool must fail the run, as in CI, instead of
// skipping what needs it.
const required = "OUTCROP_REQUIRE_REAL"

// Daemon is a running private libvirtd.
type Daemon struct {
	// URI for libvirt.Open.
	URI string
	// Dir is for disks, logs and sockets of the test's VMs: QEMU's user can
	// reach it, and its path is short. It vanishes after the test.
	Dir string

	state, netns string
}

// Start starts virtlogd and libvirtd. Both end with the test, and so do all VMs
// that they still run.
func Start(t testing.TB) *Daemon {
	t.Helper()
	return StartIn(t, "")
}

// StartIn is Start inside a network namespace made by "ip netns add", where the
// taps of the VMs are; empty is the test's own.
func StartIn(t testing.TB, netns string) *Daemon {
	t.Helper()
	if testing.Short() {
		Missing(t, "a run without -short")
	}
	if os.Getuid() != 0 {
		Missing(t, "root, for a mount namespace and for libvirtd")
	}
	for _, tool := range []string{"libvirtd", "virtlogd", "virsh", "qemu-system-x86_64", "qemu-img", "unshare"} {
		if _, err := exec.LookPath(tool); err != nil {
			Missing(t, tool)
		}
	}
	// Not t.TempDir(): its path is too long for a socket, and closed to others.
	base, err := os.MkdirTemp("/tmp", "lv")
	if err != nil {
		t.Fatal(err)
	}
	d := &Daemon{Dir: filepath.Join(base, "vm"), state: filepath.Join(base, "d"), netns: netns}
	t.Cleanup(func() {
		if out, err := d.run("stop"); err != nil {
			t.Errorf("stop libvirtd: %v\n%s", err, out)
		}
		if t.Failed() {
			log, _ := os.ReadFile(filepath.Join(d.state, "log", "libvirtd.log"))
			t.Logf("libvirtd.log:\n%s", log)
		}
		os.RemoveAll(base)
	})
	for dir, mode := range map[string]os.FileMode{base: 0o711, d.Dir: 0o711} {
		if err := os.MkdirAll(dir, mode); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(dir, mode); err != nil {
			t.Fatal(err)
		}
	}
	out, err := d.run("start")
	if err != nil {
		t.Fatalf("start libvirtd: %v\n%s", err, out)
	}
	d.URI = strings.TrimSpace(out)
	return d
}

// Missing ends the test: it skips, or it fails where real VMs are required.
func Missing(t testing.TB, what string) {
	t.Helper()
	if os.Getenv(required) != "" {
		t.Fatalf("%s is set and this is missing: %s", required, what)
	}
	t.Skipf("needs %s", what)
}

// Restart restarts libvirtd alone. VMs go on.
func (d *Daemon) Restart(t testing.TB) {
	t.Helper()
	if out, err := d.run("restart"); err != nil {
		t.Fatalf("restart libvirtd: %v\n%s", err, out)
	}
}

// PID returns the process id of "libvirtd" or "virtlogd".
func (d *Daemon) PID(t testing.TB, daemon string) int {
	t.Helper()
	return pid(t, filepath.Join(d.state, "run", daemon+".pid"))
}

// QEMU returns the process id of a domain's QEMU.
func (d *Daemon) QEMU(t testing.TB, domain string) int {
	t.Helper()
	return pid(t, filepath.Join(d.state, "run", "qemu", domain+".pid"))
}

func pid(t testing.TB, path string) int {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	n, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func (d *Daemon) run(verb string) (string, error) {
	var stderr strings.Builder
	args := []string{script(), verb, d.state}
	if d.netns != "" {
		args = append([]string{"ip", "netns", "exec", d.netns}, args...)
	}
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return string(out) + stderr.String(), err
	}
	return string(out), nil
}

// script finds the script beside this source file's module.
func script() string {
	_, file, _, _ := runtime.Caller(0)
	return filepath.Join(filepath.Dir(file), "..", "..", "..", "..", "scripts", "libvirtd-private.sh")
}
