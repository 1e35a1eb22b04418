package store

import (
	"encoding/json"

	"github.com/outcrop-cloud/outcrop/internal/compute"
)

const (
	volumeColumns = `id, project_id, node_id, instance_id, device, size_bytes, root, auto, snapshot_id, base, made, going, created_at`
	volumeSelect  = `SELECT ` + volumeColumns + ` FROM volumes `
)

func scanVolume(scan scanFunc) (v compute.Volume, err error) {
	var created int64
	var base string
	if err = scan(&v.ID, &v.ProjectID, &v.NodeID, &v.InstanceID, &v.Device, &v.SizeBytes, &v.Root, &v.Auto, &v.SnapshotID, &base, &v.Made, &v.Going, &created); err != nil {
		return v, err
	}
	v.CreatedAt = fromMicros(created)
	if base != "" {
		v.Base = new(compute.ImageVolume)
		err = json.Unmarshal([]byte(base), v.Base)
	}
	return v, err
}

// InsertVolume writes a new volume.
func (tx *Tx) InsertVolume(v *compute.Volume) error {
	_, err := tx.exec(`INSERT INTO volumes (id, project_id, node_id, instance_id, device, size_bytes, root, auto, snapshot_id, going, created_at)
		VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)`,
		v.ID, v.ProjectID, v.NodeID, v.InstanceID, v.Device, v.SizeBytes, v.Root, v.Auto, v.SnapshotID, v.Going, micros(v.CreatedAt))
	return err
}

// UpdateVolume writes where a volume is, what it stands on and what it is attached to.
func (tx *Tx) UpdateVolume(v *compute.Volume) error {
	base, sha256 := "", ""
	if v.Base != nil {
		b, err := json.Marshal(v.Base)
		if err != nil {
			return err
		}
		base, sha256 = string(b), v.Base.SHA256
	}
	return tx.must(ErrNotFound, `UPDATE volumes SET node_id = $2, instance_id = $3, device = $4, auto = $5, going = $6, base = $7, base_sha256 = $8, made = $9 WHERE id = $1`,
		v.ID, v.NodeID, v.InstanceID, v.Device, v.Auto, v.Going, base, sha256, v.Made)
}

// VolumesMade notes that a VM runs with the volumes of an instance.
func (tx *Tx) VolumesMade(instanceID string) error {
	_, err := tx.exec(`UPDATE volumes SET made = TRUE WHERE instance_id = $1 AND instance_id <> '' AND NOT made`, instanceID)
	return err
}

// Volume reads one volume of a project; ErrNotFound.
func (tx *Tx) Volume(projectID, id string) (compute.Volume, error) {
	return one(tx, volumeSelect+`WHERE id = $1 AND project_id = $2`, []any{id, projectID}, scanVolume)
}

// VolumeToChange is Volume in a write: nobody else attaches or deletes it until the end of
// the transaction.
func (tx *Tx) VolumeToChange(projectID, id string) (compute.Volume, error) {
	return one(tx, `UPDATE volumes SET device = device WHERE id = $1 AND project_id = $2
		RETURNING `+volumeColumns, []any{id, projectID}, scanVolume)
}

// Volumes reads a page of a project's volumes, oldest first.
func (tx *Tx) Volumes(projectID string, after Cursor, limit int) ([]compute.Volume, error) {
	return list(tx, volumeSelect+`WHERE project_id = $1 AND (created_at, id) > ($2, $3) ORDER BY created_at, id LIMIT $4`,
		[]any{projectID, after.At, after.ID, limit}, scanVolume)
}

// VolumesOn reads all volumes whose files are on a node, those that go included.
func (tx *Tx) VolumesOn(nodeID string) ([]compute.Volume, error) {
	return list(tx, volumeSelect+`WHERE node_id = $1 AND node_id <> '' ORDER BY id`, []any{nodeID}, scanVolume)
}

// DeleteVolume removes the row of a volume that the node says is gone.
func (tx *Tx) DeleteVolume(id string) error {
	_, err := tx.exec(`DELETE FROM volumes WHERE id = $1`, id)
	return err
}
