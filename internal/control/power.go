package control

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/outcrop-cloud/outcrop/internal/api"
	"github.com/outcrop-cloud/outcrop/internal/compute"
	"github.com/outcrop-cloud/outcrop/internal/fault"
	"github.com/outcrop-cloud/outcrop/internal/iam"
	"github.com/outcrop-cloud/outcrop/internal/store"
)

// ShutdownNode lets a node's host power off (contract N-18 to N-20).
func (c *Control) ShutdownNode(ctx context.Context, who iam.Caller, id string, in api.PowerRequest) (api.Node, error) {
	return c.power(ctx, who, iam.ShutdownNode, compute.PowerShutdown, id, in)
}

// RebootNode lets a node's host reboot (contract N-18 to N-20).
func (c *Control) RebootNode(ctx context.Context, who iam.Caller, id string, in api.PowerRequest) (api.Node, error) {
	return c.power(ctx, who, iam.RebootNode, compute.PowerReboot, id, in)
}

// power notes a power action, which the node's held sync picks up. Nothing is
// placed on the node while it is decided.
func (c *Control) power(ctx context.Context, who iam.Caller, a iam.Action, verb compute.PowerVerb, id string, in api.PowerRequest) (api.Node, error) {
	if err := iam.Allow(who, a, iam.Scope{NodeID: id}); err != nil {
		return api.Node{}, err
	}
	last, err := c.lastControlPlane(ctx, id)
	if err != nil {
		return api.Node{}, err
	}
	var n compute.Node
	begun := false
	err = c.whilePlacing(ctx, func(p *placing) (err error) {
		if n, err = c.node(p.Tx, id); err != nil {
			return err
		}
		if begun, err = c.beginPower(p.Tx, who, &n, verb, in, last); err != nil || !begun {
			return err
		}
		return changedNode(p.Tx, &n)
	})
	if err != nil {
		return api.Node{}, err
	}
	if begun {
		c.log.InfoContext(ctx, "power action", "node", id, "action", string(verb), "generation", n.Power.Generation,
			"by", who.Name, "forced", in.Force, "reason", in.Reason, "lastControlPlane", last)
		c.hub.nudge(id)
	}
	return c.nodeView(&n, c.now()), nil
}

// changedNode writes a node whose desired set has changed with it.
func changedNode(tx *store.Tx, n *compute.Node) error {
	if err := tx.UpdateNode(n); err != nil {
		return err
	}
	n.Revision++ // as TouchNode does
	return tx.TouchNode(n.ID)
}

// beginPower begins an action where nothing is in its way. The same action again
// is answered with the open one.
func (c *Control) beginPower(tx *store.Tx, who iam.Caller, n *compute.Node, verb compute.PowerVerb, in api.PowerRequest, last bool) (begun bool, err error) {
	if n.Power.Open() && n.Power.Action == verb {
		return false, nil
	}
	if err := c.mayPower(n, verb, tx.Now); err != nil {
		return false, err
	}
	running, err := runningOn(tx, n.ID)
	if err != nil {
		return false, err
	}
	if len(running) > 0 && !in.Force {
		return false, instancesRunning(n.ID, verb, running)
	}
	delay, grace := compute.PowerDelay, time.Duration(0)
	if in.NotBeforeSeconds != nil {
		delay = time.Duration(*in.NotBeforeSeconds) * time.Second
	}
	if len(running) > 0 {
		grace = compute.DefaultStopDeadline + compute.ForcedStopGrace
	}
	n.BeginPower(verb, tx.Now, delay, grace, last)
	for i := range running {
		if err := event(tx, &running[i].Instance, who.Name, "node-"+string(verb), "its node goes down, and the guest before it"); err != nil {
			return false, err
		}
	}
	if in.Reason != "" {
		n.Power.Progress(n.Power.Message + ": " + in.Reason)
	}
	return true, nil
}

// mayPower refuses what cannot come about.
func (c *Control) mayPower(n *compute.Node, verb compute.PowerVerb, now time.Time) error {
	switch {
	case !n.Maintenance.DeclaredOff.IsZero():
		return fault.Coded(fault.Conflict, fault.NodeNotUp, "node %q was declared off; power it on by hand", n.ID)
	case n.Power.State == compute.PowerOff:
		return fault.Coded(fault.Conflict, fault.PowerInProgress, "node %q is off; power it on by its button, or with: outcrop node wake %s", n.ID, n.ID)
	case n.Power.Open():
		return fault.Coded(fault.Conflict, fault.PowerInProgress, "node %q is %s (%s); wait until that is over", n.ID, n.Power.State, n.Power.Message)
	case !c.reachable(n, now):
		return fault.Coded(fault.Conflict, fault.NodeUnreachable,
			"node %q has not been heard of for %s, so it cannot be told to %s; look at it and its network, or, when it is dead for certain: outcrop node declare-off %s",
			n.ID, now.Sub(n.Liveness.SeenAt).Round(time.Second), verb, n.ID)
	case n.Liveness.BootID == "":
		return fault.Coded(fault.Conflict, fault.InvalidState, "the agent of node %q reports no boot id, so nobody could tell when it has booted again; %s it by hand", n.ID, verb)
	}
	return nil
}

// runningOn are the instances that have, or are about to have, a VM up on the node.
func runningOn(tx *store.Tx, nodeID string) (out []store.Instance, err error) {
	all, err := tx.InstancesOn(nodeID)
	for _, i := range all {
		switch i.State {
		case compute.StateStopped, compute.StateTerminated, compute.StateError:
		default:
			out = append(out, i)
		}
	}
	return out, err
}

// listedIDs bounds the ids in the details of a refusal.
const listedIDs = 100

func instancesRunning(nodeID string, verb compute.PowerVerb, running []store.Instance) error {
	d := api.RunningInstances{Count: int64(len(running)), InstanceIDs: []string{}}
	for _, i := range running[:min(len(running), listedIDs)] {
		d.InstanceIDs = append(d.InstanceIDs, i.ID)
	}
	return &fault.Error{Kind: fault.Conflict, Code: fault.InstancesRunning, Details: d, Message: fmt.Sprintf(
		"%s on node %q (%s); move or stop them first: outcrop node drain %s, or let the %s stop them: --force",
		countOf(len(running), "instance runs", "instances run"), nodeID, someOf(d.InstanceIDs), nodeID, verb)}
}

func countOf(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}

// someOf names the first few.
func someOf(ids []string) string {
	const few = 3
	if len(ids) <= few {
		return strings.Join(ids, ", ")
	}
	return strings.Join(ids[:few], ", ") + ", …"
}

// lastControlPlane reports whether no other node could hold the control plane: a
// control-plane or hybrid one that is up (contract N-18).
func (c *Control) lastControlPlane(ctx context.Context, id string) (last bool, err error) {
	own := func(n *compute.Node) bool {
		return n.Facts.Role == compute.RoleControlPlane || n.Facts.Role == compute.RoleHybrid
	}
	return last, c.db.Read(ctx, func(tx *store.Tx) error {
		n, err := c.node(tx, id)
		if err != nil || !own(&n) {
			return err
		}
		last = true
		return eachNode(tx, func(other *compute.Node) bool {
			last = other.ID == id || !own(other) || !c.isUp(other, tx.Now)
			return last
		})
	})
}

// isUp reports whether a node is heard of, and not on its way down.
func (c *Control) isUp(n *compute.Node, now time.Time) bool {
	return !n.Down() && c.reachable(n, now)
}

// eachNode calls fn with all nodes in id order, until it says no.
func eachNode(tx *store.Tx, fn func(*compute.Node) (more bool)) error {
	const page = 1000
	for after := ""; ; {
		rows, err := tx.Nodes(after, page)
		if err != nil {
			return err
		}
		for i := range rows {
			if !fn(&rows[i]) {
				return nil
			}
		}
		if len(rows) < page {
			return nil
		}
		after = rows[page-1].ID
	}
}

// desiredPower is what the node is told of its power action.
func desiredPower(n *compute.Node, now time.Time) *api.DesiredPower {
	if !n.Power.InProgress() {
		return nil
	}
	return &api.DesiredPower{Action: string(n.Power.Action), Generation: n.Power.Generation, NotBeforeMS: max(0, n.Power.NotBefore.Sub(now).Milliseconds())}
}

// hearPower takes in what a node says of its power action, and of packets that it
// sent.
func (c *Control) hearPower(ctx context.Context, nodeID string, in *api.SyncRequest) error {
	if err := c.hearWakes(ctx, nodeID, in.Wakes); err != nil || in.Power == nil {
		return err
	}
	hear := func(p *compute.PowerAction, now time.Time) bool {
		return p.Told(in.Power.Generation, compute.PowerStage(in.Power.Stage), cut(in.Power.Message, maxMessage), now)
	}
	news := false
	if err := c.db.Read(ctx, func(tx *store.Tx) error {
		n, err := tx.Node(nodeID)
		news = hear(&n.Power, tx.Now)
		return notFound(err, "node %q is not registered; its first heartbeat does that", nodeID)
	}); err != nil || !news {
		return err
	}
	return c.movePower(ctx, nodeID, hear)
}

// movePower lets fn change the power action of a node, and tells whom it concerns.
func (c *Control) movePower(ctx context.Context, nodeID string, fn func(p *compute.PowerAction, now time.Time) bool) error {
	var n compute.Node
	var before compute.PowerAction
	err := c.db.Write(ctx, func(tx *store.Tx) (err error) {
		if n, err = tx.NodeToChange(nodeID); err != nil {
			return notFound(err, "there is no node %q; list them with: outcrop node list", nodeID)
		}
		before = n.Power
		if !fn(&n.Power, tx.Now) {
			return nil
		}
		return changedNode(tx, &n)
	})
	if err == nil && n.Power.State != before.State {
		c.powerMoved(ctx, &n)
	}
	return err
}

// powerMoved tells of a power action that has come a step further.
func (c *Control) powerMoved(ctx context.Context, n *compute.Node) {
	c.log.InfoContext(ctx, "power action", "node", n.ID, "action", string(n.Power.Action), "generation", n.Power.Generation,
		"state", string(n.Power.State), "message", n.Power.Message)
	c.hub.nudge(n.ID)
	c.place.poke()
	c.converge.poke() // what waited for the node may start now
}

// judgeNodes draws what follows from time alone: a node that was told to shut down
// and is silent is off, and on one that was declared off nothing is waited for.
func (c *Control) judgeNodes(ctx context.Context) error {
	judge := func(n *compute.Node) func(*compute.PowerAction, time.Time) bool {
		return func(p *compute.PowerAction, now time.Time) bool {
			return p.Judge(n.Liveness, now, c.since, c.o.HeartbeatInterval)
		}
	}
	var due, dead []compute.Node
	err := c.db.Read(ctx, func(tx *store.Tx) error {
		down, err := tx.DownNodes()
		for _, n := range down {
			if p := n.Power; judge(&n)(&p, tx.Now) {
				due = append(due, n)
			}
			if !n.Maintenance.DeclaredOff.IsZero() {
				dead = append(dead, n)
			}
		}
		return err
	})
	for i := range due {
		if merr := c.movePower(ctx, due[i].ID, judge(&due[i])); !fault.Is(merr, fault.NotFound) {
			err = errors.Join(err, merr)
		}
	}
	for i := range dead {
		if ferr := c.fenceLate(ctx, dead[i].ID); !errors.Is(ferr, store.ErrNotFound) {
			err = errors.Join(err, ferr)
		}
	}
	return err
}

// nodeUp refuses to start something on a node that is down, or on its way there:
// it would wait for somebody to power the node on.
func nodeUp(tx *store.Tx, i *store.Instance) error {
	if i.NodeID == "" {
		return nil
	}
	n, err := tx.Node(i.NodeID)
	if err != nil || !n.Down() {
		return err
	}
	next := "wait until it is back"
	if n.State() == compute.NodeOff {
		next = "power the node on first, by its button or with: outcrop node wake " + n.ID
	}
	return fault.Coded(fault.Conflict, fault.NodeNotUp, "the instance lives on node %q, which is %s; %s", n.ID, n.State(), next)
}

func powerView(n *compute.Node) *api.PowerAction {
	p := &n.Power
	if p.Action == "" {
		return nil
	}
	v := &api.PowerAction{
		Action: string(p.Action), State: string(p.State), Generation: p.Generation, NotBefore: p.NotBefore, OffAt: optional(p.GoneAt),
		Message: p.Message, LastControlPlane: p.LastControlPlane,
	}
	if p.Action == compute.PowerShutdown {
		v.PowerOn = &api.PowerOn{Button: true, WakeOnLanMAC: n.Facts.WakeOnLanMAC}
	}
	return v
}
