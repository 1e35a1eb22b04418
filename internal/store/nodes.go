package store

import (
	"encoding/json"
	"fmt"

	"github.com/outcrop-cloud/outcrop/internal/compute"
)

const nodeSelect = `SELECT n.id, n.state, n.facts, n.spec, n.created_at,
	l.seen_at, l.sampled_at, l.boot_id, l.revision,
	COALESCE((SELECT SUM(a.vcpus) FROM allocations a WHERE a.node_id = n.id), 0),
	COALESCE((SELECT SUM(a.memory_bytes) FROM allocations a WHERE a.node_id = n.id), 0),
	COALESCE((SELECT SUM(a.disk_bytes) FROM allocations a WHERE a.node_id = n.id), 0)
	+ COALESCE((SELECT SUM(v.size_bytes) FROM volumes v WHERE v.node_id = n.id AND v.instance_id = ''), 0)
	FROM nodes n JOIN node_liveness l ON l.node_id = n.id `

func scanNode(scan scanFunc) (n compute.Node, err error) {
	var facts, spec string
	var created, seen, sampled int64
	if err = scan(&n.ID, &n.State, &facts, &spec, &created, &seen, &sampled, &n.Liveness.BootID, &n.Revision,
		&n.Used.VCPUs, &n.Used.MemoryBytes, &n.Used.DiskBytes); err != nil {
		return n, err
	}
	n.CreatedAt = fromMicros(created)
	n.Liveness.SeenAt, n.Liveness.SampledAt = fromMicros(seen), fromMicros(sampled)
	if err = json.Unmarshal([]byte(facts), &n.Facts); err == nil {
		err = json.Unmarshal([]byte(spec), &n.Spec)
	}
	return n, err
}

// Node reads one node; ErrNotFound.
func (tx *Tx) Node(id string) (compute.Node, error) {
	return one(tx, nodeSelect+`WHERE n.id = $1`, []any{id}, scanNode)
}

// Nodes reads up to limit nodes with ids after the given one, in id order.
func (tx *Tx) Nodes(after string, limit int) ([]compute.Node, error) {
	return list(tx, nodeSelect+`WHERE n.id > $1 ORDER BY n.id LIMIT $2`, []any{after, limit}, scanNode)
}

// CountNodes is how many nodes are known.
func (tx *Tx) CountNodes() (n int64, err error) {
	return n, tx.get(`SELECT COUNT(*) FROM nodes`, nil, &n)
}

func nodeColumns(n *compute.Node) (facts, spec string, err error) {
	f, err := json.Marshal(n.Facts)
	if err != nil {
		return "", "", err
	}
	s, err := json.Marshal(n.Spec)
	return string(f), string(s), err
}

func (tx *Tx) insertNode(n *compute.Node) error {
	facts, spec, err := nodeColumns(n)
	if err != nil {
		return err
	}
	_, err = tx.exec(`INSERT INTO nodes (id, state, facts, spec, created_at) VALUES ($1, $2, $3, $4, $5)`,
		n.ID, string(n.State), facts, spec, micros(n.CreatedAt))
	return err
}

// UpdateNode writes facts, spec and state of a node and bumps its revision.
func (tx *Tx) UpdateNode(n *compute.Node) error {
	facts, spec, err := nodeColumns(n)
	if err != nil {
		return err
	}
	if err := tx.must(ErrNotFound, `UPDATE nodes SET state = $2, facts = $3, spec = $4 WHERE id = $1`, n.ID, string(n.State), facts, spec); err != nil {
		return err
	}
	return tx.get(`UPDATE node_liveness SET revision = revision + 1 WHERE node_id = $1 RETURNING revision`, []any{n.ID}, &n.Revision)
}

// DeleteNode forgets a node. The caller has made sure that nothing is placed there.
func (tx *Tx) DeleteNode(id string) error {
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

// Allocate writes what an instance holds on a node; it replaces what it held for
// the same purpose.
func (tx *Tx) Allocate(instanceID, purpose, nodeID string, u compute.Usage) error {
	_, err := tx.exec(`INSERT INTO allocations (instance_id, purpose, node_id, vcpus, memory_bytes, disk_bytes) VALUES ($1, $2, $3, $4, $5, $6)
		ON CONFLICT (instance_id, purpose) DO UPDATE SET node_id = excluded.node_id, vcpus = excluded.vcpus,
		memory_bytes = excluded.memory_bytes, disk_bytes = excluded.disk_bytes`,
		instanceID, purpose, nodeID, u.VCPUs, u.MemoryBytes, u.DiskBytes)
	if err != nil {
		return fmt.Errorf("allocating on %s: %w", nodeID, err)
	}
	return tx.TouchNode(nodeID)
}

// Release gives back all that an instance holds.
func (tx *Tx) Release(instanceID, nodeID string) error {
	if _, err := tx.exec(`DELETE FROM allocations WHERE instance_id = $1`, instanceID); err != nil {
		return err
	}
	return tx.TouchNode(nodeID)
}
