package store

import (
	"encoding/json"

	"github.com/outcrop-cloud/outcrop/internal/compute"
)

const imageSelect = `SELECT id, project_id, name, public, sha256, format, architecture, size_bytes, virtual_size, tags, state, created_at FROM images `

func scanImage(scan scanFunc) (m compute.Image, err error) {
	var tags string
	var created int64
	if err = scan(&m.ID, &m.ProjectID, &m.Name, &m.Public, &m.SHA256, &m.Format, &m.Architecture, &m.SizeBytes, &m.VirtualSize, &tags, &m.State, &created); err != nil {
		return m, err
	}
	m.CreatedAt = fromMicros(created)
	return m, json.Unmarshal([]byte(tags), &m.Tags)
}

// Image reads an image that the project can see: its own or a public one.
func (tx *Tx) Image(projectID, id string) (compute.Image, error) {
	return one(tx, imageSelect+`WHERE id = $1 AND (project_id = $2 OR public)`, []any{id, projectID}, scanImage)
}

// ImageByID reads an image of whatever project: for the platform itself.
func (tx *Tx) ImageByID(id string) (compute.Image, error) {
	return one(tx, imageSelect+`WHERE id = $1`, []any{id}, scanImage)
}

// Images reads a page of the images that the project can see, oldest first.
func (tx *Tx) Images(projectID string, after Cursor, limit int) ([]compute.Image, error) {
	return list(tx, imageSelect+`WHERE (project_id = $1 OR public) AND (created_at, id) > ($2, $3) ORDER BY created_at, id LIMIT $4`,
		[]any{projectID, after.At, after.ID, limit}, scanImage)
}

// CountImages is how many images a project has.
func (tx *Tx) CountImages(projectID string) (n int64, err error) {
	return n, tx.get(`SELECT COUNT(*) FROM images WHERE project_id = $1`, []any{projectID}, &n)
}

// InsertImage writes a new image.
func (tx *Tx) InsertImage(m *compute.Image) error {
	tags, err := json.Marshal(m.Tags)
	if err != nil {
		return err
	}
	_, err = tx.exec(`INSERT INTO images (id, project_id, name, public, sha256, format, architecture, size_bytes, virtual_size, tags, state, created_at)
		VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12)`,
		m.ID, m.ProjectID, m.Name, m.Public, m.SHA256, m.Format, m.Architecture, m.SizeBytes, m.VirtualSize, string(tags), string(m.State), micros(m.CreatedAt))
	return err
}

// DeleteImage removes an image's row.
func (tx *Tx) DeleteImage(id string) error {
	return tx.must(ErrNotFound, `DELETE FROM images WHERE id = $1`, id)
}

// ImageUsers reads the ids of up to limit instances that stand on an image.
func (tx *Tx) ImageUsers(imageID string, limit int) ([]string, error) {
	return list(tx, `SELECT id FROM instances WHERE image_id = $1 AND state <> 'terminated' ORDER BY id LIMIT $2`, []any{imageID, limit},
		func(scan scanFunc) (id string, err error) { return id, scan(&id) })
}

// CountImageUsers is how many instances stand on an image.
func (tx *Tx) CountImageUsers(imageID string) (n int64, err error) {
	return n, tx.get(`SELECT COUNT(*) FROM instances WHERE image_id = $1 AND state <> 'terminated'`, []any{imageID}, &n)
}

// ImageFileUsed reports whether any image, volume that was carried to another node,
// or upload of which this part has arrived, still names the file.
func (tx *Tx) ImageFileUsed(sha256 string) (bool, error) {
	var n int64
	err := tx.get(`SELECT (SELECT COUNT(*) FROM images WHERE sha256 = $1) + (SELECT COUNT(*) FROM image_volumes WHERE sha256 = $1)
		+ (SELECT COUNT(*) FROM volumes WHERE base_sha256 = $1)
		+ (SELECT COUNT(*) FROM image_uploads WHERE doc LIKE '%' || $1 || '%')`, []any{sha256}, &n)
	return n > 0, err
}

// ImageForNode reports whether an instance placed on the node, or a volume there,
// stands on an image with the digest (contract N-24).
func (tx *Tx) ImageForNode(nodeID, sha256 string) (bool, error) {
	var n int64
	err := tx.get(`SELECT (SELECT COUNT(*) FROM instances i JOIN images m ON m.id = i.image_id LEFT JOIN image_volumes v ON v.image_id = m.id
		WHERE (m.sha256 = $1 OR v.sha256 = $1) AND i.node_id = $2 AND i.node_id <> '' AND i.state <> 'terminated')
		+ (SELECT COUNT(*) FROM volumes b WHERE b.base_sha256 = $1 AND b.base_sha256 <> '' AND b.node_id = $2 AND b.node_id <> '')`, []any{sha256, nodeID}, &n)
	return n > 0, err
}

// CompleteImage writes what is known of an image once its bytes are there, or
// that they will not come.
func (tx *Tx) CompleteImage(m *compute.Image) error {
	if err := tx.must(ErrNotFound, `UPDATE images SET sha256 = $2, format = $3, size_bytes = $4, virtual_size = $5, state = $6 WHERE id = $1`,
		m.ID, m.SHA256, m.Format, m.SizeBytes, m.VirtualSize, string(m.State)); err != nil {
		return err
	}
	for n, v := range m.Volumes {
		if _, err := tx.exec(`INSERT INTO image_volumes (image_id, position, snapshot_id, sha256, format, size_bytes, virtual_size) VALUES ($1, $2, $3, $4, $5, $6, $7)`,
			m.ID, n, v.SnapshotID, v.SHA256, v.Format, v.SizeBytes, v.VirtualSize); err != nil {
			return err
		}
	}
	return nil
}

// ImageVolumes reads the data devices of an image.
func (tx *Tx) ImageVolumes(imageID string) ([]compute.ImageVolume, error) {
	return list(tx, `SELECT snapshot_id, sha256, format, size_bytes, virtual_size FROM image_volumes WHERE image_id = $1 ORDER BY position`, []any{imageID},
		func(scan scanFunc) (v compute.ImageVolume, err error) {
			return v, scan(&v.SnapshotID, &v.SHA256, &v.Format, &v.SizeBytes, &v.VirtualSize)
		})
}
