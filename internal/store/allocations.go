package store

import (
	"errors"
	"fmt"

	"github.com/outcrop-cloud/outcrop/internal/compute"
	"github.com/outcrop-cloud/outcrop/internal/schedule"
)

// Holding is the purpose of the allocation that an instance has while it exists,
// running or not: a stopped instance can always be started again. It is the one
// that counts for the project.
const Holding = "instance"

// Allocation is what an instance holds for a purpose. Without a node it is what a
// waiting instance has asked for.
type Allocation struct {
	InstanceID string
	ProjectID  string
	Purpose    string
	schedule.Allocation
}

// Allocate writes what an instance holds; it replaces what it held for the same
// purpose.
func (tx *Tx) Allocate(a *Allocation) error {
	before, err := tx.Allocation(a.InstanceID, a.Purpose)
	if err != nil && !errors.Is(err, ErrNotFound) {
		return err
	}
	if before.NodeID != a.NodeID {
		if err := tx.RoomChanged(before.NodeID); err != nil {
			return err
		}
	}
	if err := tx.putAllocation(a, len(before.Countables)+len(a.Countables) > 0); err != nil {
		return fmt.Errorf("allocating on %s: %w", a.NodeID, err)
	}
	return tx.RoomChanged(a.NodeID)
}

// RoomChanged notes that something on a node takes more or less room than before.
func (tx *Tx) RoomChanged(nodeID string) error {
	if err := tx.useChanged(nodeID); err != nil {
		return err
	}
	return tx.TouchNode(nodeID)
}

func (tx *Tx) putAllocation(a *Allocation, countables bool) error {
	if _, err := tx.exec(`INSERT INTO allocations (instance_id, purpose, node_id, project_id, vcpus, memory_bytes, disk_bytes, group_id, group_partition)
		VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)
		ON CONFLICT (instance_id, purpose) DO UPDATE SET node_id = excluded.node_id, project_id = excluded.project_id, vcpus = excluded.vcpus,
		memory_bytes = excluded.memory_bytes, disk_bytes = excluded.disk_bytes, group_id = excluded.group_id, group_partition = excluded.group_partition`,
		a.InstanceID, a.Purpose, a.NodeID, a.ProjectID, a.Usage.VCPUs, a.Usage.MemoryBytes, a.Usage.DiskBytes, a.Seat.Group, a.Seat.Partition); err != nil {
		return err
	}
	if countables {
		return tx.putCountables(a)
	}
	return nil
}

func (tx *Tx) putCountables(a *Allocation) error {
	if _, err := tx.exec(`DELETE FROM allocation_countables WHERE instance_id = $1 AND purpose = $2`, a.InstanceID, a.Purpose); err != nil {
		return err
	}
	for label, units := range a.Countables {
		if _, err := tx.exec(`INSERT INTO allocation_countables (instance_id, purpose, label, node_id, units) VALUES ($1, $2, $3, $4, $5)`,
			a.InstanceID, a.Purpose, label, a.NodeID, units); err != nil {
			return err
		}
	}
	return nil
}

const allocationSelect = `SELECT instance_id, project_id, purpose, node_id, vcpus, memory_bytes, disk_bytes, group_id, group_partition FROM allocations `

func scanAllocation(scan scanFunc) (a Allocation, err error) {
	return a, scan(&a.InstanceID, &a.ProjectID, &a.Purpose, &a.NodeID, &a.Usage.VCPUs, &a.Usage.MemoryBytes, &a.Usage.DiskBytes, &a.Seat.Group, &a.Seat.Partition)
}

// Allocation reads what an instance holds for a purpose; ErrNotFound.
func (tx *Tx) Allocation(instanceID, purpose string) (Allocation, error) {
	a, err := one(tx, allocationSelect+`WHERE instance_id = $1 AND purpose = $2`, []any{instanceID, purpose}, scanAllocation)
	if err != nil {
		return a, err
	}
	return a, tx.each(`SELECT label, units FROM allocation_countables WHERE instance_id = $1 AND purpose = $2`, []any{instanceID, purpose}, func(scan scanFunc) error {
		var label string
		var units int64
		err := scan(&label, &units)
		if a.Countables == nil {
			a.Countables = make(map[string]int64)
		}
		a.Countables[label] = units
		return err
	})
}

// Release gives back all that an instance holds.
func (tx *Tx) Release(instanceID string) error {
	held, err := list(tx, allocationSelect+`WHERE instance_id = $1`, []any{instanceID}, scanAllocation)
	if err != nil {
		return err
	}
	for i := range held {
		if err := tx.ReleasePurpose(instanceID, held[i].Purpose); err != nil {
			return err
		}
	}
	return nil
}

// ReleasePurpose gives back what an instance holds for one purpose.
func (tx *Tx) ReleasePurpose(instanceID, purpose string) error {
	var nodeID string
	err := tx.get(`DELETE FROM allocations WHERE instance_id = $1 AND purpose = $2 RETURNING node_id`, []any{instanceID, purpose}, &nodeID)
	if errors.Is(err, ErrNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	return tx.RoomChanged(nodeID)
}

// heldCountables reads the units of each countable label that are allocated on
// nodes, by node id.
func (tx *Tx) heldCountables(which string, args ...any) (map[string]map[string]int64, error) {
	held := map[string]map[string]int64{}
	err := tx.each(`SELECT node_id, label, SUM(units) FROM allocation_countables WHERE node_id <> '' AND `+which+` GROUP BY node_id, label`, args, func(scan scanFunc) error {
		var node, label string
		var units int64
		err := scan(&node, &label, &units)
		if held[node] == nil {
			held[node] = map[string]int64{}
		}
		held[node][label] = units
		return err
	})
	return held, err
}

// ProjectUsage is what a project holds: instances that are not terminated, placed
// or waiting, and all volumes.
type ProjectUsage struct {
	Instances int64
	compute.Usage
}

// ProjectUsage sums up what a project holds; with placedOnly, what waits for a
// node does not count.
func (tx *Tx) ProjectUsage(projectID string, placedOnly bool) (u ProjectUsage, err error) {
	which := ``
	if placedOnly {
		which = ` AND node_id <> ''`
	}
	if err := tx.get(`SELECT COUNT(*), COALESCE(SUM(vcpus), 0), COALESCE(SUM(memory_bytes), 0) FROM allocations WHERE project_id = $1 AND purpose = '`+Holding+`'`+which,
		[]any{projectID}, &u.Instances, &u.VCPUs, &u.MemoryBytes); err != nil {
		return u, err
	}
	return u, tx.get(`SELECT COALESCE(SUM(size_bytes), 0) FROM volumes WHERE project_id = $1 AND NOT going`+which, []any{projectID}, &u.DiskBytes)
}

// Quota is what a project may hold; nil is without a limit.
type Quota struct {
	Instances, VCPUs, MemoryBytes, DiskBytes *int64
}

// None reports whether nothing is limited.
func (q *Quota) None() bool { return *q == Quota{} }

// Quota reads a project's limits.
func (tx *Tx) Quota(projectID string) (q Quota, err error) {
	err = tx.get(`SELECT instances, vcpus, memory_bytes, disk_bytes FROM project_quotas WHERE project_id = $1`, []any{projectID},
		&q.Instances, &q.VCPUs, &q.MemoryBytes, &q.DiskBytes)
	if errors.Is(err, ErrNotFound) {
		err = nil
	}
	return q, err
}

// LockQuota is Quota in a write that is about to make the project hold more:
// nobody else makes it do so until the end of the transaction.
func (tx *Tx) LockQuota(projectID string) (q Quota, err error) {
	err = tx.get(`UPDATE project_quotas SET project_id = project_id WHERE project_id = $1 RETURNING instances, vcpus, memory_bytes, disk_bytes`, []any{projectID},
		&q.Instances, &q.VCPUs, &q.MemoryBytes, &q.DiskBytes)
	if errors.Is(err, ErrNotFound) {
		err = nil
	}
	return q, err
}

// PutQuota writes a project's limits.
func (tx *Tx) PutQuota(projectID string, q Quota) error {
	_, err := tx.exec(`INSERT INTO project_quotas (project_id, instances, vcpus, memory_bytes, disk_bytes) VALUES ($1, $2, $3, $4, $5)
		ON CONFLICT (project_id) DO UPDATE SET instances = excluded.instances, vcpus = excluded.vcpus, memory_bytes = excluded.memory_bytes, disk_bytes = excluded.disk_bytes`,
		projectID, q.Instances, q.VCPUs, q.MemoryBytes, q.DiskBytes)
	return err
}
