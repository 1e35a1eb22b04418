package store

import "github.com/outcrop-cloud/outcrop/internal/compute"

const groupSelect = `SELECT id, project_id, name, kind, level, strict, partitions, created_at FROM placement_groups `

func scanGroup(scan scanFunc) (g compute.PlacementGroup, err error) {
	var created int64
	err = scan(&g.ID, &g.ProjectID, &g.Name, &g.Rule.Kind, &g.Rule.Level, &g.Rule.Strict, &g.Rule.Partitions, &created)
	g.CreatedAt = fromMicros(created)
	return g, err
}

// InsertPlacementGroup writes a new group; ErrExists when the project has one of
// that name.
func (tx *Tx) InsertPlacementGroup(g *compute.PlacementGroup) error {
	return tx.must(ErrExists, `INSERT INTO placement_groups (id, project_id, name, kind, level, strict, partitions, created_at)
		VALUES ($1, $2, $3, $4, $5, $6, $7, $8) ON CONFLICT (project_id, name) DO NOTHING`,
		g.ID, g.ProjectID, g.Name, string(g.Rule.Kind), string(g.Rule.Level), g.Rule.Strict, g.Rule.Partitions, micros(g.CreatedAt))
}

// PlacementGroup reads one group of a project; ErrNotFound also for another
// project's.
func (tx *Tx) PlacementGroup(projectID, id string) (compute.PlacementGroup, error) {
	return one(tx, groupSelect+`WHERE id = $1 AND project_id = $2`, []any{id, projectID}, scanGroup)
}

// PlacementGroups reads a page of a project's groups, oldest first.
func (tx *Tx) PlacementGroups(projectID string, after Cursor, limit int) ([]compute.PlacementGroup, error) {
	return list(tx, groupSelect+`WHERE project_id = $1 AND (created_at, id) > ($2, $3) ORDER BY created_at, id LIMIT $4`,
		[]any{projectID, after.At, after.ID, limit}, scanGroup)
}

// UpdatePlacementGroup writes the name and rule of a group; ErrExists when the
// project has another one of that name. Placement is locked first, so that no
// decision is made under the rule of before.
func (tx *Tx) UpdatePlacementGroup(g *compute.PlacementGroup) error {
	if _, err := tx.LockPlacement(); err != nil {
		return err
	}
	return tx.must(ErrExists, `UPDATE placement_groups SET name = $2, level = $3, strict = $4 WHERE id = $1
		AND NOT EXISTS (SELECT 1 FROM placement_groups o WHERE o.project_id = placement_groups.project_id AND o.name = $2 AND o.id <> $1)`,
		g.ID, g.Name, string(g.Rule.Level), g.Rule.Strict)
}

// DeletePlacementGroup removes a group and the seats in it. The members are the
// caller's to change.
func (tx *Tx) DeletePlacementGroup(id string) error {
	if err := tx.DropSeats(id); err != nil {
		return err
	}
	return tx.must(ErrNotFound, `DELETE FROM placement_groups WHERE id = $1`, id)
}

// DropSeats takes the seats in a group from all allocations.
func (tx *Tx) DropSeats(id string) error {
	nodes, err := list(tx, `SELECT DISTINCT node_id FROM allocations WHERE group_id = $1 AND group_id <> ''`, []any{id}, func(scan scanFunc) (id string, err error) {
		return id, scan(&id)
	})
	if err != nil {
		return err
	}
	for _, n := range nodes {
		if err := tx.RoomChanged(n); err != nil {
			return err
		}
	}
	_, err = tx.exec(`UPDATE allocations SET group_id = '', group_partition = 0 WHERE group_id = $1 AND group_id <> ''`, id)
	return err
}

// GroupMembers reads the instances of a group that are not terminated, in id order.
func (tx *Tx) GroupMembers(groupID string) ([]Instance, error) {
	return list(tx, instanceSelect+`WHERE placement_group_id = $1 AND placement_group_id <> '' AND state <> 'terminated' ORDER BY id`, []any{groupID}, scanInstance)
}

// CountGroupMembers is how many instances GroupMembers reads for each of a
// project's groups.
func (tx *Tx) CountGroupMembers(projectID string) (map[string]int64, error) {
	counts := map[string]int64{}
	err := tx.each(`SELECT placement_group_id, COUNT(*) FROM instances WHERE project_id = $1 AND placement_group_id <> '' AND state <> 'terminated'
		GROUP BY placement_group_id`, []any{projectID}, func(scan scanFunc) error {
		var id string
		var n int64
		err := scan(&id, &n)
		counts[id] = n
		return err
	})
	return counts, err
}
