package control

import (
	"context"
	"errors"
	"fmt"

	"github.com/outcrop-cloud/outcrop/internal/api"
	"github.com/outcrop-cloud/outcrop/internal/compute"
	"github.com/outcrop-cloud/outcrop/internal/fault"
	"github.com/outcrop-cloud/outcrop/internal/iam"
	"github.com/outcrop-cloud/outcrop/internal/store"
)

// CordonNode lets nothing new be placed on a node; what runs there goes on (contract
// N-20).
func (c *Control) CordonNode(ctx context.Context, who iam.Caller, id string, in api.CordonNode) (api.Node, error) {
	return c.maintain(ctx, who, iam.CordonNode, id, func(tx *store.Tx, n *compute.Node) (bool, error) {
		return n.Maintenance.Enter(compute.NodeMaintenance, who.Name, in.Reason, tx.Now), nil
	})
}

// UncordonNode lets a node take part again. A drain that goes on ends, and what a
// drain stopped there is started again.
func (c *Control) UncordonNode(ctx context.Context, who iam.Caller, id string) (api.Node, error) {
	return c.maintain(ctx, who, iam.UncordonNode, id, func(tx *store.Tx, n *compute.Node) (bool, error) {
		changed := n.Maintenance.Leave()
		return changed, c.endDrain(tx, id, who.Name, store.DrainCancelled)
	})
}

func (c *Control) maintain(ctx context.Context, who iam.Caller, a iam.Action, id string, fn func(*store.Tx, *compute.Node) (changed bool, err error)) (api.Node, error) {
	if err := iam.Allow(who, a, iam.Scope{NodeID: id}); err != nil {
		return api.Node{}, err
	}
	var n compute.Node
	changed := false
	err := retryStale(func() error {
		return c.db.Write(ctx, func(tx *store.Tx) (err error) {
			if n, err = tx.NodeToChange(id); err != nil {
				return notFound(err, "there is no node %q; list them with: outcrop node list", id)
			}
			if changed, err = fn(tx, &n); err != nil || !changed {
				return err
			}
			return tx.UpdateNode(&n)
		})
	})
	if err != nil {
		return api.Node{}, err
	}
	if changed {
		c.log.InfoContext(ctx, "maintenance of a node changed", "node", id, "state", string(n.State()), "by", who.Name, "reason", n.Maintenance.Reason)
	}
	c.told(id, true)
	c.converge.poke()
	c.drain.poke()
	return c.nodeView(&n, c.now()), nil
}

func maintenanceView(n *compute.Node) *api.NodeMaintenance {
	m := &n.Maintenance
	if m.Mode == "" {
		return nil
	}
	return &api.NodeMaintenance{Mode: string(m.Mode), Since: m.Since, By: m.By, Reason: m.Reason}
}

// notSafe says why a node's machine must not be powered off; nil when it may.
func (c *Control) notSafe(tx *store.Tx, n *compute.Node) (why []string, err error) {
	if n.Maintenance.Mode == "" {
		why = append(why, "instances may be placed on the node: cordon or drain it")
	}
	rows, err := tx.InstancesOn(n.ID)
	if err != nil {
		return nil, err
	}
	may := int64(0)
	first := ""
	for i := range rows {
		if rows[i].State != compute.StateStopped {
			if may++; may == 1 {
				first = fmt.Sprintf("%s is %s", rows[i].ID, rows[i].State)
			}
		}
	}
	if may > 0 {
		why = append(why, fmt.Sprintf("%s on the node may run, or be on the way: %s", countText(may, "instance"), first))
	}
	coming, err := tx.IncomingOn(n.ID)
	if err != nil {
		return nil, err
	}
	if coming > 0 {
		why = append(why, countText(coming, "instance")+" on the way to the node")
	}
	uploads, err := tx.UploadsOn(n.ID)
	if len(uploads) > 0 && may == 0 {
		why = append(why, fmt.Sprintf("the volumes of %s are being read", uploads[0].InstanceID))
	}
	return why, err
}

func countText(n int64, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// notHeld refuses to start what a drain holds stopped on its node.
func notHeld(tx *store.Tx, i *store.Instance) error {
	stays, err := held(tx, i)
	if err == nil && stays {
		err = fault.Coded(fault.Conflict, fault.InvalidState, "the instance is held stopped while its node is drained; it is started again when the node takes part again")
	}
	return err
}

// held reports whether a drain holds the instance stopped on its node.
func held(tx *store.Tx, i *store.Instance) (bool, error) {
	item, err := tx.HeldBy(i)
	return item != nil && (item.State == store.DrainHeld || item.State == store.DrainHolding), err
}

// staysDown notes that what a drain holds stopped was asked to stop: it is not started
// again when its node takes part again.
func staysDown(tx *store.Tx, i *store.Instance) error {
	now, err := tx.HeldBy(i)
	if err != nil || now == nil || !now.WasRunning {
		return err
	}
	if _, err := tx.LockDrain(now.NodeID); err != nil {
		return err
	}
	if now, err = tx.HeldBy(i); err != nil || now == nil || now.State != store.DrainHeld && now.State != store.DrainHolding {
		return err
	}
	now.WasRunning = false
	return tx.PutDrainItem(now)
}

// endDrain closes the drain of a node that takes part again: what has not switched
// stays, and what was stopped is started if it ran.
func (c *Control) endDrain(tx *store.Tx, nodeID, by string, outcome store.DrainOutcome) error {
	d, err := tx.LockDrain(nodeID)
	if errors.Is(err, store.ErrNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	items, err := tx.DrainItems(nodeID)
	if err != nil {
		return err
	}
	for n := range items {
		if err := c.letGo(tx, &items[n], by); err != nil {
			return err
		}
	}
	if !d.Open {
		return nil
	}
	d.Open, d.Outcome, d.EndedAt = false, outcome, tx.Now
	return tx.PutDrain(&d)
}

// letGo ends what a drain made of an instance.
func (c *Control) letGo(tx *store.Tx, item *store.DrainItem, by string) error {
	was := item.State
	holds := item.Holds
	switch item.State {
	case store.DrainPending, store.DrainMoving, store.DrainHolding:
		item.State, item.Message = store.DrainFailed, "the drain was cancelled"
	}
	if !holds {
		return nil
	}
	item.Holds = false
	if err := tx.PutDrainItem(item); err != nil {
		return err
	}
	i, err := tx.InstanceByID(item.InstanceID)
	if errors.Is(err, store.ErrNotFound) || err == nil && i.NodeID != item.NodeID {
		return nil
	}
	if err != nil {
		return err
	}
	switch {
	case i.Move != nil && i.Move.Drain:
		i.Stay(tx.Now, "the drain was cancelled")
		return c.save(tx, &i, by, "migrate-cancel", "")
	case item.WasRunning && i.Spec.DesiredState != "stopped" && (was == store.DrainHeld || was == store.DrainHolding) && (i.State == compute.StateStopped || i.State == compute.StateStopping):
		// Whoever makes an image of it meanwhile can do so again; whoever uses it waits.
		if err := failUpload(tx, i.ID, "the instance was started again, as its node takes part again; make the image anew"); err != nil {
			return err
		}
		i.Start(tx.Now)
		return c.save(tx, &i, by, "start", "its node takes part again")
	}
	return nil
}
