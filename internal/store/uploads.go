package store

import (
	"encoding/json"

	"github.com/outcrop-cloud/outcrop/internal/compute"
)

// Upload is an image on its way out of a stopped instance: which volumes, and
// what of them has arrived.
type Upload struct {
	ID         string
	InstanceID string
	NodeID     string
	ImageID    string
	Epoch      int64
	VolumeIDs  []string              // root first
	Arrived    []compute.ImageVolume // by position; an empty SHA256 is not here yet
}

const uploadSelect = `SELECT id, instance_id, node_id, image_id, epoch, doc FROM image_uploads `

type uploadDoc struct {
	VolumeIDs []string
	Arrived   []compute.ImageVolume
}

func scanUpload(scan scanFunc) (u Upload, err error) {
	var text string
	if err = scan(&u.ID, &u.InstanceID, &u.NodeID, &u.ImageID, &u.Epoch, &text); err != nil {
		return u, err
	}
	var doc uploadDoc
	err = json.Unmarshal([]byte(text), &doc)
	u.VolumeIDs, u.Arrived = doc.VolumeIDs, doc.Arrived
	return u, err
}

// PutUpload writes an upload.
func (tx *Tx) PutUpload(u *Upload) error {
	doc, err := json.Marshal(uploadDoc{u.VolumeIDs, u.Arrived})
	if err != nil {
		return err
	}
	_, err = tx.exec(`INSERT INTO image_uploads (id, instance_id, node_id, image_id, epoch, doc) VALUES ($1, $2, $3, $4, $5, $6)
		ON CONFLICT (id) DO UPDATE SET doc = excluded.doc`, u.ID, u.InstanceID, u.NodeID, u.ImageID, u.Epoch, string(doc))
	return err
}

// Upload reads an upload that a node is to send; ErrNotFound.
func (tx *Tx) Upload(nodeID, id string) (Upload, error) {
	return one(tx, uploadSelect+`WHERE id = $1 AND node_id = $2`, []any{id, nodeID}, scanUpload)
}

// UploadToChange is Upload in a write: nobody else changes the upload, or ends it, until
// the end of the transaction.
func (tx *Tx) UploadToChange(nodeID, id string) (Upload, error) {
	return one(tx, `UPDATE image_uploads SET doc = doc WHERE id = $1 AND node_id = $2
		RETURNING id, instance_id, node_id, image_id, epoch, doc`, []any{id, nodeID}, scanUpload)
}

// UploadByID reads an upload of whatever node; ErrNotFound.
func (tx *Tx) UploadByID(id string) (Upload, error) {
	return one(tx, uploadSelect+`WHERE id = $1`, []any{id}, scanUpload)
}

// UploadsOn reads the uploads that a node is to send.
func (tx *Tx) UploadsOn(nodeID string) ([]Upload, error) {
	return list(tx, uploadSelect+`WHERE node_id = $1 ORDER BY id`, []any{nodeID}, scanUpload)
}

// UploadOf reads the upload of an instance; ErrNotFound when there is none.
func (tx *Tx) UploadOf(instanceID string) (Upload, error) {
	return one(tx, uploadSelect+`WHERE instance_id = $1`, []any{instanceID}, scanUpload)
}

// DeleteUpload forgets an upload that is done or has failed.
func (tx *Tx) DeleteUpload(id string) error {
	_, err := tx.exec(`DELETE FROM image_uploads WHERE id = $1`, id)
	return err
}
