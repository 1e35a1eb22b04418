package libvirt_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/outcrop-cloud/outcrop/internal/hypervisor"
	"github.com/outcrop-cloud/outcrop/internal/hypervisor/libvirt"
	"github.com/outcrop-cloud/outcrop/internal/hypervisor/libvirt/libvirtdtest"
)

// spec is a small VM with these disks.
func (l lab) spec(n int, disks ...hypervisor.Disk) hypervisor.Spec {
	id := fmt.Sprintf("i-real%d", n)
	return hypervisor.Spec{
		ID: id, UUID: fmt.Sprintf("ec200000-0000-4000-8000-%012d", n), VCPUs: 1, MemoryBytes: 128 << 20,
		Disks:         disks,
		ConsoleLog:    filepath.Join(l.daemon.Dir, id+".log"),
		ConsoleSocket: filepath.Join(l.daemon.Dir, id+".sock"),
	}
}

func (l lab) start(t *testing.T, s hypervisor.Spec) hypervisor.VM {
	t.Helper()
	check(t, l.Define(t.Context(), s))
	check(t, l.Start(t.Context(), s.ID))
	vm, err := l.Get(t.Context(), s.ID)
	check(t, err)
	if vm.State != hypervisor.Running {
		t.Fatalf("started, but %+v", vm)
	}
	return vm
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// poll looks until ok or for two minutes.
func poll(t *testing.T, what string, ok func() bool) {
	t.Helper()
	over, tick := time.After(2*time.Minute), time.NewTicker(50*time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-tick.C:
		case <-over:
			t.Fatalf("waited in vain for %s", what)
		}
	}
}

// TestOneDaemon shares a libvirtd among what disturbs it little.
func TestOneDaemon(t *testing.T) {
	l := newLab(t)
	t.Run("Files", l.testFiles)
	t.Run("ManyDisks", l.testManyDisks)
	t.Run("AnotherAgent", l.testAnotherAgent)
	t.Run("StuckDaemon", l.testStuckDaemon)
	t.Run("NoVirtlogd", l.testNoVirtlogd)
}

// testFiles: QEMU is nobody important, writes what it must, reads what it may,
// and others see nothing.
func (l lab) testFiles(t *testing.T) {
	base := l.path(t, "base.qcow2")
	overlay, seed := l.path(t, "root.qcow2"), l.path(t, "cidata.iso")
	l.command(t, "qemu-img", "create", "-q", "-f", "qcow2", base, "1M")
	l.command(t, "qemu-img", "create", "-q", "-f", "qcow2", "-b", base, "-F", "qcow2", overlay)
	check(t, os.WriteFile(seed, make([]byte, 1<<20), 0o600))
	check(t, os.Chmod(base, 0o600))
	check(t, os.Chmod(overlay, 0o600))
	s := l.spec(1,
		hypervisor.Disk{Path: overlay, Format: "qcow2", Backing: []hypervisor.Image{{Path: base, Format: "qcow2"}}},
		hypervisor.Disk{Path: seed, Format: "raw", ReadOnly: true})
	l.start(t, s)

	qemu, err := os.Stat(fmt.Sprintf("/proc/%d", l.daemon.QEMU(t, "outcrop-"+s.ID)))
	check(t, err)
	uid, gid := owner(qemu)
	if uid == 0 {
		t.Error("QEMU runs as root")
	}
	want := func(path string, mode os.FileMode, wantUID, wantGID uint32) {
		t.Helper()
		info, err := os.Stat(path)
		check(t, err)
		if u, g := owner(info); info.Mode().Perm() != mode || u != wantUID || g != wantGID {
			t.Errorf("%s is %v of %d:%d, want %v of %d:%d", path, info.Mode(), u, g, mode, wantUID, wantGID)
		}
	}
	want(overlay, 0o600, uid, gid)
	want(base, 0o440, 0, gid)
	want(seed, 0o440, 0, gid)
	check(t, l.Destroy(t.Context(), s.ID))
	want(overlay, 0o600, 0, 0)
	want(base, 0o440, 0, gid)
	check(t, l.Undefine(t.Context(), s.ID))
}

func owner(info os.FileInfo) (uid, gid uint32) {
	s := info.Sys().(*syscall.Stat_t)
	return s.Uid, s.Gid
}

// testManyDisks: there are slots for a root disk, 26 volumes and the cidata.
func (l lab) testManyDisks(t *testing.T) { // contract: U-11
	var disks []hypervisor.Disk
	for i := range 28 {
		d := l.idleDisk(t)
		d.Serial = fmt.Sprintf("vol-%d", i)
		disks = append(disks, d)
	}
	s := l.spec(2, disks...)
	l.start(t, s)
	if xml := l.virsh(t, "dumpxml", "outcrop-"+s.ID); !strings.Contains(xml, "dev='vdab'") {
		t.Error("the last disk is not vdab")
	}
	check(t, l.Destroy(t.Context(), s.ID))
	check(t, l.Undefine(t.Context(), s.ID))
}

// testAnotherAgent: an agent that comes anew sees the same VMs and boots.
func (l lab) testAnotherAgent(t *testing.T) {
	s := l.spec(3, l.idleDisk(t))
	vm := l.start(t, s)
	d, err := libvirt.Open(l.daemon.URI)
	check(t, err)
	defer d.Close()
	list, err := d.List(t.Context())
	check(t, err)
	if len(list) != 1 || list[0] != vm {
		t.Errorf("the new one sees %+v, the old one %+v", list, vm)
	}
	check(t, d.Destroy(t.Context(), s.ID))
	check(t, d.Undefine(t.Context(), s.ID))
}

// testStuckDaemon: a libvirtd that stands still costs each call its deadline and
// leaves nothing behind.
func (l lab) testStuckDaemon(t *testing.T) { // lesson 10
	s := l.spec(4, l.idleDisk(t))
	vm := l.start(t, s)
	pid := l.daemon.PID(t, "libvirtd")
	check(t, syscall.Kill(pid, syscall.SIGSTOP))
	for range 10 { // more than libvirtd's limit of calls on one connection
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		if _, err := l.List(ctx); !errors.Is(err, hypervisor.ErrUnavailable) {
			t.Errorf("list: %v", err)
		}
		if err := l.Reset(ctx, s.ID); !errors.Is(err, hypervisor.ErrUnavailable) {
			t.Errorf("reset: %v", err)
		}
		cancel()
	}
	check(t, syscall.Kill(pid, syscall.SIGCONT))
	got, err := l.Get(t.Context(), s.ID)
	check(t, err)
	if got != vm {
		t.Errorf("was %+v, is %+v", vm, got)
	}
	check(t, l.Destroy(t.Context(), s.ID))
	check(t, l.Undefine(t.Context(), s.ID))
}

// testNoVirtlogd comes last: it takes virtlogd away.
func (l lab) testNoVirtlogd(t *testing.T) {
	s := l.spec(5, l.idleDisk(t))
	check(t, l.Define(t.Context(), s))
	pid := l.daemon.PID(t, "virtlogd")
	check(t, syscall.Kill(pid, syscall.SIGKILL))
	poll(t, "virtlogd to be gone", func() bool { return syscall.Kill(pid, 0) != nil })
	if err := l.Start(t.Context(), s.ID); err == nil || !strings.Contains(err.Error(), "run virtlogd -d") {
		t.Errorf("without virtlogd: %v", err)
	}
	check(t, l.Undefine(t.Context(), s.ID))
}

// TestFullDisk: a disk that cannot grow pauses the VM, and room lets it go on
// without a lost write.
func TestFullDisk(t *testing.T) {
	small, err := os.MkdirTemp("/tmp", "full")
	check(t, err)
	defer os.RemoveAll(small)
	if err := syscall.Mount("none", small, "tmpfs", 0, "size=24m,mode=0711"); err != nil {
		libvirtdtest.Missing(t, fmt.Sprintf("a tmpfs: %v", err))
	}
	defer func() { check(t, syscall.Unmount(small, syscall.MNT_DETACH)) }()
	l := newLab(t)
	data := filepath.Join(small, "data.qcow2")
	l.command(t, "qemu-img", "create", "-q", "-f", "qcow2", data, "64M")
	s := l.spec(6, l.microDisk(t), hypervisor.Disk{Path: data, Format: "qcow2", Serial: "vol-data"})
	vm := l.start(t, s)
	console := l.shell(t, s)
	_, err = io.WriteString(console, "dd if=/dev/urandom of=/dev/vdb bs=1M count=40 oflag=direct && echo all-writ''ten\n")
	check(t, err)
	poll(t, "a pause", func() bool {
		got, err := l.Get(t.Context(), s.ID)
		check(t, err)
		return got.State == hypervisor.Paused && got.BootID == vm.BootID && strings.Contains(got.Reason, "no space left for disk vdb")
	})
	check(t, syscall.Mount("none", small, "tmpfs", syscall.MS_REMOUNT, "size=80m,mode=0711"))
	check(t, l.Start(t.Context(), s.ID))
	logs(t, s, "all-written")
}

// shell waits for a micro guest and opens its console.
func (l lab) shell(t *testing.T, s hypervisor.Spec) io.ReadWriteCloser {
	t.Helper()
	logs(t, s, "outcrop-micro: ready")
	console, err := l.Console(t.Context(), s.ID)
	check(t, err)
	t.Cleanup(func() { console.Close() })
	return console
}

// logs waits for a text in the console log.
func logs(t *testing.T, s hypervisor.Spec, text string) {
	t.Helper()
	poll(t, fmt.Sprintf("%q on the console", text), func() bool {
		content, err := os.ReadFile(s.ConsoleLog)
		return err == nil && strings.Contains(string(content), text)
	})
}

// TestNIC: a VM gets the tap that was made for it, with its address and MTU.
func TestNIC(t *testing.T) {
	if os.Getuid() != 0 {
		libvirtdtest.Missing(t, "root, for a network namespace")
	}
	netns := fmt.Sprintf("lv-nic-%d", os.Getpid())
	var l lab
	l.command(t, "ip", "netns", "add", netns)
	defer l.command(t, "ip", "netns", "del", netns)
	l.command(t, "ip", "-n", netns, "tuntap", "add", "tap-nic", "mode", "tap")
	l.command(t, "ip", "-n", netns, "link", "set", "tap-nic", "mtu", "1450", "up")
	t.Run("VM", func(t *testing.T) {
		l := newLabIn(t, netns)
		s := l.spec(7, l.microDisk(t))
		s.NICs = []hypervisor.NIC{{Tap: "tap-nic", MAC: "52:54:00:00:00:07", MTU: 1450}}
		l.start(t, s)
		console := l.shell(t, s)
		_, err := io.WriteString(console, "cat /sys/class/net/eth0/address /sys/class/net/eth0/mtu\n")
		check(t, err)
		logs(t, s, "52:54:00:00:00:07\r\n1450")
	})
	if out := l.command(t, "ip", "-n", netns, "link", "show", "tap-nic"); !strings.Contains(out, "mtu 1450") {
		t.Errorf("the tap did not outlive the VM as it was: %s", out)
	}
}

// TestLimits: where libvirtd has cgroups, VMs are held in them.
func TestLimits(t *testing.T) {
	t.Setenv("LIBVIRT_CGROUPS", "1")
	l := newLab(t)
	s := l.spec(8, l.idleDisk(t))
	s.VCPUs = 2
	l.start(t, s)
	xml := l.virsh(t, "dumpxml", "outcrop-"+s.ID)
	if !strings.Contains(xml, "<shares>200</shares>") {
		libvirtdtest.Missing(t, "a CPU cgroup controller that libvirtd may use")
	}
	cgroups, err := os.ReadFile("/proc/" + strconv.Itoa(l.daemon.QEMU(t, "outcrop-"+s.ID)) + "/cgroup")
	check(t, err)
	if !strings.Contains(string(cgroups), "outcrop") {
		t.Errorf("QEMU is in no cgroup of its own:\n%s", cgroups)
	}
	info, err := l.Info(t.Context())
	check(t, err)
	if held := strings.Contains(xml, "<hard_limit"); held != info.Limits {
		t.Errorf("limits reported %v, memory held %v", info.Limits, held)
	}
}

// TestNoDaemon: without libvirtd calls fail at once, and Open does not.
func TestNoDaemon(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "s")
	d, err := libvirt.Open("qemu:///system?socket=" + socket)
	check(t, err)
	defer d.Close()
	if _, err := d.List(t.Context()); !errors.Is(err, hypervisor.ErrUnavailable) {
		t.Errorf("list: %v", err)
	}
	if _, err := d.Info(t.Context()); !errors.Is(err, hypervisor.ErrUnavailable) {
		t.Errorf("info: %v", err)
	}
	// One that accepts and says nothing costs the deadline and no more.
	silent, err := net.Listen("unix", socket)
	check(t, err)
	defer silent.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := d.Destroy(ctx, "i-1"); !errors.Is(err, hypervisor.ErrUnavailable) || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("destroy: %v", err)
	}
	if err := d.Close(); err != nil {
		t.Error(err)
	}
	if _, err := d.List(t.Context()); !errors.Is(err, hypervisor.ErrUnavailable) {
		t.Errorf("list after close: %v", err)
	}
}
