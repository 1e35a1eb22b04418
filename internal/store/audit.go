package store

// Doubt is an allocation or an instance that does not agree with the other rows.
type Doubt struct {
	InstanceID string
	NodeID     string // that the allocation names
	Other      string // what it should be, where there is something: a node or a group
}

func (tx *Tx) doubts(q string) ([]Doubt, error) {
	return list(tx, q+` ORDER BY 1`, nil, func(scan scanFunc) (d Doubt, err error) {
		return d, scan(&d.InstanceID, &d.NodeID, &d.Other)
	})
}

// AllocationsOfTerminated are allocations that nobody needs any more.
func (tx *Tx) AllocationsOfTerminated() ([]Doubt, error) {
	return tx.doubts(`SELECT a.instance_id, a.node_id, '' FROM allocations a JOIN instances i ON i.id = a.instance_id WHERE i.state = 'terminated'`)
}

// InstancesWithoutAllocation are instances whose room is not accounted for: on
// their node, or while they wait for one.
func (tx *Tx) InstancesWithoutAllocation() ([]Doubt, error) {
	return tx.doubts(`SELECT i.id, i.node_id, '' FROM instances i WHERE i.state <> 'terminated'
		AND NOT EXISTS (SELECT 1 FROM allocations a WHERE a.instance_id = i.id AND a.purpose = '` + Holding + `')`)
}

// AllocationsElsewhere are allocations on another node than their instance is on.
func (tx *Tx) AllocationsElsewhere() ([]Doubt, error) {
	return tx.doubts(`SELECT a.instance_id, a.node_id, i.node_id FROM allocations a JOIN instances i ON i.id = a.instance_id
		WHERE a.purpose = '` + Holding + `' AND a.node_id <> i.node_id AND i.state NOT IN ('terminated', 'migrating')`)
}

// AllocationsOfNoMigration are those that a migration left behind.
func (tx *Tx) AllocationsOfNoMigration() ([]Doubt, error) {
	return tx.doubts(`SELECT a.instance_id, a.node_id, '' FROM allocations a JOIN instances i ON i.id = a.instance_id
		WHERE a.purpose = '` + Moving + `' AND i.move = ''`)
}

// AllocationsOnNoNode are allocations on a node that is not there.
func (tx *Tx) AllocationsOnNoNode() ([]Doubt, error) {
	return tx.doubts(`SELECT a.instance_id, a.node_id, '' FROM allocations a WHERE a.node_id <> '' AND NOT EXISTS (SELECT 1 FROM nodes n WHERE n.id = a.node_id)`)
}

// SeatsInNoGroup are allocations with a seat in a group that is not there.
func (tx *Tx) SeatsInNoGroup() ([]Doubt, error) {
	return tx.doubts(`SELECT a.instance_id, a.node_id, a.group_id FROM allocations a WHERE a.group_id <> ''
		AND NOT EXISTS (SELECT 1 FROM placement_groups g WHERE g.id = a.group_id)`)
}

// DiskNotAsHeld are allocations whose disk is not the sum of the volumes.
func (tx *Tx) DiskNotAsHeld() ([]Doubt, error) {
	return tx.doubts(`SELECT a.instance_id, a.node_id, '' FROM allocations a JOIN instances i ON i.id = a.instance_id
		WHERE a.purpose = '` + Holding + `' AND i.state NOT IN ('terminated', 'migrating')
		AND a.disk_bytes <> (SELECT COALESCE(SUM(v.size_bytes), 0) FROM volumes v WHERE v.instance_id = a.instance_id AND v.instance_id <> '')`)
}

// CountAll is how many allocations, instances that are not terminated, and nodes
// there are.
func (tx *Tx) CountAll() (allocations, instances, nodes int64, err error) {
	return allocations, instances, nodes, tx.get(`SELECT (SELECT COUNT(*) FROM allocations),
		(SELECT COUNT(*) FROM instances WHERE state <> 'terminated'), (SELECT COUNT(*) FROM nodes)`, nil, &allocations, &instances, &nodes)
}

// InstancesOnNodes are the nodes of all instances that are placed and not
// terminated, with their states.
func (tx *Tx) InstancesOnNodes(visit func(id, nodeID, state string) error) error {
	return tx.each(`SELECT id, node_id, state FROM instances WHERE node_id <> '' AND state <> 'terminated'`, nil, func(scan scanFunc) error {
		var id, node, state string
		if err := scan(&id, &node, &state); err != nil {
			return err
		}
		return visit(id, node, state)
	})
}
