package control

import (
	"context"
	"errors"

	"github.com/outcrop-cloud/outcrop/internal/api"
	"github.com/outcrop-cloud/outcrop/internal/compute"
	"github.com/outcrop-cloud/outcrop/internal/iam"
	"github.com/outcrop-cloud/outcrop/internal/schedule"
	"github.com/outcrop-cloud/outcrop/internal/store"
)

// GetDrain answers how far the latest drain of a node is.
func (c *Control) GetDrain(ctx context.Context, who iam.Caller, id string) (api.Drain, error) {
	if err := iam.Allow(who, iam.GetDrain, iam.Scope{NodeID: id}); err != nil {
		return api.Drain{}, err
	}
	return c.drainOf(ctx, id)
}

func (c *Control) drainOf(ctx context.Context, id string) (out api.Drain, err error) {
	err = c.db.Read(ctx, func(tx *store.Tx) error {
		n, err := c.node(tx, id)
		if err != nil {
			return err
		}
		d, err := tx.Drain(id)
		if err != nil {
			return notFound(err, "node %q was never drained; see what that would do with: outcrop node drain %s --dry-run", id, id)
		}
		out = drainView(&d)
		if err := c.judgeSafety(tx, &n, &out); err != nil {
			return err
		}
		items, err := tx.DrainItems(id)
		if err != nil {
			return err
		}
		for i := range items {
			v, err := itemView(tx, &items[i])
			if err != nil {
				return err
			}
			out.Instances = append(out.Instances, v)
		}
		return nil
	})
	return out, err
}

func drainView(d *store.Drain) api.Drain {
	return api.Drain{NodeID: d.NodeID, Outcome: string(d.Outcome), By: d.By, Reason: d.Reason, Since: optional(d.Since),
		Deadline: optional(d.Deadline), EndedAt: optional(d.EndedAt), Instances: []api.DrainInstance{}}
}

func (c *Control) judgeSafety(tx *store.Tx, n *compute.Node, out *api.Drain) (err error) {
	out.NodeState = string(n.State())
	if out.NotSafe, err = c.notSafe(tx, n); err != nil {
		return err
	}
	out.SafeToPowerOff = len(out.NotSafe) == 0
	volumes, err := tx.VolumesOn(n.ID)
	for _, v := range volumes {
		if v.InstanceID == "" && !v.Going {
			out.LooseVolumes++
		}
	}
	return err
}

// itemView joins what the drain made of an instance with where it is.
func itemView(tx *store.Tx, item *store.DrainItem) (api.DrainInstance, error) {
	v := api.DrainInstance{InstanceID: item.InstanceID, ProjectID: item.ProjectID, Name: item.Name, Strategy: string(item.Strategy),
		Status: string(item.State), Running: item.WasRunning, TargetNodeID: item.Target, Message: item.Message, Since: optional(item.ChangedAt)}
	if item.State != store.DrainMoving {
		return v, nil
	}
	v.Status = "starting"
	i, err := tx.InstanceByID(item.InstanceID)
	if errors.Is(err, store.ErrNotFound) || err == nil && i.Move == nil {
		return v, nil
	}
	if err != nil {
		return v, err
	}
	v.Status = moveView(&i.Instance).Phase
	u, err := tx.UploadOf(i.ID)
	if errors.Is(err, store.ErrNotFound) {
		return v, nil
	}
	v.Volumes, v.Carried = int64(len(u.VolumeIDs)), carried(&u)
	return v, err
}

// previewDrain says what a drain would do now, and changes nothing. Each instance is
// placed as if those before it had gone, in the order of their ids.
func (c *Control) previewDrain(ctx context.Context, id string, in *api.DrainNode) (out api.Drain, err error) {
	err = c.lookAtFleet(ctx, func(tx *store.Tx, ix *schedule.Index) error {
		n, err := c.node(tx, id)
		if err != nil {
			return err
		}
		d := newDrain(in, tx.Now, 1)
		out = api.Drain{NodeID: id, DryRun: true, Reason: in.Reason, Instances: []api.DrainInstance{}}
		if err := c.judgeSafety(tx, &n, &out); err != nil {
			return err
		}
		rows, err := tx.InstancesOn(id)
		if err != nil {
			return err
		}
		details, err := tx.DetailsOn(id)
		if err != nil {
			return err
		}
		var taken []schedule.Allocation
		defer func() { // the index is left as it was found
			for _, a := range taken {
				ix.Release(a)
			}
		}()
		for k := range rows {
			v, took, err := previewItem(tx, ix, &rows[k], details.Of(rows[k].ID), strategyOf(&d, &rows[k].Instance))
			if err != nil {
				return err
			}
			if took != nil {
				ix.Commit(*took)
				taken = append(taken, *took)
			}
			out.Instances = append(out.Instances, v)
		}
		return nil
	})
	return out, err
}

// previewItem says what would become of an instance, and what it would take of
// another node.
func previewItem(tx *store.Tx, ix *schedule.Index, i *store.Instance, d *store.Details, s compute.MaintenanceStrategy) (v api.DrainInstance, took *schedule.Allocation, err error) {
	v = api.DrainInstance{InstanceID: i.ID, ProjectID: i.ProjectID, Name: i.Spec.Name, Strategy: string(s), Status: "planned", Running: i.State == compute.StateRunning}
	switch {
	case i.State == compute.StateTerminating:
		v.Message = "it is being terminated; the drain waits for it"
		return v, nil, nil
	case i.Move != nil:
		v.TargetNodeID, v.Message = i.Move.To, "it is on its way already"
		return v, nil, nil
	case s == compute.StrategyStop && !v.Running:
		v.Message = "it stays here, stopped"
		return v, nil, nil
	case s == compute.StrategyStop:
		v.Message = "it is stopped here, and started again when the node takes part again"
		return v, nil, nil
	}
	r, err := moveRequest(tx, i, d)
	if err != nil {
		return v, nil, err
	}
	if s == compute.StrategyRecreate {
		v.Message = "it is stopped and made anew from its image: what was written to its root volume is lost"
		if len(d.Volumes) > 1 {
			v.Message = "it has data volumes, which would not go with it: it stays; migrate it, or detach them first"
			return v, nil, nil
		}
	} else {
		v.Volumes, v.MaxBytes = int64(len(d.Volumes)), r.DiskBytes
		v.Message = "it is stopped, its volumes are carried, and it is started there"
		if !v.Running {
			v.Message = "its volumes are carried; it stays stopped"
		}
	}
	decision := ix.Place(r)
	if decision.NodeID == "" {
		decision = nowhere(decision, &r)
		e := explained(decision)
		v.Placement, v.Message = &e, "no node can take it now: "+reasons(decision)
		return v, nil, nil
	}
	v.TargetNodeID = decision.NodeID
	switch {
	case i.State == compute.StateError:
		v.Message = "it is in error, so it is stopped first; " + v.Message
	case i.State.Transitional():
		v.Message = "it is " + string(i.State) + "; once it has settled, " + v.Message
	}
	a := r.Allocation(decision)
	return v, &a, nil
}
