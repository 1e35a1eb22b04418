package e2e

import (
	"fmt"
	"syscall"
	"testing"

	"github.com/outcrop-cloud/outcrop/internal/compute"
	"github.com/outcrop-cloud/outcrop/internal/hypervisor/libvirt/libvirtdtest"
)

// libvirtd is killed in the midst of a reboot, a stop, a start and a terminate, and is
// not there when a guest dies: each comes to its end once it is back, and no guest
// boots more often than it should.
// contract: U-19 lesson 9 lesson 19
func libvirtdCrashes(t *testing.T, l *lab) {
	daemon := libvirtdtest.Start(t)
	c := newCloudOn(t, l, daemon)
	c.startNode()
	defer l.boot(t)()
	kill := func() {
		t.Helper()
		if err := syscall.Kill(daemon.PID(t, "libvirtd"), syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
	}
	id := c.create("survivor", []byte("the same at every boot"))
	c.says(id, 1, saysReady)
	c.reaches(id, compute.StateRunning)
	epoch := 1
	// begun waits until the node is at what was asked last.
	begun := func() {
		t.Helper()
		epoch++
		c.nodeLogs(fmt.Sprintf("phase=preparing epoch=%d", epoch))
	}

	c.reboot(id, false)
	begun()
	kill()
	c.says(id, 1, saysPowerOff)
	c.is(id, compute.StateRebooting)
	daemon.Restart(t)
	c.says(id, 2, saysReady)
	c.reaches(id, compute.StateRunning)

	c.stop(id, within(120))
	begun()
	kill()
	c.says(id, 2, saysPowerOff)
	c.is(id, compute.StateStopping)
	daemon.Restart(t)
	c.reaches(id, compute.StateStopped)

	c.start(id)
	begun()
	kill()
	daemon.Restart(t)
	c.says(id, 3, saysReady)
	c.reaches(id, compute.StateRunning)
	c.booted(id, 3)

	kill()
	c.killQEMU(id)
	daemon.Restart(t)
	c.reaches(id, compute.StateError)
	c.start(id)
	c.says(id, 4, saysReady)
	c.reaches(id, compute.StateRunning)
	c.booted(id, 4)

	kill()
	c.terminate(id)
	c.is(id, compute.StateTerminating)
	daemon.Restart(t)
	c.end()
}
