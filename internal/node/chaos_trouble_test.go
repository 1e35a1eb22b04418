package node

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/outcrop-cloud/outcrop/internal/api"
	"github.com/outcrop-cloud/outcrop/internal/compute"
	"github.com/outcrop-cloud/outcrop/internal/hypervisor"
	"github.com/outcrop-cloud/outcrop/internal/store"
)

// What breaks in the chaos test, and what operators do to nodes.

// maintain takes a node out of service, or back.
func (c *chaos) maintain(verb string, in any) (string, error) {
	b := c.box()
	said, _, _, err := c.call("POST", api.NodePath(b.id, verb), in, nil)
	return fmt.Sprint(b.id, " ", said), err
}

// declareOff says that a node is dead, which may be true or not; the server takes it
// only of one that is silent.
func (c *chaos) declareOff() (string, error) {
	b := c.box()
	known, err := c.read()
	if err != nil {
		return "", err
	}
	said, ok, unknown, err := c.call("POST", api.NodePath(b.id, "declare-off"), api.DeclareOff{}, nil)
	if ok || unknown {
		b.declaredOff = true
		for id, i := range known.instances {
			if i.NodeID == b.id || i.Move != nil {
				c.ended(id)
			}
		}
	}
	return b.id + " " + said, err
}

func (c *chaos) loseAgent() (string, error) {
	b, d := c.box(), c.span(6*time.Minute)
	b.stop()
	c.later(d, b.start)
	return fmt.Sprint(b.id, " for ", d), nil
}

func (c *chaos) killAgentAt() (string, error) {
	b, at, before := c.box(), Steps[c.rng.IntN(len(Steps))], c.rng.IntN(2) == 0
	b.dieAt(func(step string, b bool) bool { return step == at && b == before })
	d := c.span(20 * time.Minute)
	c.later(d, b.start)
	return fmt.Sprint(b.id, " ", at, " before ", before, ", back after ", d), nil
}

func (c *chaos) rebootNode() (string, error) {
	b := c.box()
	known, err := c.read()
	if err != nil {
		return "", err
	}
	off := b.reboot()
	for _, id := range off {
		c.ended(id)
		if w := c.wishes[id]; w != nil && w.onBoot && w.state != "terminated" && known.instances[id].Goal == compute.GoalRunning {
			w.state = "running"
		}
	}
	for _, w := range c.wishes { // a boot starts those, too, that were off
		if w.onBoot && w.state == "stopped" { // or that are on their way to it
			w.state = ""
		}
	}
	d := c.span(3 * time.Minute)
	c.later(d, b.start)
	return fmt.Sprint(b.id, " off were ", off, ", back after ", d), nil
}

func (c *chaos) partition() (string, error) {
	b, w, d := c.box(), []weather{refused, silent, oneWay}[c.rng.IntN(3)], c.span(3*time.Minute)
	if c.rng.IntN(4) == 0 {
		d = c.span(40 * time.Minute)
	}
	b.link.turn(w)
	c.later(d, func() error { b.link.turn(fair); return nil })
	return fmt.Sprint(b.id, " ", w, " for ", d), nil
}

func (c *chaos) loseAnswers() (string, error) {
	b := c.box()
	b.link.turn(oneWay)
	c.later(time.Second, func() error { b.link.turn(fair); return nil })
	return b.id, nil
}

func (c *chaos) bounce(killed bool) (string, error) {
	var err error
	if killed {
		err = c.crash()
	} else {
		err = c.server.stop(false)
		if slices.ContainsFunc(c.boxes, func(b *box) bool { w, _ := b.link.now(); return w == silent }) {
			err = nil // an answer that nobody takes holds it up until its patience is over
		}
	}
	d := time.Duration(0)
	if c.rng.IntN(3) > 0 {
		d = c.span(5 * time.Minute)
	}
	return d.String(), errors.Join(err, c.sleep(d), c.server.start())
}

// strike does something to a guest that runs.
func (c *chaos) strike(do func(b *box, id string) error) (string, error) {
	b, id := c.box(), ""
	for _, vm := range b.list() {
		if vm.State == hypervisor.Running && (id == "" || c.rng.IntN(2) == 0) {
			id = vm.ID
		}
	}
	if id == "" || do(b, id) != nil {
		return "nobody", nil
	}
	c.ended(id)
	return id, nil
}

// bootUnseen reports whether the instance's node has booted and the server has not
// heard of it yet.
func (c *chaos) bootUnseen(id string) bool {
	unseen := false
	err := c.server.db.Read(context.Background(), func(tx *store.Tx) error {
		i, err := tx.InstanceByID(id)
		if err != nil {
			return err
		}
		seen, err := tx.SyncedBoot(i.NodeID)
		for _, b := range c.boxes {
			unseen = unseen || b.id == i.NodeID && b.facts().BootID != seen
		}
		return err
	})
	return unseen || err != nil
}

// ended: the guest went down by itself, so that what it was to be is open.
func (c *chaos) ended(id string) {
	if w := c.wishes[id]; w != nil && w.state != "terminated" {
		w.state = ""
	}
}
