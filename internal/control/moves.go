package control

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/outcrop-cloud/outcrop/internal/api"
	"github.com/outcrop-cloud/outcrop/internal/compute"
	"github.com/outcrop-cloud/outcrop/internal/fault"
	"github.com/outcrop-cloud/outcrop/internal/iam"
	"github.com/outcrop-cloud/outcrop/internal/schedule"
	"github.com/outcrop-cloud/outcrop/internal/store"
)

// A migration goes by what its node reports, each step in one transaction:
//
//	accepted    room is held on the other node; this one is told to stop the VM
//	at rest     this one has said that the VM is down: its volumes are wanted
//	switch      the last volume is here: the instance is the other node's
//
// Until the switch it can be given up; the instance then stays (docs/adr/0010).

// moveOrder is what a migration is asked for with.
type moveOrder struct {
	to       string // node; empty for the best
	recreate bool
	drain    bool
	ran      bool // start it there though it is stopped: it was stopped for this
	deadline time.Time
}

// MigrateInstance moves a running or stopped instance, volumes and all, to another node.
func (c *Control) MigrateInstance(ctx context.Context, who iam.Caller, project, id string, in api.MigrateInstance) (api.Instance, error) {
	if err := iam.Allow(who, iam.MigrateInstance, iam.Scope{ProjectID: project}); err != nil {
		return api.Instance{}, err
	}
	patience := compute.MigrateDeadline
	if in.DeadlineSeconds != 0 {
		patience = time.Duration(in.DeadlineSeconds) * time.Second
	}
	var out api.Instance
	err := c.move(ctx, project, id, who.Name, moveOrder{to: in.TargetNodeID, deadline: c.now().Add(patience)}, func(p *placing, i *store.Instance) error {
		d, err := p.DetailsOf(i.ID)
		out = instanceView(&i.Instance, d, p.Now)
		return err
	})
	return out, err
}

// CancelMigration gives up a migration that has not switched: the instance starts
// again where it is, if it ran.
func (c *Control) CancelMigration(ctx context.Context, who iam.Caller, project, id string) (api.Instance, error) {
	return c.change(ctx, who, iam.CancelMigration, project, id, func(tx *store.Tx, i *store.Instance) (string, error) {
		if i.Move == nil {
			return "", fault.Coded(fault.Conflict, fault.InvalidState, "no migration of the instance can be cancelled: it is %s on node %q", i.State, i.NodeID)
		}
		i.Stay(tx.Now, "the migration was cancelled")
		return "migrate-cancel", nil
	})
}

// unplaceable is a request that no node takes now.
type unplaceable struct{ request schedule.Request }

func (u *unplaceable) Error() string { return "no node can take the instance" }

// move begins a migration; also runs in its transaction. A refusal for want of a
// node says why.
func (c *Control) move(ctx context.Context, project, id, by string, o moveOrder, also func(*placing, *store.Instance) error) error {
	var from, to string
	err := retryStale(func() error {
		return c.whilePlacing(ctx, func(p *placing) error {
			i, err := instance(p.Tx, project, id)
			if err != nil {
				return err
			}
			if err := c.beginMove(p, &i, by, o); err != nil {
				return err
			}
			from, to = i.NodeID, i.Move.To
			return also(p, &i)
		})
	})
	if none, ok := errors.AsType[*unplaceable](err); ok {
		return c.whyNowhere(ctx, none.request)
	}
	if err == nil {
		c.hub.nudge(from)
		c.hub.nudge(to)
	}
	return err
}

// whyNowhere explains a refusal, outside of the write that met it.
func (c *Control) whyNowhere(ctx context.Context, r schedule.Request) error {
	var d schedule.Decision
	if err := c.lookAtFleet(ctx, func(_ *store.Tx, ix *schedule.Index) error { d = ix.Place(r); return nil }); err != nil {
		return err
	}
	if d.NodeID != "" {
		return fault.Coded(fault.Conflict, fault.NoRoom, "there was no room on any node just now, and there is some again; try again")
	}
	d = nowhere(d, &r)
	e := fault.Coded(fault.Conflict, fault.NoRoom, "no node can take the instance: %s", reasons(d))
	e.Details = explained(d)
	return e
}

// nowhere is a refusal that does not say twice that the instance's own node is none.
func nowhere(d schedule.Decision, r *schedule.Request) schedule.Decision {
	if len(r.Avoid) == 1 {
		d.Reasons = slices.DeleteFunc(slices.Clone(d.Reasons), func(r schedule.Reason) bool { return r.Code == schedule.CodeAvoided })
	}
	return d
}

// beginMove chooses the node and accepts the migration.
func (c *Control) beginMove(p *placing, i *store.Instance, by string, o moveOrder) error {
	if i.State != compute.StateRunning && i.State != compute.StateStopped {
		return invalidState(i, "migrate", "it must be running or stopped")
	}
	if i.NodeID == "" {
		return fault.Coded(fault.Conflict, fault.InvalidState, "the instance has never been on a node; start it, and it is placed")
	}
	if err := noUpload(p.Tx, i); err != nil {
		return err
	}
	d, err := p.DetailsOf(i.ID)
	if err != nil {
		return err
	}
	if o.recreate && len(d.Volumes) > 1 {
		return fault.Coded(fault.Conflict, fault.InvalidState, "the instance has data volumes, which would not go with it: migrate it, or detach them first")
	}
	source, err := p.Node(i.NodeID)
	if err != nil {
		return err
	}
	if !c.reachable(&source, p.Now) {
		return fault.Coded(fault.Conflict, fault.NodeUnreachable, "node %q does not report, so what runs there cannot be stopped and read; wait until it is back", i.NodeID)
	}
	r, err := moveRequest(p.Tx, i, d)
	if err != nil {
		return err
	}
	to, err := p.destination(r, o.to)
	if err != nil {
		return err
	}
	room := store.Allocation{InstanceID: i.ID, ProjectID: i.ProjectID, Purpose: store.Moving, Allocation: r.Allocation(to)}
	if err := p.Allocate(&room); err != nil {
		return err
	}
	i.Migrate(p.Now, compute.Move{To: to.NodeID, Recreate: o.recreate, Drain: o.drain, WasRunning: o.ran, StopBy: p.Now.Add(compute.DefaultStopDeadline)}, o.deadline)
	message := "from node " + i.NodeID + " to node " + to.NodeID
	if o.drain {
		message += ", as its node is drained"
	}
	return c.save(p.Tx, i, by, "migrate", message)
}

// moveRequest is what a placed instance asks of another node: all that it asked for
// when it was placed (lesson 17), and no node that still has something of it.
func moveRequest(tx *store.Tx, i *store.Instance, d *store.Details) (schedule.Request, error) {
	held, err := tx.Allocation(i.ID, store.Holding)
	if err != nil {
		return schedule.Request{}, err
	}
	r := requestOf(&i.Instance, usage(&i.Instance, d).DiskBytes)
	r.From = &held.Allocation
	if r.Group, err = groupOf(tx, i.ProjectID, i.Spec.PlacementGroupID); err != nil {
		return r, err
	}
	if r.Group != nil && held.Seat.Group == r.Group.ID {
		r.Group.Partition = held.Seat.Partition
	}
	r.Avoid, err = tx.NodesLeft(i.ID)
	// Its own as well, so that it is never the nearest miss.
	r.Avoid = append(r.Avoid, i.NodeID)
	return r, err
}

// destination is the node that was asked for, if it will do, or the best.
func (p *placing) destination(r schedule.Request, wanted string) (schedule.Decision, error) {
	if wanted == "" {
		d := p.pick(r)
		if d.NodeID == "" {
			return d, &unplaceable{r}
		}
		return d, nil
	}
	d := schedule.Decision{NodeID: wanted}
	if r.Group != nil {
		d.Partition = r.Group.Partition
	}
	if wanted == r.From.NodeID {
		return d, fault.Coded(fault.Conflict, fault.InvalidState, "the instance is on node %q already", wanted)
	}
	if _, err := p.Node(wanted); err != nil {
		return d, notFound(err, "there is no node %q; list them with: outcrop node list", wanted)
	}
	p.judge(wanted)
	if misses := p.ix.Check(wanted, d.Partition, r); len(misses) > 0 {
		return d, fault.Coded(fault.Conflict, fault.NoRoom, "node %q cannot take the instance; this would do: %s", wanted, schedule.Fix(misses))
	}
	return d, nil
}

// atRest goes on with a migration whose VM is down. The others are nodes that have to
// hear of it.
func (c *Control) atRest(tx *store.Tx, i *store.Instance) (others []string, err error) {
	if i.Move.Recreate {
		to := i.Move.To
		return []string{to}, c.switchOver(tx, i, nil)
	}
	d, err := tx.DetailsOf(i.ID)
	if err != nil {
		return nil, err
	}
	u := store.Upload{ID: compute.NewID(compute.MovePrefix), InstanceID: i.ID, NodeID: i.NodeID, Epoch: i.Epoch}
	for _, v := range d.Volumes {
		u.VolumeIDs = append(u.VolumeIDs, v.ID)
	}
	u.Arrived = make([]compute.ImageVolume, len(u.VolumeIDs))
	if err := tx.PutUpload(&u); err != nil {
		return nil, err
	}
	return nil, c.save(tx, i, "node "+i.NodeID, "migrate-rest", "the VM is down; "+countText(int64(len(u.VolumeIDs)), "volume")+" to carry")
}

// switchOver makes the instance the other node's. bases are the carried volumes by
// id; without them the root volume is made anew there. A node that can take it no
// longer ends the migration.
func (c *Control) switchOver(tx *store.Tx, i *store.Instance, bases map[string]*compute.ImageVolume) error {
	from, to := i.NodeID, i.Move.To
	why, err := c.refusesNow(tx, to)
	if err != nil {
		return err
	}
	if why != "" {
		i.Stay(tx.Now, why)
		return c.save(tx, i, "system", "migrate-failed", "")
	}
	room, err := tx.Allocation(i.ID, store.Moving)
	if err != nil {
		return err
	}
	d, err := tx.DetailsOf(i.ID)
	if err != nil {
		return err
	}
	i.Arrive(tx.Now)
	for n := range d.Volumes {
		v := &d.Volumes[n]
		v.NodeID, v.Base, v.Made = to, bases[v.ID], false
		if err := tx.UpdateVolume(v); err != nil {
			return err
		}
		if v.Root {
			continue // goes with the instance's files
		}
		if err := tx.Depart(&store.Departure{NodeID: from, ID: v.ID, Volume: true}); err != nil {
			return err
		}
	}
	if err := tx.Depart(&store.Departure{NodeID: from, ID: i.ID, Epoch: i.Epoch}); err != nil {
		return err
	}
	room.Purpose = store.Holding
	if err := tx.Allocate(&room); err != nil {
		return err
	}
	return c.save(tx, i, "system", "migrated", "from node "+from+" to node "+to)
}

// endMove takes back what a migration held beside the instance itself.
func endMove(tx *store.Tx, i *store.Instance) error {
	if err := tx.ReleasePurpose(i.ID, store.Moving); err != nil {
		return err
	}
	u, err := tx.UploadOf(i.ID)
	if errors.Is(err, store.ErrNotFound) || err == nil && u.ImageID != "" {
		return nil
	}
	if err != nil {
		return err
	}
	if err := tx.DeleteUpload(u.ID); err != nil {
		return err
	}
	return tx.TouchNode(u.NodeID)
}

// refusesNow says why a node that was chosen can no longer take the instance; empty
// when it can.
func (c *Control) refusesNow(tx *store.Tx, id string) (string, error) {
	n, err := tx.Node(id)
	switch {
	case errors.Is(err, store.ErrNotFound):
		return fmt.Sprintf("node %q is not there any more", id), nil
	case err != nil:
		return "", err
	case n.State() != compute.NodeReady:
		return fmt.Sprintf("node %q is %s", id, n.State()), nil
	case !c.reachable(&n, tx.Now):
		return fmt.Sprintf("node %q does not report", id), nil
	}
	return "", nil
}

// arrivedMove is told of every volume that is here.
func (c *Control) arrivedMove(tx *store.Tx, u *store.Upload) (others []string, err error) {
	i, err := tx.InstanceByID(u.InstanceID)
	if err != nil {
		return nil, err
	}
	if i.Move == nil || !i.Move.AtRest || i.Epoch != u.Epoch { // endMove took the upload with it
		return nil, notFound(store.ErrNotFound, "nobody waits for this volume")
	}
	d, err := tx.DetailsOf(i.ID)
	if err != nil {
		return nil, err
	}
	size := make(map[string]int64, len(d.Volumes))
	for _, v := range d.Volumes {
		size[v.ID] = v.SizeBytes
	}
	bases := make(map[string]*compute.ImageVolume, len(u.VolumeIDs))
	for n, id := range u.VolumeIDs {
		v := u.Arrived[n]
		if v.VirtualSize > wholeSectors(size[id]) { // the other node would make it as large as that
			i.Stay(tx.Now, fmt.Sprintf("what its node sent of volume %s is a disk of %s, and the volume has %s", id, sizeText(v.VirtualSize), sizeText(size[id])))
			return nil, c.save(tx, &i, "node "+u.NodeID, "migrate-failed", "")
		}
		v.SnapshotID = ""
		bases[id] = &v
	}
	to := i.Move.To
	return []string{to}, c.switchOver(tx, &i, bases)
}

// tendMoves gives up migrations whose nodes are not there to finish them.
func (c *Control) tendMoves(ctx context.Context) error {
	var doomed []store.Instance
	err := c.db.Read(ctx, func(tx *store.Tx) error {
		all, err := tx.MovingInstances()
		if err != nil {
			return err
		}
		for _, i := range all {
			why, err := c.hopelessMove(tx, &i)
			if err != nil {
				return err
			}
			if why != "" {
				doomed = append(doomed, i)
			}
		}
		return nil
	})
	for _, i := range doomed {
		_, cerr := c.change(ctx, iam.System, iam.UpdateInstance, i.ProjectID, i.ID, func(tx *store.Tx, i *store.Instance) (string, error) {
			why, err := c.hopelessMove(tx, i)
			if err != nil || why == "" {
				return "", err
			}
			i.Stay(tx.Now, why)
			return "migrate-failed", nil
		})
		if cerr != nil && !fault.Is(cerr, fault.NotFound) {
			err = errors.Join(err, cerr)
		}
	}
	return err
}

func (c *Control) hopelessMove(tx *store.Tx, i *store.Instance) (string, error) {
	if i.Move == nil {
		return "", nil
	}
	source, err := tx.Node(i.NodeID)
	if err != nil {
		return "", err
	}
	if !c.reachable(&source, tx.Now) {
		return fmt.Sprintf("its own node %q does not report", i.NodeID), nil
	}
	return c.refusesNow(tx, i.Move.To)
}

// uploadsFailed takes a node's word that volumes cannot be read, whatever is tried.
func (c *Control) uploadsFailed(tx *store.Tx, nodeID string, all []api.FailedUpload) (changed bool, err error) {
	wanted, err := tx.UploadsOn(nodeID)
	if err != nil {
		return false, err
	}
	said := make(map[string]api.FailedUpload, len(all))
	for _, f := range all {
		said[f.ID] = f
	}
	for _, u := range wanted {
		f, ok := said[u.ID]
		if !ok {
			continue
		}
		if u, err = tx.UploadToChange(nodeID, u.ID); errors.Is(err, store.ErrNotFound) {
			continue
		} else if err != nil {
			return false, err
		}
		changed = true
		why := cut(f.Message, maxMessage)
		if u.ImageID != "" {
			if err := failUpload(tx, u.InstanceID, why); err != nil {
				return false, err
			}
			continue
		}
		i, err := tx.InstanceByID(u.InstanceID)
		if err != nil {
			return false, err
		}
		if i.Move == nil {
			continue
		}
		i.Stay(tx.Now, why)
		if err := c.save(tx, &i, "node "+nodeID, "migrate-failed", ""); err != nil {
			return false, err
		}
	}
	return changed, nil
}

// moveView is how far a migration is.
func moveView(i *compute.Instance) *api.Migration {
	m := i.Move
	if m == nil {
		return nil
	}
	v := &api.Migration{TargetNodeID: m.To, Since: m.Since, Deadline: i.Deadline, Phase: "stopping"}
	if m.AtRest {
		v.Phase = "carrying"
	}
	return v
}

// carried counts the volumes of an upload that are here.
func carried(u *store.Upload) (n int64) {
	return int64(len(slices.DeleteFunc(slices.Clone(u.Arrived), func(v compute.ImageVolume) bool { return v.SHA256 == "" })))
}
