package libvirt_test

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/outcrop-cloud/outcrop/internal/hypervisor"
	"github.com/outcrop-cloud/outcrop/internal/hypervisor/hypertest"
	"github.com/outcrop-cloud/outcrop/internal/hypervisor/libvirt"
	"github.com/outcrop-cloud/outcrop/internal/hypervisor/libvirt/libvirtdtest"
)

// lab is a driver on a libvirtd of its own, shared by the suite's tests.
type lab struct {
	*libvirt.Driver
	daemon *libvirtdtest.Daemon
}

func newLab(t *testing.T) lab { return newLabIn(t, "") }

func newLabIn(t *testing.T, netns string) lab {
	daemon := libvirtdtest.StartIn(t, netns)
	// What this machine's KVM is worth is the probe test's matter.
	d, err := libvirt.Open(daemon.URI, libvirt.WithDir(daemon.Dir), libvirt.WithAcceleration(hypervisor.TCG))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Close() })
	return lab{Driver: d, daemon: daemon}
}

func TestSuite(t *testing.T) {
	l := newLab(t)
	hypertest.Run(t, func(*testing.T) (hypervisor.Hypervisor, hypertest.Fixture) {
		return l.Driver, hypertest.Fixture{
			Dir:     l.daemon.Dir,
			Idle:    l.idleDisk,
			Guest:   l.microDisk,
			Up:      "outcrop-micro: ready",
			Kill:    func(t *testing.T, id string) { l.signal(t, id, syscall.SIGKILL) },
			Pause:   func(t *testing.T, id string) { l.virsh(t, "suspend", "outcrop-"+id) },
			Hang:    func(t *testing.T, id string) { l.signal(t, id, syscall.SIGSTOP) },
			Restart: func(t *testing.T) { l.daemon.Restart(t) },
			Foreign: l.foreign,
		}
	})
}

// idleDisk cannot be booted from, so the guest is the firmware, idling.
func (l lab) idleDisk(t *testing.T) hypervisor.Disk {
	path := l.path(t, "idle.img")
	if err := os.WriteFile(path, make([]byte, 1<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	return hypervisor.Disk{Path: path, Format: "raw"}
}

// microDisk is an overlay on the micro image, as the node makes them.
func (l lab) microDisk(t *testing.T) hypervisor.Disk {
	base := filepath.Join(l.daemon.Dir, "micro.qcow2")
	if _, err := os.Stat(base); err != nil {
		content, err := os.ReadFile(microImage(t))
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(base, content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	path := l.path(t, "root.qcow2")
	l.command(t, "qemu-img", "create", "-q", "-f", "qcow2", "-b", base, "-F", "qcow2", path)
	if err := os.Chmod(path, 0o600); err != nil {
		t.Fatal(err)
	}
	return hypervisor.Disk{Path: path, Format: "qcow2", Serial: "vol-root",
		Backing: []hypervisor.Image{{Path: base, Format: "qcow2"}}}
}

// microImage builds the image or finds it built.
func microImage(t *testing.T) string {
	script, err := filepath.Abs("../../../images/build.sh")
	if err != nil {
		t.Fatal(err)
	}
	var stderr bytes.Buffer
	cmd := exec.Command(script, "micro")
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		libvirtdtest.Missing(t, fmt.Sprintf("the micro image (images/build.sh micro): %v\n%s", err, &stderr))
	}
	return strings.TrimSpace(string(out))
}

// foreign makes a domain with a name like ours and without our metadata.
func (l lab) foreign(t *testing.T, id string) {
	name := "outcrop-" + id
	file := l.path(t, "foreign.xml")
	text := fmt.Sprintf("<domain type='qemu'><name>%s</name><memory>65536</memory><os><type machine='q35'>hvm</type></os></domain>", name)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	l.virsh(t, "define", file)
	t.Cleanup(func() { l.virsh(t, "undefine", name) })
}

func (l lab) path(t *testing.T, name string) string {
	return filepath.Join(l.daemon.Dir, strings.ReplaceAll(t.Name(), "/", "-")+"-"+name+strconv.Itoa(len(l.files(t))))
}

func (l lab) files(t *testing.T) []os.DirEntry {
	entries, err := os.ReadDir(l.daemon.Dir)
	if err != nil {
		t.Fatal(err)
	}
	return entries
}

func (l lab) signal(t *testing.T, id string, s syscall.Signal) {
	t.Helper()
	if err := syscall.Kill(l.daemon.QEMU(t, "outcrop-"+id), s); err != nil {
		t.Fatal(err)
	}
}

func (l lab) virsh(t *testing.T, args ...string) string {
	t.Helper()
	return l.command(t, "virsh", append([]string{"-q", "-c", l.daemon.URI}, args...)...)
}

func (l lab) command(t *testing.T, name string, args ...string) string {
	t.Helper()
	out, err := exec.Command(name, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
	return string(out)
}
