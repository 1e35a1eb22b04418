package store

import (
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

// placementChanged notes that placement has to look at the node again.
func (tx *Tx) placementChanged(nodeID string) error {
	if nodeID == "" {
		return nil
	}
	seq, err := tx.LockPlacement()
	if err != nil {
		return err
	}
	_, err = tx.exec(`INSERT INTO placement_changes (node_id, seq) VALUES ($1, $2) ON CONFLICT (node_id) DO UPDATE SET seq = excluded.seq`, nodeID, seq)
	return err
}

// PlacementSeq is the number of the last change that this transaction sees.
func (tx *Tx) PlacementSeq() (seq int64, err error) {
	return seq, tx.get(`SELECT value FROM settings WHERE name = 'placement_seq'`, nil, &seq)
}

// PlacementChanges lists the nodes that changed, were made or were deleted after
// the change with the number.
func (tx *Tx) PlacementChanges(after int64) ([]string, error) {
	return list(tx, `SELECT node_id FROM placement_changes WHERE seq > $1`, []any{after}, func(scan scanFunc) (id string, err error) {
		return id, scan(&id)
	})
}

// FleetNode is a node with what placement counts on it.
type FleetNode struct {
	compute.Node
	Members map[schedule.Seat]int64 // of placement groups
}

// FleetNode reads one node; ErrNotFound.
func (tx *Tx) FleetNode(id string) (FleetNode, error) {
	n, err := tx.Node(id)
	if err != nil {
		return FleetNode{}, err
	}
	nodes := []FleetNode{{Node: n}}
	return nodes[0], tx.countMembers(nodes, `node_id = $1`, id)
}

// FleetNodes reads up to limit nodes with ids after the given one, in id order.
func (tx *Tx) FleetNodes(after string, limit int) ([]FleetNode, error) {
	rows, err := tx.Nodes(after, limit)
	if err != nil || len(rows) == 0 {
		return nil, err
	}
	nodes := make([]FleetNode, len(rows))
	for i := range rows {
		nodes[i].Node = rows[i]
	}
	return nodes, tx.countMembers(nodes, `node_id >= $1 AND node_id <= $2`, rows[0].ID, rows[len(rows)-1].ID)
}

// countMembers fills in the members of groups.
func (tx *Tx) countMembers(nodes []FleetNode, which string, args ...any) error {
	byID := make(map[string]*FleetNode, len(nodes))
	for i := range nodes {
		byID[nodes[i].ID] = &nodes[i]
	}
	return tx.each(`SELECT node_id, group_id, group_partition, COUNT(*) FROM allocations WHERE group_id <> '' AND `+which+`
		GROUP BY node_id, group_id, group_partition`, args, func(scan scanFunc) error {
		var id string
		var seat schedule.Seat
		var members int64
		if err := scan(&id, &seat.Group, &seat.Partition, &members); err != nil {
			return err
		}
		if n := byID[id]; n != nil {
			if n.Members == nil {
				n.Members = make(map[schedule.Seat]int64)
			}
			n.Members[seat] = members
		}
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
