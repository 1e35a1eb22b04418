package store

import (
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/outcrop-cloud/outcrop/internal/compute"
)

// Instance is an instance row with the version that its next update must name.
type Instance struct {
	compute.Instance
	version int64
	moving  bool // as it was read
}

const instanceColumns = `id, project_id, node_id, spec, state, message, goal, epoch, deadline, force_stopping,
	root_volume_id, changed_at, created_at, launched_at, terminated_at, version, move`

const instanceSelect = `SELECT ` + instanceColumns + ` FROM instances `

func scanInstance(scan scanFunc) (i Instance, err error) {
	var spec, move string
	var deadline, changed, created, launched, terminated int64
	if err = scan(&i.ID, &i.ProjectID, &i.NodeID, &spec, &i.State, &i.Message, &i.Goal, &i.Epoch, &deadline, &i.ForceStopping,
		&i.RootVolumeID, &changed, &created, &launched, &terminated, &i.version, &move); err != nil {
		return i, err
	}
	if i.Move, err = scanMove(move); err != nil {
		return i, err
	}
	i.moving = i.Move != nil
	i.Deadline, i.ChangedAt, i.CreatedAt = fromMicros(deadline), fromMicros(changed), fromMicros(created)
	i.LaunchedAt, i.TerminatedAt = fromMicros(launched), fromMicros(terminated)
	return i, json.Unmarshal([]byte(spec), &i.Spec)
}

// Instance reads one instance of a project; ErrNotFound also for another
// project's (contract U-05).
func (tx *Tx) Instance(projectID, id string) (Instance, error) {
	return one(tx, instanceSelect+`WHERE id = $1 AND project_id = $2`, []any{id, projectID}, scanInstance)
}

// InstanceByID reads one instance of whatever project: for the platform itself.
func (tx *Tx) InstanceByID(id string) (Instance, error) {
	return one(tx, instanceSelect+`WHERE id = $1`, []any{id}, scanInstance)
}

// Instances reads a page of a project's instances, oldest first.
func (tx *Tx) Instances(projectID string, after Cursor, limit int) ([]Instance, error) {
	return list(tx, instanceSelect+`WHERE project_id = $1 AND (created_at, id) > ($2, $3) ORDER BY created_at, id LIMIT $4`,
		[]any{projectID, after.At, after.ID, limit}, scanInstance)
}

// InstancesOn reads all instances placed on a node that are not terminated.
func (tx *Tx) InstancesOn(nodeID string) ([]Instance, error) {
	return list(tx, instanceSelect+`WHERE node_id = $1 AND node_id <> '' AND state <> 'terminated' ORDER BY created_at, id`, []any{nodeID}, scanInstance)
}

// Waiting is an instance that waits for a node.
type Waiting struct {
	Instance
	DiskBytes int64 // of its volumes
	Plugged   bool  // it has an interface
}

// WaitingInstances reads a page of the instances that wait for a node, oldest first.
func (tx *Tx) WaitingInstances(after Cursor, limit int) ([]Waiting, error) {
	return list(tx, `SELECT `+instanceColumns+`,
		COALESCE((SELECT SUM(v.size_bytes) FROM volumes v WHERE v.instance_id = instances.id AND v.instance_id <> ''), 0),
		EXISTS (SELECT 1 FROM interfaces f WHERE f.instance_id = instances.id AND f.instance_id <> '')
		FROM instances WHERE state = 'creating' AND node_id = '' AND (created_at, id) > ($1, $2) ORDER BY created_at, id LIMIT $3`,
		[]any{after.At, after.ID, limit}, func(scan scanFunc) (w Waiting, err error) {
			w.Instance, err = scanInstance(func(dest ...any) error { return scan(append(dest, &w.DiskBytes, &w.Plugged)...) })
			return w, err
		})
}

// AnyWaiting reports whether an instance waits for a node.
func (tx *Tx) AnyWaiting() (bool, error) {
	var n int64
	err := tx.get(`SELECT COUNT(*) FROM (SELECT id FROM instances WHERE state = 'creating' AND node_id = '' LIMIT 1) AS w`, nil, &n)
	return n > 0, err
}

// OverdueInstances reads a page of the instances whose deadline has passed,
// longest overdue first; the cursor is of deadline and id.
func (tx *Tx) OverdueInstances(after Cursor, limit int) ([]Instance, error) {
	return list(tx, instanceSelect+`WHERE deadline <> 0 AND deadline <= $1 AND (deadline, id) > ($2, $3) ORDER BY deadline, id LIMIT $4`,
		[]any{micros(tx.Now), after.At, after.ID, limit}, scanInstance)
}

// InstancesToConverge reads settled instances whose state is not what the
// operator asked for. One in error is left alone until it has been so since
// before errorBefore; what a drain holds is not started, nor
// what lives on a node that is down.
func (tx *Tx) InstancesToConverge(errorBefore time.Time, limit int) ([]Instance, error) {
	return list(tx, instanceSelect+`WHERE desired_state <> '' AND ((desired_state = 'running' AND state = 'stopped')
		OR (desired_state = 'stopped' AND state = 'running') OR (state = 'error' AND changed_at < $1))
		AND (desired_state = 'stopped' OR NOT EXISTS (SELECT 1 FROM nodes n WHERE n.id = instances.node_id AND n.down))
		AND (desired_state = 'stopped' OR NOT EXISTS (SELECT 1 FROM drain_items d WHERE d.instance_id = instances.id AND d.holds AND d.node_id = instances.node_id))
		ORDER BY id LIMIT $2`, []any{micros(errorBefore), limit}, scanInstance)
}

// CountInstances is how many instances of a project are not terminated.
func (tx *Tx) CountInstances(projectID string) (n int64, err error) {
	return n, tx.get(`SELECT COUNT(*) FROM instances WHERE project_id = $1 AND state <> 'terminated'`, []any{projectID}, &n)
}

// ErrIDTaken: the drawn id equals an earlier one under case folding; draw again.
var ErrIDTaken = errors.New("store: id taken")

// InsertInstance writes a new instance, its volumes, and its reference to its
// user-data.
func (tx *Tx) InsertInstance(i *compute.Instance, volumes []compute.Volume) error {
	n, err := tx.exec(`INSERT INTO issued_ids (folded) VALUES (lower($1)) ON CONFLICT (folded) DO NOTHING`, i.ID)
	if err != nil {
		return err
	}
	if n == 0 {
		return ErrIDTaken
	}
	spec, err := json.Marshal(i.Spec)
	if err != nil {
		return err
	}
	if _, err := tx.exec(`INSERT INTO instances (id, project_id, image_id, node_id, spec, user_data_hash, state, message, goal, epoch, deadline,
		force_stopping, root_volume_id, desired_state, changed_at, created_at, launched_at, terminated_at, placement_group_id, version)
		VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, 1)`,
		i.ID, i.ProjectID, i.Spec.ImageID, i.NodeID, string(spec), i.Spec.UserDataHash, string(i.State), i.Message, string(i.Goal), i.Epoch,
		micros(i.Deadline), i.ForceStopping, i.RootVolumeID, i.Spec.DesiredState, micros(tx.Now), micros(i.CreatedAt), micros(i.LaunchedAt), micros(i.TerminatedAt),
		i.Spec.PlacementGroupID); err != nil {
		return err
	}
	for n := range volumes {
		if err := tx.InsertVolume(&volumes[n]); err != nil {
			return err
		}
	}
	return nil
}

// UpdateInstance writes an instance that was read in this or an earlier
// transaction; ErrStale when it changed since. Its node learns of it.
func (tx *Tx) UpdateInstance(i *Instance) error {
	spec, err := json.Marshal(i.Spec)
	if err != nil {
		return err
	}
	move, err := moveText(i.Move)
	if err != nil {
		return err
	}
	if err := tx.must(ErrStale, `UPDATE instances SET node_id = $3, spec = $4, user_data_hash = $5, state = $6, message = $7, goal = $8, epoch = $9,
		deadline = $10, force_stopping = $11, launched_at = $12, terminated_at = $13, desired_state = $14, changed_at = $15, placement_group_id = $16, move = $17,
		version = version + 1 WHERE id = $1 AND version = $2`,
		i.ID, i.version, i.NodeID, string(spec), i.Spec.UserDataHash, string(i.State), i.Message, string(i.Goal), i.Epoch,
		micros(i.Deadline), i.ForceStopping, micros(i.LaunchedAt), micros(i.TerminatedAt), i.Spec.DesiredState, micros(tx.Now), i.Spec.PlacementGroupID, move); err != nil {
		return err
	}
	i.version++
	i.moving = i.Move != nil
	return tx.TouchNode(i.NodeID)
}

// PurgeTerminated removes instances that were terminated before t, with all that
// hangs on them, and says how many.
func (tx *Tx) PurgeTerminated(t time.Time) (int64, error) {
	return tx.exec(`DELETE FROM instances WHERE state = 'terminated' AND terminated_at < $1`, micros(t))
}

// Event is one line of an instance's timeline.
type Event struct {
	ID         int64
	InstanceID string
	At         time.Time
	Actor      string
	Event      string
	State      compute.InstanceState
	Message    string
}

// AddEvent appends to the timeline of an instance.
func (tx *Tx) AddEvent(e Event) error {
	_, err := tx.exec(`INSERT INTO events (instance_id, id, at, actor, event, state, message)
		VALUES ($1, (SELECT COALESCE(MAX(id), 0) + 1 FROM events WHERE instance_id = $1), $2, $3, $4, $5, $6)`,
		e.InstanceID, micros(tx.Now), e.Actor, e.Event, string(e.State), e.Message)
	if err != nil {
		return fmt.Errorf("writing the event: %w", err)
	}
	return nil
}

// Events reads a page of the timeline of an instance, oldest first.
func (tx *Tx) Events(instanceID string, after int64, limit int) ([]Event, error) {
	return list(tx, `SELECT id, instance_id, at, actor, event, state, message FROM events WHERE instance_id = $1 AND id > $2 ORDER BY id LIMIT $3`,
		[]any{instanceID, after, limit}, func(scan scanFunc) (e Event, err error) {
			var at int64
			err = scan(&e.ID, &e.InstanceID, &at, &e.Actor, &e.Event, &e.State, &e.Message)
			e.At = fromMicros(at)
			return e, err
		})
}
