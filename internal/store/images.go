package store

import (
	"encoding/json"

	"github.com/outcrop-cloud/outcrop/internal/compute"
)

const imageSelect = `SELECT id, project_id, name, public, sha256, format, size_bytes, virtual_size, tags, created_at FROM images `

func scanImage(scan scanFunc) (m compute.Image, err error) {
	var tags string
	var created int64
	if err = scan(&m.ID, &m.ProjectID, &m.Name, &m.Public, &m.SHA256, &m.Format, &m.SizeBytes, &m.VirtualSize, &tags, &created); err != nil {
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
	_, err = tx.exec(`INSERT INTO images (id, project_id, name, public, sha256, format, size_bytes, virtual_size, tags, created_at)
		VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)`,
		m.ID, m.ProjectID, m.Name, m.Public, m.SHA256, m.Format, m.SizeBytes, m.VirtualSize, string(tags), micros(m.CreatedAt))
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

// ImageFileUsed reports whether any image still names the file.
func (tx *Tx) ImageFileUsed(sha256 string) (bool, error) {
	var n int64
	err := tx.get(`SELECT COUNT(*) FROM images WHERE sha256 = $1`, []any{sha256}, &n)
	return n > 0, err
}

// ImageForNode reports whether an instance placed on the node stands on an image
// with the digest (contract N-24).
func (tx *Tx) ImageForNode(nodeID, sha256 string) (bool, error) {
	var n int64
	err := tx.get(`SELECT COUNT(*) FROM images m JOIN instances i ON i.image_id = m.id
		WHERE m.sha256 = $1 AND i.node_id = $2 AND i.node_id <> '' AND i.state <> 'terminated'`, []any{sha256, nodeID}, &n)
	return n > 0, err
}
