package control

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/outcrop-cloud/outcrop/internal/api"
	"github.com/outcrop-cloud/outcrop/internal/compute"
	"github.com/outcrop-cloud/outcrop/internal/fault"
	"github.com/outcrop-cloud/outcrop/internal/iam"
	"github.com/outcrop-cloud/outcrop/internal/store"
)

// CreateImage makes an image of a stopped instance, root and data volumes as one.
// It answers at once; the image is creating until the node has sent its bytes.
func (c *Control) CreateImage(ctx context.Context, who iam.Caller, project, id string, in api.CreateImage, key string) (api.Image, error) {
	if err := iam.Allow(who, iam.CreateImage, iam.Scope{ProjectID: project}); err != nil {
		return api.Image{}, err
	}
	var node string
	var out api.Image
	err := retryStale(func() (err error) {
		out, err = once(ctx, c, "create-image/"+project+"/"+id, key, in, func(tx *store.Tx) (api.Image, error) {
			i, err := instance(tx, project, id)
			if err != nil {
				return api.Image{}, err
			}
			node = i.NodeID
			return c.insertUpload(tx, who, &i, in.Name)
		})
		return err
	})
	if err == nil {
		c.hub.nudge(node)
	}
	return out, err
}

func (c *Control) insertUpload(tx *store.Tx, who iam.Caller, i *store.Instance, name string) (api.Image, error) {
	d, err := stoppedDetails(tx, i, "make an image of")
	if err != nil {
		return api.Image{}, err
	}
	if err := noUpload(tx, i); err != nil {
		return api.Image{}, err
	}
	m := compute.Image{ID: compute.NewID(compute.ImagePrefix), ProjectID: i.ProjectID, Name: name, State: compute.ImageCreating,
		Architecture: i.Spec.Architecture, Tags: map[string]string{}, CreatedAt: tx.Now}
	// The tag goes on only while the instance reads automatic (contract U-09).
	if d.Agent.Activation == compute.ActivationAutomatic {
		m.Tags[compute.ActivationTag] = string(compute.ActivationAutomatic)
	}
	if err := tx.InsertImage(&m); err != nil {
		return api.Image{}, err
	}
	u := store.Upload{ID: m.ID, InstanceID: i.ID, NodeID: i.NodeID, ImageID: m.ID, Epoch: i.Epoch}
	for _, v := range d.Volumes {
		u.VolumeIDs = append(u.VolumeIDs, v.ID)
	}
	u.Arrived = make([]compute.ImageVolume, len(u.VolumeIDs))
	if err := tx.PutUpload(&u); err != nil {
		return api.Image{}, err
	}
	if err := tx.UpdateInstance(i); err != nil { // so that nobody starts or moves it meanwhile
		return api.Image{}, err
	}
	return imageView(&m), event(tx, &i.Instance, who.Name, "create-image", "image "+m.ID)
}

// noUpload refuses what would change a disk while it is being read.
func noUpload(tx *store.Tx, i *store.Instance) error {
	u, err := tx.UploadOf(i.ID)
	if errors.Is(err, store.ErrNotFound) || err == nil && u.ImageID == "" { // a migration has a state of its own
		return nil
	}
	if err != nil {
		return err
	}
	return fault.Coded(fault.Conflict, fault.InvalidState, "image %s is being made of the instance; wait until it is available, or delete the image", u.ImageID)
}

func desiredUploads(tx *store.Tx, nodeID string) (out []api.ImageUpload, err error) {
	all, err := tx.UploadsOn(nodeID)
	for _, u := range all {
		out = append(out, api.ImageUpload{ID: u.ID, InstanceID: u.InstanceID, Epoch: u.Epoch, VolumeIDs: u.VolumeIDs, Impatient: u.ImageID == ""})
	}
	return out, err
}

// TakeVolume stores volume n of an image on its way out of an instance. The last
// one completes the image.
func (c *Control) TakeVolume(ctx context.Context, who iam.Caller, nodeID, uploadID string, n int, body io.Reader, size int64) error {
	if err := iam.Allow(who, iam.UploadVolume, iam.Scope{NodeID: nodeID}); err != nil {
		return err
	}
	var others []string
	var most int64
	check := func(read func(nodeID, id string) (store.Upload, error)) (store.Upload, error) {
		u, err := read(nodeID, uploadID)
		if err == nil && (n < 0 || n >= len(u.VolumeIDs)) {
			err = store.ErrNotFound
		}
		return u, notFound(err, "nobody waits for this volume")
	}
	if err := c.db.Read(ctx, func(tx *store.Tx) error {
		u, err := check(tx.Upload)
		if err != nil {
			return err
		}
		most, err = mostOf(tx, &u, n)
		if err == nil && size > most {
			err = fault.New(fault.TooLarge, "an image of volume %s has at most %d bytes", u.VolumeIDs[n], most)
		}
		return err
	}); err != nil {
		return err
	}
	// One that does not say its size is cut off there, and no whole image then.
	file, err := c.receive(io.LimitReader(body, most), size)
	if err != nil {
		return err
	}
	defer file.discard()
	err = retryStale(func() error {
		return c.db.Write(ctx, func(tx *store.Tx) error {
			u, err := check(tx.UploadToChange)
			if err != nil {
				return err
			}
			if err := file.keep(c.imageFile(file.sha256)); err != nil {
				return err
			}
			u.Arrived[n] = compute.ImageVolume{SnapshotID: compute.NewID(compute.SnapshotPrefix), SHA256: file.sha256,
				Format: string(file.info.Format), SizeBytes: file.size, VirtualSize: file.info.VirtualSize}
			others, err = c.arrived(tx, &u)
			return err
		})
	})
	if err == nil {
		for _, id := range append(others, nodeID) {
			c.hub.nudge(id)
		}
		c.drain.poke() // one more migration may begin
	}
	return err
}

// flatOverhead is what a flat image may take beside twice its disk: far more than the
// tables of a qcow2 file and what does not compress come to.
const flatOverhead = 64 << 20

// mostOf is how many bytes the image of an upload's volume may have: a node has no claim
// to all room of the server's disk.
func mostOf(tx *store.Tx, u *store.Upload, n int) (most int64, err error) {
	d, err := tx.DetailsOf(u.InstanceID)
	if err != nil {
		return 0, err
	}
	for _, v := range d.Volumes {
		if v.ID == u.VolumeIDs[n] {
			return 2*v.SizeBytes + flatOverhead, nil
		}
	}
	return 0, notFound(store.ErrNotFound, "the instance has this volume no longer")
}

// arrived takes in that one more volume is here. The others are nodes that have to
// hear of it.
func (c *Control) arrived(tx *store.Tx, u *store.Upload) (others []string, err error) {
	for _, v := range u.Arrived {
		if v.SHA256 == "" {
			return nil, tx.PutUpload(u)
		}
	}
	if u.ImageID == "" {
		return c.arrivedMove(tx, u)
	}
	return nil, arrivedImage(tx, u)
}

func arrivedImage(tx *store.Tx, u *store.Upload) error {
	m, err := tx.ImageByID(u.ImageID)
	if err != nil {
		return err
	}
	root := u.Arrived[0]
	m.SHA256, m.Format, m.SizeBytes, m.VirtualSize, m.State = root.SHA256, root.Format, root.SizeBytes, root.VirtualSize, compute.ImageAvailable
	m.Volumes = u.Arrived[1:]
	if err := tx.CompleteImage(&m); err != nil {
		return err
	}
	return endUpload(tx, u, fmt.Sprintf("image %s is available", m.ID))
}

// failUpload ends the making of an image of an instance.
func failUpload(tx *store.Tx, instanceID, why string) error {
	u, err := tx.UploadOf(instanceID)
	if errors.Is(err, store.ErrNotFound) || err == nil && u.ImageID == "" {
		return nil
	}
	if err != nil {
		return err
	}
	m, err := tx.ImageByID(u.ImageID)
	if err != nil {
		return err
	}
	m.State = compute.ImageFailed
	if err := tx.CompleteImage(&m); err != nil {
		return err
	}
	return endUpload(tx, &u, "image "+m.ID+" failed: "+why)
}

func endUpload(tx *store.Tx, u *store.Upload, message string) error {
	i, err := tx.InstanceByID(u.InstanceID)
	if err == nil {
		err = event(tx, &i.Instance, "node "+u.NodeID, "create-image", message)
	}
	if err != nil && !errors.Is(err, store.ErrNotFound) {
		return err
	}
	if err := tx.DeleteUpload(u.ID); err != nil {
		return err
	}
	return tx.TouchNode(u.NodeID)
}
