package e2e

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/outcrop-cloud/outcrop/internal/api"
	"github.com/outcrop-cloud/outcrop/internal/compute"
	"github.com/outcrop-cloud/outcrop/internal/hypervisor"
	"github.com/outcrop-cloud/outcrop/internal/hypervisor/libvirt/libvirtdtest"
)

// The node's disk, and what of it is taken by something else at first, bytes.
const (
	smallDisk = 256 << 20
	ballast   = 128 << 20
)

// A guest that fills the node's disk stands still and says why, launches wait, and
// both go on when there is room, though the agent dies while it sees to that.
// contract: U-19 lesson 31
func fullDisk(t *testing.T, l *lab) {
	disk := smallFileSystem(t)
	c := newCloudOn(t, l, libvirtdtest.Start(t)) // which sees only what was mounted before it
	if err := os.Symlink(disk, c.path("node")); err != nil {
		t.Fatal(err)
	}
	heavy := c.path("node/ballast")
	if err := os.WriteFile(heavy, make([]byte, ballast), 0o600); err != nil {
		t.Fatal(err)
	}
	c.startNode("before:resume")
	release := l.boot(t)
	// What the guest writes is beyond what is free and within what will be.
	id := c.launch(api.CreateInstance{Name: "greedy", ImageID: c.image, VCPUs: 1, MemoryBytes: guestMemory, RootVolumeBytes: 224 << 20, UserData: encode([]byte("#!/bin/sh\ndd if=/dev/zero of=/dev/vda bs=1M seek=64 count=150 && sync && echo all is written\n"))})
	c.reaches(id, compute.StateRunning)
	await(t, patience, "guest that stands still", func() (string, bool) {
		i := c.get(id)
		return i.State + " " + i.StateMessage, strings.Contains(i.StateMessage, "no space left for disk vda")
	})
	c.is(id, compute.StateRunning)
	await(t, soon, "finding", func() (string, bool) {
		all := c.getNode().Findings
		return "", slices.ContainsFunc(all, func(f api.Finding) bool { return f.Code == "LowDisk" })
	})
	release()
	was := c.vm(id)
	if err := os.Remove(heavy); err != nil {
		t.Fatal(err)
	}
	c.node.killedItself(t)
	c.startNode("after:resume")
	c.node.killedItself(t)
	c.startNode()
	c.says(id, 1, "all is written")
	await(t, soon, "end of the message", func() (string, bool) {
		i := c.get(id)
		return i.State + " " + i.StateMessage, i.StateMessage == ""
	})
	if now := c.vm(id); now.BootID != was.BootID || now.State != hypervisor.Running {
		t.Errorf("%+v went on as %+v", was, now)
	}
	c.booted(id, 1)
	c.end()
}

// smallFileSystem mounts one for the time of the test.
func smallFileSystem(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("/tmp", "oc") // QEMU's user cannot get into t.TempDir()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.Remove(dir) })
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, fmt.Sprintf("mode=0711,size=%d", smallDisk)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(dir, syscall.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	return dir
}
