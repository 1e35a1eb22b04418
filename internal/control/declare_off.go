package control

import (
	"context"
	"fmt"
	"time"

	"github.com/outcrop-cloud/outcrop/internal/api"
	"github.com/outcrop-cloud/outcrop/internal/compute"
	"github.com/outcrop-cloud/outcrop/internal/fault"
	"github.com/outcrop-cloud/outcrop/internal/iam"
	"github.com/outcrop-cloud/outcrop/internal/store"
)

// DeclareNodeOff takes an operator's word that a node which nobody hears of is dead
// (contract U-21). What was to end there ends, and gives back what it held; what ran
// counts as stopped, fenced by a new epoch. Nothing is started elsewhere.
func (c *Control) DeclareNodeOff(ctx context.Context, who iam.Caller, id string, in api.DeclareOff) (api.DeclaredOff, error) {
	if err := iam.Allow(who, iam.DeclareNodeOff, iam.Scope{NodeID: id}); err != nil {
		return api.DeclaredOff{}, err
	}
	if in.DryRun {
		return c.previewOff(ctx, id)
	}
	var out api.DeclaredOff
	err := retryStale(func() error {
		return c.whilePlacing(ctx, func(p *placing) error {
			n, err := c.node(p.Tx, id)
			if err != nil {
				return err
			}
			if err := c.mayDeclareOff(&n, p.Now); err != nil {
				return err
			}
			if n.Maintenance.DeclaredOff.IsZero() {
				n.Maintenance.DeclaredOff = p.Now
				if err := changedNode(p.Tx, &n); err != nil {
					return err
				}
			}
			out, err = fenceNode(p.Tx, &n, c.fence(p.Tx, &n, who.Name))
			return err
		})
	})
	if err != nil {
		return out, err
	}
	c.log.WarnContext(ctx, "a node was declared off", "node", id, "by", who.Name, "reason", in.Reason, "instances", len(out.Instances))
	c.place.poke()
	return out, nil
}

func (c *Control) previewOff(ctx context.Context, id string) (out api.DeclaredOff, err error) {
	err = c.db.Read(ctx, func(tx *store.Tx) error {
		n, err := c.node(tx, id)
		if err != nil {
			return err
		}
		if err := c.mayDeclareOff(&n, tx.Now); err != nil {
			return err
		}
		out, err = fenceNode(tx, &n, nil)
		return err
	})
	out.DryRun = true
	return out, err
}

// mayDeclareOff refuses a node that may well be alive.
func (c *Control) mayDeclareOff(n *compute.Node, now time.Time) error {
	if n.State() == compute.NodeOff || !c.reachable(n, now) {
		return nil
	}
	const window = compute.MissedIntervals
	quiet, listened := now.Sub(n.Liveness.SeenAt), now.Sub(c.since)
	if quiet > window*c.o.HeartbeatInterval {
		return fault.Coded(fault.Conflict, fault.InvalidState,
			"this server has listened for %s only, which is too short to tell that node %q is gone; try again in %s", listened.Round(time.Second), n.ID,
			(window*c.o.HeartbeatInterval-listened).Round(time.Second)+time.Second)
	}
	return fault.Coded(fault.Conflict, fault.InvalidState,
		"node %q reported %s ago, so it is not dead; to power it off: outcrop node shutdown %s", n.ID, quiet.Round(time.Second), n.ID)
}

// fencing is what is done with an instance that Fence has changed, and with a volume
// that was to go. nil only looks.
type fencing struct {
	instance func(*store.Instance, *store.Details) error
	volume   func(*compute.Volume) error
}

// fenceNode says what becomes of all that is on a node, and lets do bring it about.
func fenceNode(tx *store.Tx, n *compute.Node, do *fencing) (api.DeclaredOff, error) {
	out := api.DeclaredOff{NodeID: n.ID, DeclaredOffAt: optional(n.Maintenance.DeclaredOff), Instances: []api.FencedInstance{}, VolumeIDs: []string{}}
	volumes, err := tx.VolumesOn(n.ID)
	if err != nil {
		return out, err
	}
	for k := range volumes {
		v := &volumes[k]
		if !v.Going {
			continue
		}
		out.VolumeIDs = append(out.VolumeIDs, v.ID)
		if do != nil {
			if err := do.volume(v); err != nil {
				return out, err
			}
		}
	}
	rows, err := tx.InstancesOn(n.ID)
	if err != nil {
		return out, err
	}
	for k := range rows {
		i := &rows[k]
		d, err := tx.DetailsOf(i.ID)
		if err != nil {
			return out, err
		}
		f := api.FencedInstance{ID: i.ID, ProjectID: i.ProjectID, Name: i.Spec.Name, State: string(i.State)}
		changed := i.Fence(fmt.Sprintf("its node %s was declared off; start it when the node is back", n.ID), tx.Now)
		if f.Becomes = string(i.State); i.State == compute.StateTerminated {
			f.Releases = released(d)
		}
		out.Instances = append(out.Instances, f)
		if changed && do != nil {
			if err := do.instance(i, d); err != nil {
				return out, err
			}
		}
	}
	return out, nil
}

// released is what a terminated instance gives back.
func released(d *store.Details) *api.Released {
	r := &api.Released{PrivateIPs: []string{}, VolumeIDs: []string{}}
	for _, f := range d.Interfaces {
		r.PrivateIPs = append(r.PrivateIPs, f.Address.String())
	}
	for _, v := range d.Volumes {
		if v.Root || v.Auto {
			r.VolumeIDs = append(r.VolumeIDs, v.ID)
		} else {
			r.Detached = append(r.Detached, v.ID)
		}
	}
	return r
}

// fence writes it down. A node that comes back removes what counts as gone.
func (c *Control) fence(tx *store.Tx, n *compute.Node, by string) *fencing {
	gone := func(v *compute.Volume) error {
		if err := tx.Depart(&store.Departure{NodeID: n.ID, ID: v.ID, Volume: true}); err != nil {
			return err
		}
		if err := tx.DeleteVolume(v.ID); err != nil {
			return err
		}
		return tx.RoomChanged(n.ID)
	}
	return &fencing{volume: gone, instance: func(i *store.Instance, d *store.Details) error {
		if err := failUpload(tx, i.ID, "its node was declared off"); err != nil {
			return err
		}
		if err := c.save(tx, i, by, "node-declared-off", ""); err != nil {
			return err
		}
		if i.State != compute.StateTerminated {
			return nil
		}
		if err := tx.Depart(&store.Departure{NodeID: n.ID, ID: i.ID, Epoch: i.Epoch}); err != nil {
			return err
		}
		for k := range d.Volumes {
			if v := &d.Volumes[k]; v.Auto && !v.Root { // the root went with the instance
				if err := gone(v); err != nil {
					return err
				}
			}
		}
		return nil
	}}
}

// fenceLate ends what was asked to end after its node had been declared off.
func (c *Control) fenceLate(ctx context.Context, nodeID string) error {
	due := false
	err := c.db.Read(ctx, func(tx *store.Tx) error {
		rows, err := tx.InstancesOn(nodeID)
		for k := range rows {
			due = due || rows[k].Fence("", tx.Now)
		}
		return err
	})
	if err != nil || !due {
		return err
	}
	err = retryStale(func() error {
		return c.whilePlacing(ctx, func(p *placing) error {
			n, err := p.Node(nodeID)
			if err != nil || n.Maintenance.DeclaredOff.IsZero() {
				return err // it is back
			}
			_, err = fenceNode(p.Tx, &n, c.fence(p.Tx, &n, "system"))
			return err
		})
	})
	c.place.poke()
	return err
}

// returned tells of a node that was declared off and beats again.
func (c *Control) returned(ctx context.Context, n *compute.Node) {
	c.log.WarnContext(ctx, "a node that was declared off is back; what was fenced meanwhile is taken down there", "node", n.ID)
	c.hub.nudge(n.ID)
	c.place.poke()
	c.converge.poke()
}

// returnShown is how long the finding on a node that was declared off stands.
const returnShown = 24 * time.Hour

// wasDeclaredOff is the finding on a node that came back though it was declared off.
func wasDeclaredOff(n *compute.Node, now time.Time) (f api.Finding, ok bool) {
	at := n.Maintenance.ReturnedAt
	if at.IsZero() || now.Sub(at) >= returnShown {
		return f, false
	}
	return api.Finding{Code: "WasDeclaredOff", Since: &at,
		Message: "the node was declared off and has come back; its instances were fenced meanwhile: they are stopped, or gone"}, true
}
