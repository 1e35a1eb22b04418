package e2e

import (
	"strings"
	"testing"

	"github.com/outcrop-cloud/outcrop/internal/compute"
	"github.com/outcrop-cloud/outcrop/internal/hypervisor"
)

// On a node whose agent is dead intents are recorded, nothing is released or
// placed, and all is carried out when the agent is back.
// contract: N-06 N-23 U-21 lesson 2 lesson 3 lesson 4
func deadNode(t *testing.T, l *lab) {
	c := newCloud(t, l, "--heartbeat-interval", "1s")
	c.startNode()
	release := l.boot(t)
	doomed, stopping, staying := c.create("doomed", nil), c.create("stopping", nil), c.create("staying", nil)
	for _, id := range c.ids {
		c.reaches(id, compute.StateRunning)
	}
	c.says(staying, 1, saysReady)
	release()
	was := c.vm(staying)

	c.node.kill()
	await(t, soon, "unreachable node", func() (string, bool) {
		n := c.getNode()
		return n.Liveness.Status, n.Liveness.Status == "unreachable" && n.Liveness.Reason != ""
	})
	if i := c.terminate(doomed); i.State != string(compute.StateTerminating) || i.NodeID != nodeID {
		t.Errorf("terminate on a dead node answers %s on %q", i.State, i.NodeID)
	}
	c.stop(stopping, within(1))
	lost := c.create("lost", nil)
	await(t, soon, "reason to wait", func() (string, bool) {
		i := c.get(lost)
		return i.State + " " + i.StateMessage, i.State == string(compute.StateCreating) && strings.Contains(i.StateMessage, "waiting for a node")
	})
	c.crashServer() // forgets nothing of it
	c.is(doomed, compute.StateTerminating)
	c.is(stopping, compute.StateStopping)
	c.is(staying, compute.StateRunning)
	if n := c.getNode(); n.CommittedVCPUs < 3 {
		t.Errorf("the dead node's instances hold %d vCPUs", n.CommittedVCPUs)
	}
	for _, id := range []string{doomed, stopping, staying} {
		if vm := c.vm(id); vm.State != hypervisor.Running {
			t.Errorf("without its agent the VM of %s is %+v", id, vm)
		}
	}

	c.startNode()
	c.reaches(doomed, compute.StateTerminated)
	c.reaches(stopping, compute.StateStopped)
	c.reaches(lost, compute.StateRunning)
	if now := c.vm(staying); now != was {
		t.Errorf("the agent came back and made of %+v %+v", was, now)
	}
	c.is(staying, compute.StateRunning)
	c.booted(staying, 1)
	if n := c.getNode(); n.Liveness.Status != "ok" {
		t.Errorf("the node is back and %s", n.Liveness.Status)
	}
	c.end()
}
