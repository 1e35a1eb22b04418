package store

import (
	"slices"
	"time"

	"github.com/outcrop-cloud/outcrop/internal/compute"
	"github.com/outcrop-cloud/outcrop/internal/schedule"
)

// LockPlacement makes this transaction the only one that places, until it ends:
// on PostgreSQL several servers may write at once. The number it answers is above
// that of every earlier change, and that of every change made here.
func (tx *Tx) LockPlacement() (seq int64, err error) {
	if tx.placementSeq == 0 {
		err = tx.get(`UPDATE settings SET value = value + 1 WHERE name = 'placement_seq' RETURNING value`, nil, &tx.placementSeq)
	}
	return tx.placementSeq, err
}

// nodeChanged notes that placement has to look at the whole node again.
func (tx *Tx) nodeChanged(nodeID string) error {
	seq, err := tx.LockPlacement()
	if err != nil {
		return err
	}
	_, err = tx.exec(`INSERT INTO placement_changes (node_id, seq, record) VALUES ($1, $2, $2)
		ON CONFLICT (node_id) DO UPDATE SET seq = excluded.seq, record = excluded.record`, nodeID, seq)
	return err
}

// useChanged notes that placement has to look again at what is held on the node.
func (tx *Tx) useChanged(nodeID string) error {
	if nodeID == "" {
		return nil
	}
	seq, err := tx.LockPlacement()
	if err != nil {
		return err
	}
	_, err = tx.exec(`INSERT INTO placement_changes (node_id, seq, record) VALUES ($1, $2, 0) ON CONFLICT (node_id) DO UPDATE SET seq = excluded.seq`, nodeID, seq)
	return err
}

// PlacementSeq is the number of the last change that this transaction sees.
func (tx *Tx) PlacementSeq() (seq int64, err error) {
	return seq, tx.get(`SELECT value FROM settings WHERE name = 'placement_seq'`, nil, &seq)
}

// Use is what is held on a node.
type Use struct {
	compute.Usage
	Held    map[string]int64 // units of countable labels
	Members map[schedule.Seat]int64
}

// FleetNode is a node with what placement counts on it.
type FleetNode struct {
	compute.Node
	Use Use
}

// PlacementChanges are the nodes that changed after a number.
type PlacementChanges struct {
	Nodes []FleetNode    // new ones, and those of which more changed than their use
	Uses  map[string]Use // of the others, by node id
	Gone  []string       // deleted ones
}

// IDs are the ids of all nodes that changed.
func (c *PlacementChanges) IDs() []string {
	ids := slices.Clone(c.Gone)
	for i := range c.Nodes {
		ids = append(ids, c.Nodes[i].ID)
	}
	for id := range c.Uses {
		ids = append(ids, id)
	}
	return ids
}

const (
	changed       = `(SELECT c.node_id FROM placement_changes c WHERE c.seq > $1)`
	changedRecord = `(SELECT c.node_id FROM placement_changes c WHERE c.seq > $1 AND c.record > $1)`
	changedUse    = `(SELECT c.node_id FROM placement_changes c WHERE c.seq > $1 AND c.record <= $1)`
)

// PlacementChanges reads what changed after the change with the number.
func (tx *Tx) PlacementChanges(after int64) (out PlacementChanges, err error) {
	args := []any{after}
	gone, err := list(tx, `SELECT c.node_id FROM placement_changes c WHERE c.seq > $1 AND NOT EXISTS (SELECT 1 FROM nodes n WHERE n.id = c.node_id)`, args,
		func(scan scanFunc) (id string, err error) { return id, scan(&id) })
	if err != nil {
		return out, err
	}
	out.Gone = gone
	uses, err := tx.uses(changed, args)
	if err != nil {
		return out, err
	}
	nodes, err := list(tx, nodeSelect+`WHERE n.id IN `+changedRecord, args, scanNode)
	if err != nil {
		return out, err
	}
	for i := range nodes {
		out.Nodes = append(out.Nodes, FleetNode{nodes[i], uses.of(&nodes[i])})
	}
	out.Uses = map[string]Use{}
	err = tx.each(`SELECT n.id, `+usedColumns+` FROM nodes n WHERE n.id IN `+changedUse, args, func(scan scanFunc) error {
		var n compute.Node
		err := scan(&n.ID, &n.Used.VCPUs, &n.Used.MemoryBytes, &n.Used.DiskBytes)
		out.Uses[n.ID] = uses.of(&n)
		return err
	})
	return out, err
}

// FleetNode reads one node; ErrNotFound.
func (tx *Tx) FleetNode(id string) (FleetNode, error) {
	n, err := tx.Node(id)
	if err != nil {
		return FleetNode{}, err
	}
	uses, err := tx.uses(`($1)`, []any{id})
	return FleetNode{n, uses.of(&n)}, err
}

// FleetNodes reads up to limit nodes with ids after the given one, in id order.
func (tx *Tx) FleetNodes(after string, limit int) ([]FleetNode, error) {
	const page = `(SELECT p.id FROM nodes p WHERE p.id > $1 ORDER BY p.id LIMIT $2)`
	args := []any{after, limit}
	rows, err := list(tx, nodeSelect+`WHERE n.id > $1 ORDER BY n.id LIMIT $2`, args, scanNode)
	if err != nil {
		return nil, err
	}
	uses, err := tx.uses(page, args)
	nodes := make([]FleetNode, len(rows))
	for i := range rows {
		nodes[i] = FleetNode{rows[i], uses.of(&rows[i])}
	}
	return nodes, err
}

// usesByNode are held countables and members by node id.
type usesByNode struct {
	held    map[string]map[string]int64
	members map[string]map[schedule.Seat]int64
}

func (u *usesByNode) of(n *compute.Node) Use { return Use{n.Used, u.held[n.ID], u.members[n.ID]} }

// uses counts on the nodes that a list of ids in SQL names.
func (tx *Tx) uses(ids string, args []any) (*usesByNode, error) {
	held, err := tx.heldCountables(`node_id IN `+ids, args...)
	if err != nil {
		return nil, err
	}
	u := &usesByNode{held, map[string]map[schedule.Seat]int64{}}
	return u, tx.each(`SELECT node_id, group_id, group_partition, COUNT(*) FROM allocations WHERE group_id <> '' AND node_id <> '' AND node_id IN `+ids+`
		GROUP BY node_id, group_id, group_partition`, args, func(scan scanFunc) error {
		var id string
		var seat schedule.Seat
		var n int64
		if err := scan(&id, &seat.Group, &seat.Partition, &n); err != nil {
			return err
		}
		if u.members[id] == nil {
			u.members[id] = map[schedule.Seat]int64{}
		}
		u.members[id][seat] = n
		return nil
	})
}

// LateNodes are the nodes that were last seen before t, with when.
func (tx *Tx) LateNodes(t time.Time) (map[string]time.Time, error) {
	late := make(map[string]time.Time)
	err := tx.each(`SELECT node_id, seen_at FROM node_liveness WHERE seen_at < $1`, []any{micros(t)}, func(scan scanFunc) error {
		var id string
		var seen int64
		err := scan(&id, &seen)
		late[id] = fromMicros(seen)
		return err
	})
	return late, err
}
