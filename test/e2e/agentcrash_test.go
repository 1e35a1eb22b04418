package e2e

import (
	"io"
	"strings"
	"syscall"
	"testing"

	"github.com/outcrop-cloud/outcrop/internal/compute"
	"github.com/outcrop-cloud/outcrop/internal/hypervisor"
)

// life is one instance, or one more start of it, with the agent killed on the
// way up and on the way down.
type life struct {
	up   string // crash point of the launch or start
	how  string // the end: one of ends
	down string // crash point of the end; empty: none
}

// ends are the ways in which a life ends, each with the state that follows.
var ends = map[string]struct {
	act   func(c *cloud, id string)
	state compute.InstanceState
}{
	"stop":      {func(c *cloud, id string) { c.stop(id, within(60)) }, compute.StateStopped},
	"unplug":    {func(c *cloud, id string) { c.stop(id, force) }, compute.StateStopped},
	"terminate": {func(c *cloud, id string) { c.terminate(id) }, compute.StateTerminated},
	"poweroff":  {func(c *cloud, id string) { c.types(id, "poweroff") }, compute.StateStopped},
	"die":       {func(c *cloud, id string) { c.killQEMU(id) }, compute.StateError},
}

func agentCrashesPreparing(t *testing.T, l *lab) {
	crashLives(newCloud(t, l), []life{
		{"before:image", "terminate", "before:destroy"},
		{"after:image", "terminate", "after:destroy"},
		{"before:volume", "terminate", "before:undefine"},
		{"after:volume", "terminate", "after:undefine"},
		{"before:cidata", "terminate", "before:remove"},
	})
}

func agentCrashesDefining(t *testing.T, l *lab) {
	crashLives(newCloud(t, l), []life{
		{"after:cidata", "stop", "before:shutdown"},
		{"before:define", "stop", "after:shutdown"},
		{"after:define", "unplug", "before:destroy"},
		{"before:claim", "unplug", "after:destroy"},
		{"after:claim", "terminate", "after:remove"},
	})
}

func agentCrashesBooting(t *testing.T, l *lab) {
	crashLives(newCloud(t, l), []life{
		{"before:boot", "poweroff", ""},
		{"after:boot", "poweroff", ""},
		{"before:confirm", "die", ""},
		{"after:confirm", "die", ""},
	})
}

// TestNetworkCrashes kills the agent where it makes the network of a guest.
func TestNetworkCrashes(t *testing.T) {
	isolated(t, []string{"micro"}, func(t *testing.T, l *lab) {
		c := newCloud(t, l)
		c.network = "host"
		crashLives(c, []life{
			{"before:interface", "unplug", "after:destroy"},
			{"after:interface", "terminate", "before:undefine"},
		})
		await(t, soon, "removal of all devices", func() (string, bool) {
			left := devices(t)
			return strings.Join(left, " "), len(left) == 0
		})
	})
}

// crashLives lets lives follow one another on one node. The agent that comes
// back after one crash is the one that dies in the next. An instance that a life
// leaves behind is started again in the next one.
// contract: U-19 lesson 3 lesson 19
func crashLives(c *cloud, lives []life) {
	t := c.t
	id, boots := "", 0
	c.startNode(lives[0].up)
	for n, life := range lives {
		t.Logf("%+v", life)
		end := ends[life.how]
		release := c.lab.boot(t)
		if id == "" {
			id, boots = c.create("crash", []byte("some user-data")), 0
		} else {
			c.start(id)
		}
		boots++
		c.node.killedItself(t)
		before, _ := c.vms.Get(t.Context(), id) // not yet defined: the zero VM
		var next []string
		if n+1 < len(lives) {
			next = []string{lives[n+1].up}
		}
		if life.down == "" {
			// The next crash point must not be met by the rest of this start.
			c.startNode()
		} else {
			c.startNode(life.down)
		}
		c.reaches(id, compute.StateRunning)
		c.says(id, boots, saysReady)
		if c.network != "" {
			c.says(id, boots, "imds instance-id="+id)
		}
		c.booted(id, boots)
		release()
		if after := c.vm(id); before.State == hypervisor.Running && after != before {
			t.Errorf("the guest did not live through the agent's death: %+v, then %+v", before, after)
		}

		end.act(c, id)
		if life.down == "" {
			c.reaches(id, end.state)
			c.node.kill()
		} else {
			c.node.killedItself(t)
		}
		c.startNode(next...)
		c.reaches(id, end.state)
		if end.state == compute.StateTerminated {
			c.checkClean()
			id = ""
			continue
		}
		c.booted(id, boots)
		if vm := c.vm(id); vm.State == hypervisor.Running {
			t.Errorf("%s: it still runs", end.state)
		}
	}
	c.end()
}

// types gives the guest's shell a line once it has shown its prompt.
func (c *cloud) types(id, line string) {
	c.t.Helper()
	c.says(id, len(c.boots(id)), "micro# ")
	con, err := c.vms.Console(c.t.Context(), id)
	if err != nil {
		c.t.Fatal(err)
	}
	defer con.Close()
	if _, err := io.WriteString(con, line+"\n"); err != nil {
		c.t.Fatal(err)
	}
	// QEMU drops what the guest has not yet taken when the console is closed.
	c.says(id, len(c.boots(id)), line+"\n")
}

func (c *cloud) killQEMU(id string) {
	c.t.Helper()
	if err := syscall.Kill(c.daemon.QEMU(c.t, "outcrop-"+id), syscall.SIGKILL); err != nil {
		c.t.Fatal(err)
	}
}
