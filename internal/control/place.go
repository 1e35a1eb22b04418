package control

import (
	"context"
	"encoding/json"
	"errors"
	"math/bits"
	"strings"
	"time"

	"github.com/outcrop-cloud/outcrop/internal/compute"
	"github.com/outcrop-cloud/outcrop/internal/schedule"
	"github.com/outcrop-cloud/outcrop/internal/store"
	"github.com/outcrop-cloud/outcrop/internal/vpc"
)

// placeBatch is how many waiting instances one transaction looks at. Heartbeats
// wait behind it, so it is short.
const placeBatch = 200

// placementPatience is how long an instance that would fit somewhere waits for
// room before its launch fails with the reasons.
const placementPatience = 2 * time.Minute

// placeWaiting gives every waiting instance a node. Decision and allocation are of
// one serialised transaction, so parallel launches never take the same room, seat
// or quota twice (lesson 16).
func (c *Control) placeWaiting(ctx context.Context) error {
	c.placing.Lock() // one run at a time, whoever asks for it
	defer c.placing.Unlock()
	var refused []refusal
	for after := (store.Cursor{}); ; {
		var b placedBatch
		err := retryStale(func() (err error) {
			b, err = c.placeSome(ctx, after)
			return err
		})
		for _, id := range b.nodes {
			c.hub.nudge(id)
		}
		if err != nil {
			return err
		}
		refused = append(refused, b.refused...)
		if b.seen < placeBatch {
			return c.tellWaiting(ctx, refused)
		}
		after = b.last
	}
}

// placedBatch is what came of one transaction.
type placedBatch struct {
	seen    int
	last    store.Cursor
	nodes   []string
	refused []refusal
}

// refusal is an instance that no node can take now.
type refusal struct {
	project, id string
	request     schedule.Request
	quota       string // why the project may not hold it; empty when it may
	since       time.Time
}

func (c *Control) placeSome(ctx context.Context, after store.Cursor) (b placedBatch, err error) {
	any := false
	err = c.db.Read(ctx, func(tx *store.Tx) (err error) { // most runs find nothing, and need no write
		any, err = tx.AnyWaiting()
		return err
	})
	if err != nil || !any {
		return b, err
	}
	err = c.whilePlacing(ctx, func(p *placing) error {
		p.tracked = true
		b = placedBatch{}
		waiting, err := p.WaitingInstances(after, placeBatch)
		if err != nil || len(waiting) == 0 {
			return err
		}
		batch := newPlacementBatch(p, len(waiting))
		for n := range waiting {
			if err := batch.place(&waiting[n]); err != nil {
				return err
			}
		}
		last := &waiting[len(waiting)-1]
		b = placedBatch{len(waiting), store.After(last.CreatedAt, last.ID), batch.nodes, batch.refused}
		return batch.write()
	})
	return b, err
}

// placementBatch is the work of one transaction of the placement loop.
type placementBatch struct {
	*placing
	groups  map[string]*schedule.Group
	size    int // how many addresses to look at, a power of two: few different statements
	subnets map[string]*openSubnet
	quotas  map[string]*projectRoom
	placed  []store.Placed
	nodes   []string
	refused []refusal
}

func newPlacementBatch(p *placing, waiting int) *placementBatch {
	return &placementBatch{placing: p, size: 1 << bits.Len(uint(waiting-1)), groups: map[string]*schedule.Group{}, subnets: map[string]*openSubnet{}, quotas: map[string]*projectRoom{}}
}

// place decides on one instance.
func (b *placementBatch) place(w *store.Waiting) error {
	i := &w.Instance
	r, err := b.request(w)
	if err != nil {
		return err
	}
	room, err := b.room(i.ProjectID)
	if err != nil {
		return err
	}
	ask := store.ProjectUsage{Instances: 1, Usage: r.Usage()}
	if over := room.over(ask); len(over) > 0 {
		b.refuse(i, r, quotaText(over))
		return nil
	}
	at := b.pick(r)
	if at.NodeID == "" {
		b.refuse(i, r, "")
		return nil
	}
	a := r.Allocation(at)
	placed := store.Placed{Instance: i, Allocation: store.Allocation{InstanceID: i.ID, ProjectID: i.ProjectID, Purpose: store.Holding, Allocation: a}}
	if !w.Plugged {
		switch f, err := b.plug(i); {
		case errors.Is(err, vpc.ErrExhausted):
			i.Fail("the subnet has no free address left; terminate instances, or use another subnet, then start it again")
			return b.c.save(b.Tx, i, "system", "unplaceable", "")
		case err != nil:
			return err
		default:
			placed.Interface = f
		}
	}
	i.NodeID, i.Message = at.NodeID, ""
	b.take(a)
	room.add(ask)
	b.placed = append(b.placed, placed)
	b.nodes = append(b.nodes, at.NodeID)
	return nil
}

func (b *placementBatch) refuse(i *store.Instance, r schedule.Request, quota string) {
	b.refused = append(b.refused, refusal{i.ProjectID, i.ID, r, quota, i.Deadline.Add(-compute.CreateDeadline)})
}

// request is what an instance asks of placement.
func (b *placementBatch) request(w *store.Waiting) (schedule.Request, error) {
	r := requestOf(&w.Instance.Instance, w.DiskBytes)
	id := w.Spec.PlacementGroupID
	if id == "" {
		return r, nil
	}
	g, known := b.groups[id]
	if !known {
		var err error
		if g, err = groupOf(b.Tx, w.ProjectID, id); err != nil {
			return r, err
		}
		b.groups[id] = g
	}
	r.Group = g
	return r, nil
}

func (b *placementBatch) room(project string) (*projectRoom, error) {
	if r, known := b.quotas[project]; known {
		return r, nil
	}
	r, err := roomOf(b.Tx, project, true)
	b.quotas[project] = r
	return r, err
}

// plug chooses the address of an instance's interface.
func (b *placementBatch) plug(i *store.Instance) (*vpc.Interface, error) {
	s, known := b.subnets[i.Spec.SubnetID]
	if !known {
		read, err := b.Subnet(i.ProjectID, i.Spec.SubnetID)
		if err != nil {
			return nil, err
		}
		if s, err = openForBatch(b.Tx, read, b.size); err != nil {
			return nil, err
		}
		b.subnets[i.Spec.SubnetID] = s
	}
	return nextInterface(b.Tx, &i.Instance, s)
}

// write writes the decisions down.
func (b *placementBatch) write() error {
	if len(b.placed) == 0 {
		return nil
	}
	return b.Place(b.placed)
}

// requestOf is what an instance asks of placement, but for its group. The durable
// wishes of its spec fill it (lesson 17).
func requestOf(i *compute.Instance, disk int64) schedule.Request {
	return schedule.Request{Shape: i.Spec.Shape, DiskBytes: disk, Countables: i.Spec.Countables, Selectors: i.Spec.Selectors, Architecture: i.Spec.Architecture}
}

// groupOf reads a placement group; nil when it is gone.
func groupOf(tx *store.Tx, project, id string) (*schedule.Group, error) {
	g, err := tx.PlacementGroup(project, id)
	if errors.Is(err, store.ErrNotFound) {
		return nil, nil
	}
	return &schedule.Group{ID: g.ID, Rule: g.Rule}, err
}

// maxTold bounds how many different refusals one run of the loop explains: each
// takes a look at every node. The others are told at a later run.
const maxTold = 16

// tellAgain is how often a waiting instance is told anew what it waits for.
const tellAgain = 10 * time.Second

// tellWaiting says why instances have no node yet, and ends the launches that
// waiting cannot help or that took too long (lesson 18). It looks at the fleet
// outside of the write, so that nobody waits behind it.
func (c *Control) tellWaiting(ctx context.Context, refused []refusal) error {
	now := c.now()
	due := refused[:0:0]
	for _, r := range refused {
		if now.Sub(c.lastTold[r.id]) >= tellAgain {
			due = append(due, r)
		}
	}
	if len(refused) == 0 {
		clear(c.lastTold)
	}
	if len(due) == 0 {
		return nil
	}
	decisions, err := c.explainAll(ctx, due)
	if err != nil {
		return err
	}
	return retryStale(func() error {
		return c.db.Write(ctx, func(tx *store.Tx) error {
			for n := range due {
				d, ok := decisions[n]
				if !ok {
					continue
				}
				if err := c.stillWaiting(tx, &due[n], d); err != nil {
					return err
				}
				c.lastTold[due[n].id] = now
			}
			return nil
		})
	})
}

// explainAll answers the decision on each refusal, equal ones once. Those that fit
// by now are left out: the next run places them.
func (c *Control) explainAll(ctx context.Context, due []refusal) (map[int]schedule.Decision, error) {
	out := make(map[int]schedule.Decision, len(due))
	err := c.lookAtFleet(ctx, func(_ *store.Tx, ix *schedule.Index) error {
		seen := map[string]schedule.Decision{}
		for n := range due {
			if due[n].quota != "" {
				out[n] = schedule.Decision{}
				continue
			}
			key, err := json.Marshal(due[n].request)
			if err != nil {
				return err
			}
			d, known := seen[string(key)]
			if !known {
				if len(seen) == maxTold {
					continue
				}
				d = ix.Place(due[n].request)
				seen[string(key)] = d
			}
			if d.NodeID == "" {
				out[n] = d
			}
		}
		return nil
	})
	return out, err
}

// stillWaiting writes down why an instance has no node, if it still has none.
func (c *Control) stillWaiting(tx *store.Tx, r *refusal, d schedule.Decision) error {
	i, err := tx.InstanceByID(r.id)
	if errors.Is(err, store.ErrNotFound) {
		return nil
	}
	if err != nil || i.State != compute.StateCreating || i.NodeID != "" {
		return err
	}
	why := r.quota
	if why == "" {
		why = reasons(d)
	}
	hopeless := r.quota == "" && !d.EverFits && d.Nodes > 0
	if hopeless || tx.Now.Sub(r.since) > placementPatience {
		i.Fail("no node can take the instance: " + why + "; then start it again, or terminate it")
		return c.save(tx, &i, "system", "unplaceable", "")
	}
	if i.Message == "waiting for a node: "+why {
		return nil
	}
	i.Message = "waiting for a node: " + why
	return c.save(tx, &i, "system", "waiting", "")
}

// reasons is what a tenant may know of a refusal: counts and what would help, no
// names.
func reasons(d schedule.Decision) string {
	if d.Nodes == 0 {
		return "no node has reported yet"
	}
	t := d.ForTenant()
	texts := make([]string, len(t.Reasons))
	for i, r := range t.Reasons {
		texts[i] = r.Text
	}
	text := strings.Join(texts, ", ")
	if t.Nearest != nil {
		text += "; the nearest miss would do with this: " + t.Nearest.Fix
	}
	return text
}

// computed reports whether reservations are derived from the node's size.
func (c *Control) computed() bool { return c.o.SingleNode && c.nodes.Load() <= 1 }
