package control

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"github.com/outcrop-cloud/outcrop/internal/api"
	"github.com/outcrop-cloud/outcrop/internal/compute"
	"github.com/outcrop-cloud/outcrop/internal/fault"
	"github.com/outcrop-cloud/outcrop/internal/iam"
	"github.com/outcrop-cloud/outcrop/internal/store"
)

// defaultDrainDeadline is how long a drain goes on where it does not say.
const defaultDrainDeadline = time.Hour

// DrainNode empties a node, or says what that would do (lesson 22).
func (c *Control) DrainNode(ctx context.Context, who iam.Caller, id string, in api.DrainNode) (api.Drain, error) {
	if err := iam.Allow(who, iam.DrainNode, iam.Scope{NodeID: id}); err != nil {
		return api.Drain{}, err
	}
	if err := checkDrain(&in); err != nil {
		return api.Drain{}, err
	}
	if in.DryRun {
		return c.previewDrain(ctx, id, &in)
	}
	_, err := c.maintain(ctx, who, iam.DrainNode, id, func(tx *store.Tx, n *compute.Node) (bool, error) {
		before, err := tx.LockDrain(id)
		if err != nil && !errors.Is(err, store.ErrNotFound) {
			return false, err
		}
		d := newDrain(&in, tx.Now, c.o.DrainParallel)
		d.NodeID, d.By = id, who.Name
		if before.Open {
			goOn(&d, &before, &in)
		}
		if err := replaceDrain(tx, &d); err != nil {
			return false, err
		}
		return n.Maintenance.Enter(compute.NodeDraining, who.Name, in.Reason, tx.Now), nil
	})
	if err != nil {
		return api.Drain{}, err
	}
	return c.GetDrain(ctx, who, id)
}

// goOn keeps of a drain that is under way what asking again does not name: asking again
// tries anew, and a request whose answer was lost is no longer drain.
func goOn(d, before *store.Drain, in *api.DrainNode) {
	d.Since = before.Since
	if in.Reason == "" {
		d.By, d.Reason = before.By, before.Reason
	}
	if in.DeadlineSeconds == 0 {
		d.Deadline = before.Deadline
	}
	if in.Parallel == 0 {
		d.Parallel = before.Parallel
	}
	d.Strategy = cmp.Or(d.Strategy, before.Strategy)
	if in.Overrides == nil {
		d.Overrides = before.Overrides
	}
}

// replaceDrain writes a drain and an item for every instance on the node. What an
// earlier drain of the node did stays done: what it holds is held, and what it has on
// its way goes on.
func replaceDrain(tx *store.Tx, d *store.Drain) error {
	items, err := tx.DrainItems(d.NodeID)
	if err != nil {
		return err
	}
	if err := tx.NewDrain(d); err != nil {
		return err
	}
	for n := range items {
		item := &items[n]
		if !item.Holds || item.State == store.DrainPending {
			continue
		}
		i, err := tx.InstanceByID(item.InstanceID)
		if errors.Is(err, store.ErrNotFound) {
			continue
		}
		if err != nil {
			return err
		}
		if item.State == store.DrainHeld {
			if item.Strategy = strategyOf(d, &i.Instance); item.Strategy != compute.StrategyStop {
				item.State = store.DrainPending
			}
		}
		if err := tx.PutDrainItem(item); err != nil {
			return err
		}
	}
	return findItems(tx, d)
}

func checkDrain(in *api.DrainNode) error {
	var f []fault.Field
	for id, s := range in.Overrides {
		if !compute.ValidInstanceID(id) {
			f = append(f, fault.Field{Path: "overrides." + id, Message: "is not the id of an instance"})
		} else if !slices.Contains(compute.MaintenanceStrategies, compute.MaintenanceStrategy(s)) {
			f = append(f, fault.Field{Path: "overrides." + id, Message: "is migrate, stop or recreate"})
		}
	}
	slices.SortFunc(f, func(a, b fault.Field) int { return cmp.Compare(a.Path, b.Path) })
	return fault.InvalidFields(f)
}

func newDrain(in *api.DrainNode, now time.Time, parallel int) store.Drain {
	d := store.Drain{Open: true, Reason: in.Reason, Since: now, Parallel: cmp.Or(int(in.Parallel), parallel), Strategy: compute.MaintenanceStrategy(in.Strategy),
		Deadline: now.Add(cmp.Or(time.Duration(in.DeadlineSeconds)*time.Second, defaultDrainDeadline))}
	for id, s := range in.Overrides {
		if d.Overrides == nil {
			d.Overrides = map[string]compute.MaintenanceStrategy{}
		}
		d.Overrides[id] = compute.MaintenanceStrategy(s)
	}
	return d
}

// strategyOf is what a drain does with an instance.
func strategyOf(d *store.Drain, i *compute.Instance) compute.MaintenanceStrategy {
	return cmp.Or(d.Overrides[i.ID], d.Strategy, i.Spec.MaintenanceStrategy, compute.StrategyMigrate)
}

// CancelDrain lets a node that is drained take part again. What has switched stays
// where it is now.
func (c *Control) CancelDrain(ctx context.Context, who iam.Caller, id string) (api.Drain, error) {
	_, err := c.maintain(ctx, who, iam.CancelDrain, id, func(tx *store.Tx, n *compute.Node) (bool, error) {
		d, err := tx.LockDrain(id)
		if errors.Is(err, store.ErrNotFound) || err == nil && !d.Open {
			return false, fault.Coded(fault.Conflict, fault.InvalidState, "no drain of node %q goes on; let it take part again with: outcrop node uncordon %s", id, id)
		}
		if err != nil {
			return false, err
		}
		changed := n.Maintenance.Leave()
		return changed, c.endDrain(tx, id, who.Name, store.DrainCancelled)
	})
	if err != nil {
		return api.Drain{}, err
	}
	return c.drainOf(ctx, id)
}

// driveDrains moves every drain on. Of several servers one does it.
func (c *Control) driveDrains(ctx context.Context) error {
	var open []store.Drain
	if err := c.db.Read(ctx, func(tx *store.Tx) (err error) {
		open, err = tx.OpenDrains()
		return err
	}); err != nil || len(open) == 0 {
		return err
	}
	leads := false
	if err := c.db.Write(ctx, func(tx *store.Tx) (err error) {
		leads, err = tx.Lead("drains", c.name, tx.Now.Add(30*time.Second))
		return err
	}); err != nil || !leads {
		return err
	}
	var err error
	for n := range open {
		err = errors.Join(err, c.driveDrain(ctx, open[n].NodeID))
	}
	return err
}

// driveDrain looks at every instance of a drain and begins with as many as may be on
// their way.
func (c *Control) driveDrain(ctx context.Context, nodeID string) error {
	var next []store.DrainItem
	var d store.Drain
	err := retryStale(func() error {
		return c.db.Write(ctx, func(tx *store.Tx) (err error) {
			next = nil
			if d, err = tx.LockDrain(nodeID); err != nil || !d.Open {
				return err
			}
			next, err = c.lookAtItems(tx, &d)
			return err
		})
	})
	if err != nil {
		return err
	}
	for n := range next {
		if berr := c.beginItem(ctx, &d, &next[n]); berr != nil {
			err = errors.Join(err, berr)
		}
	}
	c.hub.nudge(nodeID)
	return err
}

// lookAtItems draws what follows from where the instances are. It answers those that
// are to begin, and ends the drain when nothing is left to do or its time is over.
func (c *Control) lookAtItems(tx *store.Tx, d *store.Drain) (next []store.DrainItem, err error) {
	if err := findItems(tx, d); err != nil {
		return nil, err
	}
	items, err := tx.DrainItems(d.NodeID)
	if err != nil {
		return nil, err
	}
	late := !tx.Now.Before(d.Deadline)
	active, left := 0, 0
	for n := range items {
		item := &items[n]
		before := *item
		if err := c.lookAtItem(tx, item, late); err != nil {
			return nil, err
		}
		if *item != before {
			if err := tx.PutDrainItem(item); err != nil {
				return nil, err
			}
		}
		switch item.State {
		case store.DrainMoving, store.DrainHolding:
			active++
			left++
		case store.DrainPending:
			left++
			if !tx.Now.Before(item.RetryAt) {
				next = append(next, *item)
			}
		}
	}
	switch {
	case left == 0 || late:
		d.Outcome = store.DrainDone
		if late {
			d.Outcome = store.DrainLate
		}
		return nil, drainEnded(tx, d)
	case active >= d.Parallel:
		return nil, nil
	}
	// Who waited longest comes first, so that one that cannot go keeps nobody.
	slices.SortStableFunc(next, func(a, b store.DrainItem) int { return a.RetryAt.Compare(b.RetryAt) })
	return next[:min(len(next), d.Parallel-active)], nil
}

// drainEnded keeps the node out of placement: what comes next is the operator's.
func drainEnded(tx *store.Tx, d *store.Drain) error {
	d.Open, d.EndedAt = false, tx.Now
	if err := tx.PutDrain(d); err != nil {
		return err
	}
	n, err := tx.Node(d.NodeID)
	if err != nil {
		return err
	}
	if n.Maintenance.Mode == compute.NodeDraining {
		n.Maintenance.Mode = compute.NodeMaintenance
	}
	return tx.UpdateNode(&n)
}

// findItems makes an item for every instance on the node that has none.
func findItems(tx *store.Tx, d *store.Drain) error {
	rows, err := tx.InstancesOn(d.NodeID)
	if err != nil {
		return err
	}
	items, err := tx.DrainItems(d.NodeID)
	if err != nil {
		return err
	}
	known := map[string]*store.DrainItem{}
	for n := range items {
		known[items[n].InstanceID] = &items[n]
	}
	for n := range rows {
		i := &rows[n]
		if item := known[i.ID]; item != nil && item.Holds {
			continue
		}
		item := store.DrainItem{NodeID: d.NodeID, InstanceID: i.ID, Holds: true, ProjectID: i.ProjectID, Name: i.Spec.Name,
			Strategy: strategyOf(d, &i.Instance), State: store.DrainPending}
		if err := tx.PutDrainItem(&item); err != nil {
			return err
		}
	}
	return nil
}

// How long a drain waits before it tries again with an instance that could not go, and
// with one that is about to settle.
const (
	retryDrain  = 15 * time.Second
	retrySettle = 2 * time.Second
)

// lookAtItem draws what follows from where an instance is now.
func (c *Control) lookAtItem(tx *store.Tx, item *store.DrainItem, late bool) error {
	if item.State == store.DrainOver || item.State == store.DrainFailed {
		return nil
	}
	i, err := tx.InstanceByID(item.InstanceID)
	switch {
	case errors.Is(err, store.ErrNotFound) || err == nil && i.State == compute.StateTerminated:
		item.State, item.Holds, item.Message = store.DrainOver, false, "it was terminated"
		return nil
	case err != nil:
		return err
	case i.NodeID != item.NodeID:
		lookElsewhere(item, &i, late)
		return nil
	}
	switch item.State {
	case store.DrainMoving:
		if i.Move == nil { // it stays
			item.State, item.Message, item.RetryAt = store.DrainPending, cmp.Or(i.Message, "it was not moved"), tx.Now.Add(retryDrain)
			item.Target, item.WasRunning = "", false
		}
	case store.DrainHolding, store.DrainHeld:
		switch i.State {
		case compute.StateStopped:
			item.State, item.Message = store.DrainHeld, ""
		case compute.StateStopping, compute.StateTerminating:
		default:
			item.State, item.Message, item.RetryAt = store.DrainPending, cmp.Or(i.Message, "it is "+string(i.State)+" again"), tx.Now.Add(retryDrain)
		}
	}
	// What is being stopped for the drain will be held, though later: else it would be
	// stopped and nobody would start it again.
	if late && item.State != store.DrainHeld && !(item.State == store.DrainHolding && i.State == compute.StateStopping) {
		return c.outOfTime(tx, item, &i)
	}
	return nil
}

// lookElsewhere follows an instance that is on another node by now.
func lookElsewhere(item *store.DrainItem, i *store.Instance, late bool) {
	item.Holds, item.Target, item.Message = false, i.NodeID, ""
	switch i.State {
	case compute.StateStarting:
		if !late {
			return // not done, though no longer on this node
		}
		item.Message = "it still starts on node " + i.NodeID
	case compute.StateError:
		item.Message = "it is on node " + i.NodeID + " and did not start there: " + i.Message
	}
	item.State = store.DrainOver
}

// outOfTime leaves an instance where it is, with the reason.
func (c *Control) outOfTime(tx *store.Tx, item *store.DrainItem, i *store.Instance) error {
	why := item.Message
	if why == "" {
		why = "its turn did not come"
		if item.State != store.DrainPending {
			why = "it was still " + string(i.State)
		}
	}
	item.State, item.Holds, item.Message = store.DrainFailed, false, "the drain's deadline passed; "+why
	if i.Move == nil || !i.Move.Drain {
		return nil
	}
	i.Stay(tx.Now, "the drain's deadline passed")
	return c.save(tx, i, "system", "migrate-failed", "")
}

// errMovedOn says that an instance's turn is over before it came.
var errMovedOn = errors.New("the drain has moved on")

// beginItem begins with an instance, or notes why that cannot be now.
func (c *Control) beginItem(ctx context.Context, d *store.Drain, item *store.DrainItem) error {
	who := iam.System
	who.Name = d.By
	began := func(tx *store.Tx, i *store.Instance, ran bool, to store.DrainState, target string) error {
		if _, err := tx.LockDrain(item.NodeID); err != nil {
			return err
		}
		now, err := tx.HeldBy(i)
		if err != nil || now == nil || now.State != store.DrainPending { // cancelled meanwhile
			return cmp.Or(err, errMovedOn)
		}
		now.State, now.WasRunning, now.Target, now.Message = to, ran, target, ""
		return tx.PutDrainItem(now)
	}
	err := c.settleFirst(ctx, who, item)
	switch {
	case err != nil:
	case item.Strategy == compute.StrategyStop:
		_, err = c.change(ctx, who, iam.StopInstance, item.ProjectID, item.InstanceID, func(tx *store.Tx, i *store.Instance) (string, error) {
			ran := i.State == compute.StateRunning
			if !ran && i.State != compute.StateStopped {
				return "", invalidState(i, "drain", "it must be running or stopped")
			}
			if err := began(tx, i, ran || item.WasRunning, store.DrainHolding, ""); err != nil || !ran {
				return "", err
			}
			i.Stop(tx.Now, compute.DefaultStopDeadline, false)
			return "drain", nil
		})
	default:
		o := moveOrder{recreate: item.Strategy == compute.StrategyRecreate, drain: true, ran: item.WasRunning, deadline: d.Deadline}
		err = c.move(ctx, item.ProjectID, item.InstanceID, d.By, o, func(p *placing, i *store.Instance) error {
			return began(p.Tx, i, i.Move.WasRunning, store.DrainMoving, i.Move.To)
		})
	}
	if f, refused := errors.AsType[*fault.Error](err); refused {
		after := retryDrain
		if f.Code == fault.InvalidState {
			after = retrySettle
		}
		return c.drainLater(ctx, item, f.Message, after)
	}
	if errors.Is(err, errMovedOn) {
		return nil // looked at again
	}
	return err
}

// settleFirst stops an instance that is in error, so that its node says for certain
// that nothing of it runs.
func (c *Control) settleFirst(ctx context.Context, who iam.Caller, item *store.DrainItem) error {
	_, err := c.change(ctx, who, iam.StopInstance, item.ProjectID, item.InstanceID, func(tx *store.Tx, i *store.Instance) (string, error) {
		if i.State != compute.StateError || i.NodeID != item.NodeID {
			return "", nil
		}
		i.Stop(tx.Now, compute.DefaultStopDeadline, false)
		return "drain", nil
	})
	return err
}

// drainLater notes why an instance cannot go now; it is tried again.
func (c *Control) drainLater(ctx context.Context, item *store.DrainItem, why string, after time.Duration) error {
	return c.db.Write(ctx, func(tx *store.Tx) error {
		if _, err := tx.LockDrain(item.NodeID); err != nil {
			return err
		}
		items, err := tx.DrainItems(item.NodeID)
		if err != nil {
			return err
		}
		for n := range items {
			if now := &items[n]; now.Holds && now.InstanceID == item.InstanceID && now.State == store.DrainPending {
				now.Message, now.RetryAt = why, tx.Now.Add(after)
				return tx.PutDrainItem(now)
			}
		}
		return nil
	})
}
