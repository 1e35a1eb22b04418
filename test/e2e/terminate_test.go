package e2e

import (
	"net/http"
	"testing"

	"github.com/outcrop-cloud/outcrop/internal/api"
	"github.com/outcrop-cloud/outcrop/internal/compute"
)

// Terminate works in every state and leaves nothing.
// contract: U-11 U-19 lesson 12 lesson 19
func terminateAnywhere(t *testing.T, l *lab) {
	c := newCloud(t, l)
	waiting := c.create("waiting", []byte("x"))
	c.is(waiting, compute.StateCreating)
	if i := c.terminate(waiting); i.State != string(compute.StateTerminated) {
		t.Errorf("an instance without a node is %s after terminate", i.State)
	}

	release := l.boot(t)
	c.startNode("before:boot")
	launching := c.create("launching", nil)
	c.node.killedItself(t)
	c.endsFrom(launching, compute.StateCreating)

	running := c.create("running", nil)
	c.reaches(running, compute.StateRunning)
	c.endsFrom(running, compute.StateRunning)

	// Guests in their firmware do not hear the power button, so these stay.
	stopping, rebooting := c.create("stopping", nil), c.create("rebooting", nil)
	c.reaches(stopping, compute.StateRunning)
	c.stop(stopping, within(600))
	c.endsFrom(stopping, compute.StateStopping)
	c.reaches(rebooting, compute.StateRunning)
	c.reboot(rebooting, false)
	c.endsFrom(rebooting, compute.StateRebooting)

	failed := c.create("failed", nil)
	c.reaches(failed, compute.StateRunning)
	c.killQEMU(failed)
	c.reaches(failed, compute.StateError)
	c.endsFrom(failed, compute.StateError)

	stopped, starting := c.create("stopped", nil), c.create("starting", nil)
	for _, id := range []string{stopped, starting} {
		c.reaches(id, compute.StateRunning)
		c.stop(id, force)
		c.reaches(id, compute.StateStopped)
	}
	c.endsFrom(stopped, compute.StateStopped)
	c.node.kill()
	c.start(starting)
	c.endsFrom(starting, compute.StateStarting)
	release()

	// Once more is no error, and what is gone stays gone.
	c.terminate(starting)
	err := c.op.Do(t.Context(), http.MethodPost, api.InstancePath(project, starting, "start"), nil, nil)
	refused(t, err, "INVALID_STATE")
	c.end()
}

func (c *cloud) is(id string, want compute.InstanceState) {
	c.t.Helper()
	if i := c.get(id); i.State != string(want) {
		c.t.Errorf("instance %s is %s, want %s", id, i.State, want)
	}
}

// endsFrom terminates an instance in the state. An agent that is dead comes back
// after that.
func (c *cloud) endsFrom(id string, state compute.InstanceState) {
	c.t.Helper()
	c.is(id, state)
	if i := c.terminate(id); i.State != string(compute.StateTerminating) {
		c.t.Errorf("terminate of a %s instance answers %s", state, i.State)
	}
	if !c.node.alive() {
		c.is(id, compute.StateTerminating)
		c.startNode()
	}
	c.reaches(id, compute.StateTerminated)
}
