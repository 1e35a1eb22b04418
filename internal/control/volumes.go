package control

import (
	"context"
	"fmt"

	"github.com/outcrop-cloud/outcrop/internal/api"
	"github.com/outcrop-cloud/outcrop/internal/compute"
	"github.com/outcrop-cloud/outcrop/internal/fault"
	"github.com/outcrop-cloud/outcrop/internal/iam"
	"github.com/outcrop-cloud/outcrop/internal/store"
)

// AttachVolume gives a stopped instance a data volume: one of the project's that
// is on its node, or a new one.
func (c *Control) AttachVolume(ctx context.Context, who iam.Caller, project, id string, in api.AttachVolume) (api.Instance, error) {
	return c.change(ctx, who, iam.AttachVolume, project, id, func(tx *store.Tx, i *store.Instance) (string, error) {
		if (in.VolumeID == "") == (in.SizeBytes == 0) {
			return "", fault.InvalidFields([]fault.Field{{Path: "volumeId", Message: "give the id of a volume, or sizeBytes for a new one"}})
		}
		d, err := stoppedDetails(tx, i, "attach a volume to")
		if err != nil {
			return "", err
		}
		device, err := freeDevice(d)
		if err != nil {
			return "", err
		}
		if in.VolumeID == "" {
			v := compute.Volume{ID: compute.NewID(compute.VolumePrefix), ProjectID: project, NodeID: i.NodeID, InstanceID: i.ID,
				Device: device, SizeBytes: wholeSectors(in.SizeBytes), CreatedAt: tx.Now}
			if err := roomForVolume(tx, i, v.SizeBytes); err != nil {
				return "", err
			}
			if err := tx.InsertVolume(&v); err != nil {
				return "", err
			}
		} else if err := reattach(tx, i, project, in.VolumeID, device); err != nil {
			return "", err
		}
		return "attach-volume", c.reallocate(tx, i)
	})
}

// roomForVolume refuses a new volume for which the project or the instance's node
// has no room. Until the end of the transaction nobody else takes it.
func roomForVolume(tx *store.Tx, i *store.Instance, size int64) error {
	if err := checkQuota(tx, i.ProjectID, store.ProjectUsage{Usage: compute.Usage{DiskBytes: size}}); err != nil {
		return err
	}
	if _, err := tx.LockPlacement(); err != nil {
		return err
	}
	n, err := tx.Node(i.NodeID)
	if err != nil {
		return err
	}
	if free := n.Committable().DiskBytes - n.Used.DiskBytes; size > free {
		return fault.Coded(fault.Conflict, fault.NoRoom, "the instance's node has too little disk free: %s needed, %s free; ask for less, or delete volumes there", sizeText(size), sizeText(max(0, free)))
	}
	return nil
}

func reattach(tx *store.Tx, i *store.Instance, project, volumeID, device string) error {
	v, err := tx.VolumeToChange(project, volumeID)
	if err != nil {
		return notFound(err, "there is no volume %q in project %q", volumeID, project)
	}
	switch {
	case v.Going:
		return fault.New(fault.NotFound, "there is no volume %q in project %q", volumeID, project)
	case v.InstanceID == i.ID:
		return fault.New(fault.Conflict, "the volume is attached to this instance already, as %s", v.Device)
	case v.InstanceID != "":
		return fault.New(fault.Conflict, "the volume is attached to %s; detach it there first", v.InstanceID)
	case v.NodeID != i.NodeID:
		return fault.New(fault.Conflict, "the volume's file is on another node than the instance; they must be on the same one")
	}
	v.InstanceID, v.Device = i.ID, device
	return tx.UpdateVolume(&v)
}

// DetachVolume takes a data volume from a stopped instance; its content stays.
func (c *Control) DetachVolume(ctx context.Context, who iam.Caller, project, id string, in api.DetachVolume) (api.Instance, error) {
	return c.change(ctx, who, iam.DetachVolume, project, id, func(tx *store.Tx, i *store.Instance) (string, error) {
		d, err := stoppedDetails(tx, i, "detach a volume from")
		if err != nil {
			return "", err
		}
		if err := noUpload(tx, i); err != nil {
			return "", err
		}
		for n := range d.Volumes {
			v := &d.Volumes[n]
			if v.ID != in.VolumeID {
				continue
			}
			if v.Root {
				return "", fault.New(fault.Conflict, "the root volume stays with its instance")
			}
			// Whoever detaches a volume wants to keep it.
			v.InstanceID, v.Device, v.Auto = "", "", false
			if err := tx.UpdateVolume(v); err != nil {
				return "", err
			}
			return "detach-volume", c.reallocate(tx, i)
		}
		return "", fault.New(fault.NotFound, "no volume %q is attached to the instance", in.VolumeID)
	})
}

func stoppedDetails(tx *store.Tx, i *store.Instance, what string) (*store.Details, error) {
	if i.State != compute.StateStopped {
		return nil, invalidState(i, what, "it must be stopped")
	}
	if i.NodeID == "" {
		return nil, fault.Coded(fault.Conflict, fault.InvalidState, "the instance has never been on a node; start it once first")
	}
	return tx.DetailsOf(i.ID)
}

func freeDevice(d *store.Details) (string, error) {
	taken := map[string]bool{}
	for _, v := range d.Volumes {
		taken[v.Device] = true
	}
	for n := range compute.MaxDataVolumes {
		if dev := compute.DataDevice(n); !taken[dev] {
			return dev, nil
		}
	}
	return "", fault.New(fault.Conflict, "an instance has at most %d data volumes", compute.MaxDataVolumes)
}

// reallocate writes what a placed instance holds after its volumes changed.
func (c *Control) reallocate(tx *store.Tx, i *store.Instance) error {
	d, err := tx.DetailsOf(i.ID)
	if err != nil {
		return err
	}
	held, err := tx.Allocation(i.ID, store.Holding)
	if err != nil {
		return err
	}
	held.Usage = usage(&i.Instance, d)
	return tx.Allocate(&held)
}

// usage is what an instance takes of its node.
func usage(i *compute.Instance, d *store.Details) compute.Usage {
	u := compute.Usage{VCPUs: i.Spec.Shape.VCPUs, MemoryBytes: i.Spec.Shape.MemoryBytes}
	for _, v := range d.Volumes {
		u.DiskBytes += v.SizeBytes
	}
	return u
}

// wholeSectors rounds up to what a disk can be.
func wholeSectors(n int64) int64 { return (n + 511) / 512 * 512 }

// ListVolumes answers a page of a project's volumes, oldest first.
func (c *Control) ListVolumes(ctx context.Context, who iam.Caller, project string, p Page) (api.List[api.Volume], error) {
	if err := iam.Allow(who, iam.ListVolumes, iam.Scope{ProjectID: project}); err != nil {
		return api.List[api.Volume]{}, err
	}
	return pageByAge(ctx, c, p, func(tx *store.Tx, after store.Cursor, limit int) ([]compute.Volume, error) {
		if err := projectExists(tx, project); err != nil {
			return nil, err
		}
		return tx.Volumes(project, after, limit)
	}, func(v *compute.Volume) (api.Volume, store.Cursor) {
		return volumeView(v), store.After(v.CreatedAt, v.ID)
	})
}

// GetVolume answers one volume.
func (c *Control) GetVolume(ctx context.Context, who iam.Caller, project, id string) (api.Volume, error) {
	if err := iam.Allow(who, iam.GetVolume, iam.Scope{ProjectID: project}); err != nil {
		return api.Volume{}, err
	}
	var v compute.Volume
	err := c.db.Read(ctx, func(tx *store.Tx) (err error) {
		v, err = tx.Volume(project, id)
		return notFound(err, "there is no volume %q in project %q", id, project)
	})
	return volumeView(&v), err
}

// DeleteVolume removes a volume that is attached to none; the node removes its file.
func (c *Control) DeleteVolume(ctx context.Context, who iam.Caller, project, id string) error {
	if err := iam.Allow(who, iam.DeleteVolume, iam.Scope{ProjectID: project}); err != nil {
		return err
	}
	var v compute.Volume
	err := c.db.Write(ctx, func(tx *store.Tx) (err error) {
		if v, err = tx.VolumeToChange(project, id); err != nil {
			return notFound(err, "there is no volume %q in project %q", id, project)
		}
		if v.InstanceID != "" {
			return fault.Coded(fault.Conflict, "VOLUME_IN_USE", "the volume is attached to %s; detach it first", v.InstanceID)
		}
		return discard(tx, &v)
	})
	if err == nil {
		c.hub.nudge(v.NodeID)
	}
	return err
}

// discard lets the node remove a volume's file; where there is none yet, the row
// goes at once.
func discard(tx *store.Tx, v *compute.Volume) error {
	if v.NodeID == "" {
		return tx.DeleteVolume(v.ID)
	}
	v.InstanceID, v.Device, v.Going = "", "", true
	if err := tx.UpdateVolume(v); err != nil {
		return err
	}
	return tx.RoomChanged(v.NodeID)
}

// dataVolumes are the data volumes of a create: those of the image first, then
// those that were asked for.
func dataVolumes(tx *store.Tx, project string, img *compute.Image, asked []api.DataVolumeInput) ([]compute.Volume, error) {
	parts, err := tx.ImageVolumes(img.ID)
	if err != nil {
		return nil, err
	}
	if n := len(parts) + len(asked); n > compute.MaxDataVolumes {
		return nil, fault.InvalidFields([]fault.Field{{Path: "dataVolumes", Message: fmt.Sprintf("make %d data volumes with those of the image; the limit is %d", n, compute.MaxDataVolumes)}})
	}
	var out []compute.Volume
	add := func(size int64, snapshot string) {
		out = append(out, compute.Volume{ID: compute.NewID(compute.VolumePrefix), ProjectID: project, Device: compute.DataDevice(len(out)),
			SizeBytes: wholeSectors(size), Auto: true, SnapshotID: snapshot, CreatedAt: tx.Now})
	}
	for _, p := range parts {
		add(p.VirtualSize, p.SnapshotID)
	}
	for _, v := range asked {
		add(v.SizeBytes, "")
	}
	return out, nil
}

func volumeView(v *compute.Volume) api.Volume {
	return api.Volume{
		ID: v.ID, ProjectID: v.ProjectID, SizeBytes: v.SizeBytes, NodeID: v.NodeID, InstanceID: v.InstanceID, Device: v.Device,
		Root: v.Root, AutoProvisioned: v.Auto, SourceSnapshotID: v.SnapshotID, CreatedAt: v.CreatedAt,
	}
}
