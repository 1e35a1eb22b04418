package e2e

import (
	"strings"
	"testing"
	"time"

	"github.com/outcrop-cloud/outcrop/internal/compute"
	"github.com/outcrop-cloud/outcrop/internal/fault"
)

// A reboot keeps user-data. A graceful one asks the guest, a forced one does not,
// and one that the guest does itself is its own affair.
// contract: U-02 U-03 U-19
func reboots(t *testing.T, l *lab) {
	c := newCloud(t, l)
	c.startNode()
	release := l.boot(t)
	data := []byte("the same at every boot")
	id := c.create("reboots", data)
	c.says(id, 1, saysReady)
	c.reaches(id, compute.StateRunning)
	was := c.vm(id)

	if i := c.reboot(id, false); i.State != string(compute.StateRebooting) {
		t.Errorf("a reboot answers %s", i.State)
	}
	_, err := c.putUserData(id, []byte("x"))
	refused(t, err, fault.InvalidState)
	c.says(id, 2, saysReady)
	c.reaches(id, compute.StateRunning)
	if !strings.Contains(c.boots(id)[0], saysPowerOff) {
		t.Error("the guest was not asked to go down")
	}
	now := c.vm(id)
	if now.BootID == was.BootID {
		t.Error("a graceful reboot left the VM as it was")
	}

	c.reboot(id, true)
	if said := c.says(id, 3, saysReady); !strings.Contains(said, digest("user-data", data)) {
		t.Errorf("other user-data after a reboot: %s", said)
	}
	c.reaches(id, compute.StateRunning)
	if strings.Contains(c.boots(id)[1], saysPowerOff) {
		t.Error("a forced reboot asked the guest")
	}

	was = c.vm(id)
	c.types(id, "reboot")
	c.says(id, 4, saysReady)
	if now := c.vm(id); now != was {
		t.Errorf("the guest's own reboot made of %+v %+v", was, now)
	}
	if i := c.get(id); i.State != string(compute.StateRunning) {
		t.Errorf("the guest's own reboot made the instance %s", i.State)
	}
	release()
	c.end()
}

// A guest that does not hear the power button runs until its deadline, which
// can be brought nearer and never be moved away; force is a deadline that is now.
// contract: U-17 U-19 lesson 20
func stubbornGuest(t *testing.T, l *lab) {
	c := newCloud(t, l)
	c.startNode()
	release := l.boot(t)
	id := c.create("stubborn", []byte("#!/bin/sh\nrmmod button && echo deaf now\n"))
	c.says(id, 1, "deaf now")
	c.reaches(id, compute.StateRunning)

	c.stop(id, within(600))
	c.nodeLogs("phase=preparing epoch=2") // the node is at it
	if i := c.stop(id, force); !i.ForceStopping || i.State != string(compute.StateStopping) {
		t.Errorf("a forced stop in flight: %s, forceStopping %t", i.State, i.ForceStopping)
	}
	c.stops(id, soon)

	c.start(id)
	c.says(id, 2, "deaf now")
	c.reaches(id, compute.StateRunning)
	release()
	c.stop(id, within(600))
	c.stop(id, within(3))
	if i := c.stop(id, within(600)); i.ForceStopping {
		t.Error("a nearer deadline is shown as a forced stop")
	}
	c.stops(id, soon)
	if strings.Contains(c.console(id), saysPowerOff) {
		t.Error("the guest was not deaf; this test shows nothing")
	}
	c.end()
}

// stops waits for a stopped instance that must not take longer.
func (c *cloud) stops(id string, within time.Duration) {
	c.t.Helper()
	began := time.Now()
	if i := c.reaches(id, compute.StateStopped); i.ForceStopping {
		c.t.Error("forceStopping outlives the stop")
	}
	if took := time.Since(began); took > within {
		c.t.Errorf("it took %v to stop", took)
	}
}

// A guest that powers itself off is stopped, one whose QEMU dies is in error with
// the reason; both start again.
// contract: U-06 U-07 U-19
func guestEnds(t *testing.T, l *lab) {
	c := newCloud(t, l)
	c.startNode()
	release := l.boot(t)
	off := c.create("off", []byte("#!/bin/sh\necho off again\npoweroff\n"))
	c.reaches(off, compute.StateStopped)
	c.start(off)
	c.says(off, 2, "off again")
	c.reaches(off, compute.StateStopped)
	c.booted(off, 2)

	killed := c.create("killed", nil)
	c.says(killed, 1, saysReady)
	c.reaches(killed, compute.StateRunning)
	c.killQEMU(killed)
	i := c.reaches(killed, compute.StateError)
	if !strings.Contains(i.StateMessage, "crashed") || !strings.Contains(i.StateMessage, "start it again") || i.Health != "unhealthy" {
		t.Errorf("%q, health %s", i.StateMessage, i.Health)
	}
	if said := c.cli("instance", "console", "killed"); !strings.Contains(said, saysReady) {
		t.Errorf("the console of a dead guest: %q", said)
	}
	c.start(killed)
	c.says(killed, 2, saysReady)
	if i := c.reaches(killed, compute.StateRunning); i.StateMessage != "" {
		t.Errorf("running with the message %q", i.StateMessage)
	}
	release()
	c.end()
}
