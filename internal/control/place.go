package control

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/outcrop-cloud/outcrop/internal/compute"
	"github.com/outcrop-cloud/outcrop/internal/schedule"
	"github.com/outcrop-cloud/outcrop/internal/store"
	"github.com/outcrop-cloud/outcrop/internal/vpc"
)

// placeBatch is how many waiting instances one transaction gives a node.
const placeBatch = 200

// placementPatience is how long an instance that would fit somewhere waits for
// room before its launch fails with the reasons.
const placementPatience = 2 * time.Minute

// rootAllocation is the purpose of the allocation that an instance holds while it
// exists, running or not: a stopped instance can always be started again.
const rootAllocation = "instance"

// placeWaiting gives every waiting instance a node. Snapshot, decision and the
// allocation rows are of one serialised transaction, so parallel launches never
// take the same room twice.
func (c *Control) placeWaiting(ctx context.Context) error {
	for {
		more, nodes, err := c.placeSome(ctx)
		for _, id := range nodes {
			c.hub.nudge(id)
		}
		if err != nil || !more {
			return err
		}
	}
}

func (c *Control) placeSome(ctx context.Context) (more bool, nodes []string, err error) {
	var waiting []store.Instance
	err = c.db.Read(ctx, func(tx *store.Tx) error { // most runs find nothing, and need no write
		waiting, err = tx.UnplacedInstances(1)
		return err
	})
	if err != nil || len(waiting) == 0 {
		return false, nil, err
	}
	placed := 0
	err = c.db.Write(ctx, func(tx *store.Tx) error {
		nodes = nil
		waiting, err := tx.UnplacedInstances(placeBatch)
		if err != nil {
			return err
		}
		fleet, err := c.snapshot(tx)
		if err != nil {
			return err
		}
		for i := range waiting {
			nodeID, err := c.placeOne(tx, fleet, &waiting[i])
			if err != nil {
				return err
			}
			if nodeID != "" {
				nodes = append(nodes, nodeID)
			}
		}
		placed = len(nodes)
		more = len(waiting) == placeBatch && placed > 0
		return nil
	})
	return more, nodes, err
}

// snapshot is the whole fleet as placement sees it.
func (c *Control) snapshot(tx *store.Tx) (*schedule.Snapshot, error) {
	s := &schedule.Snapshot{}
	for after := ""; ; {
		page, err := tx.Nodes(after, 1000)
		if err != nil {
			return nil, err
		}
		for i := range page {
			n := &page[i]
			n.Spec.Computed = c.computed()
			live, _ := n.Liveness.Status(tx.Now, c.since, c.o.HeartbeatInterval)
			s.Nodes = append(s.Nodes, schedule.NodeOf(n, live, nil, nil))
		}
		if len(page) < 1000 {
			return s, nil
		}
		after = page[len(page)-1].ID
	}
}

func (c *Control) computed() bool { return c.o.SingleNode && c.nodes.Load() <= 1 }

func (c *Control) placeOne(tx *store.Tx, fleet *schedule.Snapshot, i *store.Instance) (nodeID string, err error) {
	d, err := tx.DetailsOf(i.ID)
	if err != nil {
		return "", err
	}
	use := usage(i, d)
	req := schedule.Request{Shape: i.Spec.Shape, DiskBytes: use.DiskBytes}
	at := schedule.Place(fleet, req)
	if at.NodeID == "" {
		return "", c.stillWaiting(tx, i, at)
	}
	for n := range fleet.Nodes {
		if fleet.Nodes[n].ID == at.NodeID {
			u := &fleet.Nodes[n].Used
			u.VCPUs, u.MemoryBytes, u.DiskBytes = u.VCPUs+use.VCPUs, u.MemoryBytes+use.MemoryBytes, u.DiskBytes+use.DiskBytes
		}
	}
	i.NodeID, i.Message = at.NodeID, ""
	if err := c.settleIn(tx, i, d, use); err != nil {
		if errors.Is(err, vpc.ErrExhausted) {
			i.NodeID = ""
			i.Fail("the subnet has no free address left; terminate instances, or use another subnet, then start it again")
			return "", c.save(tx, i, "system", "unplaceable", "")
		}
		return "", err
	}
	return at.NodeID, c.save(tx, i, "system", "placed", "on node "+at.NodeID)
}

// settleIn writes what the instance holds from now on: an address, its room on
// the node, and where its volumes are.
func (c *Control) settleIn(tx *store.Tx, i *store.Instance, d *store.Details, use compute.Usage) error {
	if len(d.Interfaces) == 0 {
		s, err := tx.Subnet(i.ProjectID, i.Spec.SubnetID)
		if err != nil {
			return err
		}
		if err := plugIn(tx, &i.Instance, s); err != nil {
			return err
		}
	}
	for n := range d.Volumes {
		d.Volumes[n].NodeID = i.NodeID
		if err := tx.UpdateVolume(&d.Volumes[n]); err != nil {
			return err
		}
	}
	return tx.Allocate(i.ID, rootAllocation, i.NodeID, use)
}

// stillWaiting says why an instance has no node yet, and ends the launch when
// waiting cannot help or took too long (lesson 18).
func (c *Control) stillWaiting(tx *store.Tx, i *store.Instance, d schedule.Decision) error {
	why := reasons(d)
	began := i.Deadline.Add(-compute.CreateDeadline)
	if (!d.EverFits && d.Nodes > 0) || tx.Now.Sub(began) > placementPatience {
		i.Fail("no node can take the instance: " + why + "; ask for less, or add a node, then start it again")
		return c.save(tx, i, "system", "unplaceable", "")
	}
	if i.Message == "waiting for a node: "+why {
		return nil
	}
	i.Message = "waiting for a node: " + why
	return c.save(tx, i, "system", "waiting", "")
}

// reasons is what a tenant may know of a refusal: counts, no names.
func reasons(d schedule.Decision) string {
	if d.Nodes == 0 {
		return "no node has reported yet"
	}
	t := d.ForTenant()
	texts := make([]string, len(t.Reasons))
	for i, r := range t.Reasons {
		texts[i] = r.Text
	}
	return strings.Join(texts, ", ")
}
