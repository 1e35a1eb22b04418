package store

import (
	"encoding/json"
	"time"

	"github.com/outcrop-cloud/outcrop/internal/compute"
)

const nodeSelect = `SELECT n.id, n.facts, n.spec, n.standing, n.maintenance, n.power, n.identity, n.created_at,
	l.seen_at, l.sampled_at, l.boot_id, l.revision, ` + usedColumns + `
	FROM nodes n JOIN node_liveness l ON l.node_id = n.id `

// usedColumns sum up what is held on a node n.
const usedColumns = `COALESCE((SELECT SUM(a.vcpus) FROM allocations a WHERE a.node_id = n.id), 0),
	COALESCE((SELECT SUM(a.memory_bytes) FROM allocations a WHERE a.node_id = n.id), 0),
	COALESCE((SELECT SUM(a.disk_bytes) FROM allocations a WHERE a.node_id = n.id), 0)
	+ COALESCE((SELECT SUM(v.size_bytes) FROM volumes v WHERE v.node_id = n.id AND v.instance_id = '' AND v.node_id <> ''), 0)`

func scanNode(scan scanFunc) (n compute.Node, err error) {
	var facts, spec, standing, maintenance, power, identity string
	var created, seen, sampled int64
	if err = scan(&n.ID, &facts, &spec, &standing, &maintenance, &power, &identity, &created, &seen, &sampled, &n.Liveness.BootID, &n.Revision,
		&n.Used.VCPUs, &n.Used.MemoryBytes, &n.Used.DiskBytes); err != nil {
		return n, err
	}
	n.CreatedAt = fromMicros(created)
	n.Liveness.SeenAt, n.Liveness.SampledAt = fromMicros(seen), fromMicros(sampled)
	for _, c := range []struct {
		text string
		to   any
	}{{facts, &n.Facts}, {spec, &n.Spec}, {standing, &n.Standing}, {maintenance, &n.Maintenance}, {power, &n.Power}, {identity, &n.Identity}} {
		if c.text == "{}" { // most nodes are in no maintenance, and have no finding
			continue
		}
		if err = json.Unmarshal([]byte(c.text), c.to); err != nil {
			return n, err
		}
	}
	return n, nil
}

// Node reads one node; ErrNotFound.
func (tx *Tx) Node(id string) (compute.Node, error) {
	n, err := one(tx, nodeSelect+`WHERE n.id = $1`, []any{id}, scanNode)
	if err != nil {
		return n, err
	}
	held, err := tx.heldCountables(`node_id = $1`, id)
	n.Held = held[id]
	return n, err
}

// NodeToChange reads a node that this transaction is going to write; ErrNotFound. No
// other server writes a node before it has ended, so nothing of what those write is
// lost.
func (tx *Tx) NodeToChange(id string) (n compute.Node, err error) {
	if _, err := tx.LockPlacement(); err != nil {
		return n, err
	}
	return tx.Node(id)
}

// Nodes reads up to limit nodes with ids after the given one, in id order.
func (tx *Tx) Nodes(after string, limit int) ([]compute.Node, error) {
	rows, err := list(tx, nodeSelect+`WHERE n.id > $1 ORDER BY n.id LIMIT $2`, []any{after, limit}, scanNode)
	if err != nil || len(rows) == 0 {
		return nil, err
	}
	held, err := tx.heldCountables(`node_id >= $1 AND node_id <= $2`, rows[0].ID, rows[len(rows)-1].ID)
	for i := range rows {
		rows[i].Held = held[rows[i].ID]
	}
	return rows, err
}

// CountNodes is how many nodes are known.
func (tx *Tx) CountNodes() (n int64, err error) {
	return n, tx.get(`SELECT COUNT(*) FROM nodes`, nil, &n)
}

// nodeColumns are a node's id and the written forms of its parts; its standing
// findings are brought up to date.
func nodeColumns(n *compute.Node, now time.Time) ([]any, error) {
	n.Stand(now)
	standing := n.Standing
	if standing == nil {
		standing = map[string]time.Time{}
	}
	columns := []any{n.ID}
	for _, v := range []any{n.Facts, n.Spec, standing, n.Maintenance, n.Power, n.Identity} {
		b, err := json.Marshal(v)
		if err != nil {
			return nil, err
		}
		columns = append(columns, string(b))
	}
	return columns, nil
}

func (tx *Tx) insertNode(n *compute.Node) error {
	c, err := nodeColumns(n, tx.Now)
	if err != nil {
		return err
	}
	if err := tx.nodeChanged(n.ID); err != nil {
		return err
	}
	_, err = tx.exec(`INSERT INTO nodes (id, facts, spec, standing, maintenance, power, identity, created_at) VALUES ($1, $2, $3, $4, $5, $6, $7, $8)`,
		append(c, micros(n.CreatedAt))...)
	return err
}

// UpdateNode writes all of a node but its liveness and bumps its revision.
func (tx *Tx) UpdateNode(n *compute.Node) error {
	c, err := nodeColumns(n, tx.Now)
	if err != nil {
		return err
	}
	if err := tx.nodeChanged(n.ID); err != nil {
		return err
	}
	if err := tx.must(ErrNotFound, `UPDATE nodes SET facts = $2, spec = $3, standing = $4, maintenance = $5, power = $6, identity = $7, down = $8 WHERE id = $1`,
		append(c, n.Down())...); err != nil {
		return err
	}
	return tx.get(`UPDATE node_liveness SET revision = revision + 1 WHERE node_id = $1 RETURNING revision`, []any{n.ID}, &n.Revision)
}

// DeleteNode forgets a node. The caller has made sure that nothing is placed there.
func (tx *Tx) DeleteNode(id string) error {
	if err := tx.nodeChanged(id); err != nil {
		return err
	}
	return tx.must(ErrNotFound, `DELETE FROM nodes WHERE id = $1`, id)
}

// DesiredRevision is the revision of what the node is to do; it changes with
// every change of an instance placed there.
func (tx *Tx) DesiredRevision(nodeID string) (rev int64, err error) {
	return rev, tx.get(`SELECT desired FROM node_liveness WHERE node_id = $1`, []any{nodeID}, &rev)
}

// TouchNode makes the node's record and desired set count as changed.
func (tx *Tx) TouchNode(nodeID string) error {
	if nodeID == "" {
		return nil
	}
	_, err := tx.exec(`UPDATE node_liveness SET revision = revision + 1, desired = desired + 1 WHERE node_id = $1`, nodeID)
	return err
}
