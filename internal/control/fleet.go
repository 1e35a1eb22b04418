package control

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/outcrop-cloud/outcrop/internal/compute"
	"github.com/outcrop-cloud/outcrop/internal/schedule"
	"github.com/outcrop-cloud/outcrop/internal/store"
)

// fleet is the nodes as placement sees them, kept in order between decisions.
//
// It is a cache of the database and never older than the transaction that uses it:
// every change that placement has to see bears a number (store.LockPlacement), and
// whoever uses the index first reads anew the nodes of the numbers that it has not
// seen. Those who place hold the lock of these numbers, so what they read stays
// true until their commit, however many servers place at once.
//
// Liveness has no number, as it changes by time alone; it is swept every few
// seconds, and judged again on every node that is chosen.
type fleet struct {
	// mu is taken before a transaction, never inside of a write: the writer would
	// wait for one that waits for the writer.
	mu       sync.Mutex
	ix       *schedule.Index // nil until it is first needed
	seq      int64           // changes up to this one are in ix
	dirty    map[string]bool // nodes to read anew, whatever their number
	computed bool            // how reservations were derived
	late     map[string]time.Time
	swept    time.Time
}

func newFleet() *fleet { return &fleet{dirty: map[string]bool{}} }

// soil lets the nodes be read anew.
func (f *fleet) soil(ids []string) {
	for _, id := range ids {
		f.dirty[id] = true
	}
}

// sweepEvery is how old the liveness in the index may be. Within it no node comes
// from ok to unreachable, as there is suspect in between.
func (c *Control) sweepEvery() time.Duration {
	return min(5*time.Second, c.o.HeartbeatInterval/2)
}

// lookAtFleet runs fn with the index as it is now. fn changes nothing in it, and
// keeps nothing of it.
func (c *Control) lookAtFleet(ctx context.Context, fn func(*store.Tx, *schedule.Index) error) error {
	c.fleet.mu.Lock()
	defer c.fleet.mu.Unlock()
	return c.readFleet(ctx, fn)
}

func (c *Control) readFleet(ctx context.Context, fn func(*store.Tx, *schedule.Index) error) error {
	f := c.fleet
	return c.db.Read(ctx, func(tx *store.Tx) error {
		seq, err := tx.PlacementSeq()
		if err != nil {
			return err
		}
		var ids []string
		if f.ix == nil || f.computed != c.computed() {
			err = c.buildFleet(tx)
		} else {
			ids, err = c.catchUp(tx, seq)
		}
		if err != nil {
			f.soil(ids)
			return err
		}
		// What a read sees is committed.
		f.seq = seq
		clear(f.dirty)
		if err := c.sweepLiveness(tx); err != nil {
			return err
		}
		return fn(tx, f.ix)
	})
}

// placing is one transaction that places.
type placing struct {
	*store.Tx
	ix      *schedule.Index
	c       *Control
	touched []string
	// tracked: all that the transaction changes of the fleet goes through take and
	// give. Otherwise what it changed is read anew.
	tracked bool
}

// whilePlacing runs fn in a transaction in which nobody else places. The index is
// as the transaction sees it. fn may run again; see store.DB.Write.
func (c *Control) whilePlacing(ctx context.Context, fn func(*placing) error) error {
	f := c.fleet
	f.mu.Lock()
	defer f.mu.Unlock()
	// What is much to read is read without holding up the writer.
	if err := c.readFleet(ctx, func(*store.Tx, *schedule.Index) error { return nil }); err != nil {
		return err
	}
	var p *placing
	var seq int64
	err := c.db.Write(ctx, func(tx *store.Tx) (err error) {
		if p != nil {
			f.soil(p.touched) // of a try that came to nothing
		}
		p = &placing{Tx: tx, c: c}
		if seq, err = tx.LockPlacement(); err != nil {
			return err
		}
		if p.touched, err = c.catchUp(tx, seq-1); err != nil {
			return err
		}
		p.ix = f.ix
		return fn(p)
	})
	switch {
	case p == nil:
	case err != nil:
		f.soil(p.touched)
	case p.tracked:
		f.seq = seq
		clear(f.dirty)
	default:
		f.soil(p.touched)
		f.seq = seq - 1
	}
	return err
}

// pick is the index's decision, with the liveness of the chosen node judged now.
func (p *placing) pick(r schedule.Request) schedule.Decision {
	for {
		d := p.ix.Pick(r)
		if d.NodeID == "" || p.judge(d.NodeID) {
			return d
		}
	}
}

// judge reports whether the node can be reached now, and lets the index know.
func (p *placing) judge(nodeID string) bool {
	seen, late := p.c.fleet.late[nodeID]
	if !late {
		return true
	}
	status, _ := compute.Liveness{SeenAt: seen}.Status(p.Now, p.c.since, p.c.o.HeartbeatInterval)
	if status != compute.LivenessUnreachable {
		return true
	}
	p.ix.SetLiveness(nodeID, status)
	return false
}

// take notes in the index what the transaction allocates.
func (p *placing) take(a schedule.Allocation) {
	p.ix.Commit(a)
	p.touched = append(p.touched, a.NodeID)
}

// catchUp reads the nodes that changed since the index last looked, and says which.
// Changes are numbered up to seq.
func (c *Control) catchUp(tx *store.Tx, seq int64) (ids []string, err error) {
	f := c.fleet
	if seq == f.seq && len(f.dirty) == 0 {
		return nil, nil
	}
	changes, err := tx.PlacementChanges(f.seq)
	if err != nil {
		return nil, err
	}
	ids = changes.IDs()
	for _, id := range changes.Gone {
		f.ix.Remove(id)
		delete(f.late, id)
	}
	for i := range changes.Nodes {
		f.ix.Upsert(c.scheduled(&changes.Nodes[i], tx.Now))
	}
	for id, u := range changes.Uses {
		f.ix.SetUse(id, u.Usage, u.Held, u.Members)
	}
	for id := range f.dirty {
		ids = append(ids, id)
		n, err := tx.FleetNode(id)
		if errors.Is(err, store.ErrNotFound) {
			f.ix.Remove(id)
			delete(f.late, id)
			continue
		}
		if err != nil {
			return ids, err
		}
		f.ix.Upsert(c.scheduled(&n, tx.Now))
	}
	return ids, nil
}

// buildFleet makes the index from all nodes.
func (c *Control) buildFleet(tx *store.Tx) error {
	f := c.fleet
	f.ix, f.computed, f.late, f.swept = nil, c.computed(), map[string]time.Time{}, time.Time{}
	seq, err := tx.PlacementSeq()
	if err != nil {
		return err
	}
	ix := schedule.NewIndex(nil)
	const page = 1000
	for after := ""; ; {
		nodes, err := tx.FleetNodes(after, page)
		if err != nil {
			return err
		}
		for i := range nodes {
			ix.Upsert(c.scheduled(&nodes[i], tx.Now))
		}
		if len(nodes) < page {
			break
		}
		after = nodes[page-1].ID
	}
	f.ix, f.seq = ix, seq
	clear(f.dirty)
	return nil
}

// scheduled is a node as placement sees it.
func (c *Control) scheduled(n *store.FleetNode, now time.Time) schedule.Node {
	n.Spec.Computed = c.fleet.computed
	live, _ := n.Liveness.Status(now, c.since, c.o.HeartbeatInterval)
	if live == compute.LivenessOK {
		delete(c.fleet.late, n.ID)
	} else {
		c.fleet.late[n.ID] = n.Liveness.SeenAt
	}
	return schedule.NodeOf(&n.Node, live, n.Use.Held, n.Use.Members)
}

// sweepLiveness judges the nodes by time, if that was not done just now.
func (c *Control) sweepLiveness(tx *store.Tx) error {
	f := c.fleet
	if since := tx.Now.Sub(f.swept); since >= 0 && since < c.sweepEvery() {
		return nil
	}
	late, err := tx.LateNodes(tx.Now.Add(-c.o.HeartbeatInterval))
	if err != nil {
		return err
	}
	for id := range f.late {
		if _, still := late[id]; !still {
			f.ix.SetLiveness(id, compute.LivenessOK)
		}
	}
	for id, seen := range late {
		status, _ := compute.Liveness{SeenAt: seen}.Status(tx.Now, c.since, c.o.HeartbeatInterval)
		f.ix.SetLiveness(id, status)
	}
	f.late, f.swept = late, tx.Now
	return nil
}
