package node

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/outcrop-cloud/outcrop/internal/api"
	"github.com/outcrop-cloud/outcrop/internal/compute"
	"github.com/outcrop-cloud/outcrop/internal/fault"
	"github.com/outcrop-cloud/outcrop/internal/hypervisor"
)

// What a tenant does with volumes and images; the instance has to be stopped for
// most of it.

const volumesPath = "/v1/projects/default/compute/volumes"

// volumes lists all volumes, as the server knows them.
func (c *chaos) volumes() (list []api.Volume, err error) {
	return list, api.Pages(context.Background(), c.tenant, volumesPath, func(v api.Volume) error {
		list = append(list, v)
		return nil
	})
}

// volume is one of those that are attached, or of those that are not.
func (c *chaos) volume(attached bool) (id, instance string, err error) {
	list, err := c.volumes()
	for _, v := range list {
		if (v.InstanceID != "") == attached && (id == "" || c.rng.IntN(2) == 0) {
			id, instance = v.ID, v.InstanceID
		}
	}
	return id, instance, err
}

func (c *chaos) attach() (string, error) {
	in := api.AttachVolume{SizeBytes: 1 << 30}
	if c.rng.IntN(2) == 0 {
		id, _, err := c.volume(false)
		if err != nil || id == "" {
			return "none", err
		}
		in = api.AttachVolume{VolumeID: id}
	}
	id := c.instance()
	said, _, _, err := c.call("POST", api.InstancePath("default", id, "attach-volume"), in, nil)
	return fmt.Sprint(id, " ", in.VolumeID, " ", said), err
}

func (c *chaos) detach() (string, error) {
	id, instance, err := c.volume(true)
	if err != nil || id == "" {
		return "none", err
	}
	said, _, _, err := c.call("POST", api.InstancePath("default", instance, "detach-volume"), api.DetachVolume{VolumeID: id}, nil)
	return fmt.Sprint(instance, " ", id, " ", said), err
}

func (c *chaos) deleteVolume() (string, error) {
	id, _, err := c.volume(false)
	if err != nil || id == "" {
		return "none", err
	}
	said, _, _, err := c.call("DELETE", volumesPath+"/"+id, nil, nil)
	return fmt.Sprint(id, " ", said), err
}

func (c *chaos) createImage() (string, error) {
	c.made++
	id := c.instance()
	said, _, _, err := c.call("POST", api.InstancePath("default", id, "create-image"), api.CreateImage{Name: fmt.Sprint("image-", c.made)}, nil)
	return id + " " + said, err
}

// write lets a guest write to its root volume.
func (c *chaos) write() (string, error) {
	b := c.box()
	for _, vm := range b.list() {
		w := c.wishes[vm.ID]
		if vm.State != hypervisor.Running || w == nil || c.rng.IntN(2) == 0 {
			continue
		}
		c.made++
		text := fmt.Sprintf("\nwritten: %d;", c.made)
		f, err := os.OpenFile(filepath.Join(b.vms.dir, "instances", vm.ID, fileRoot), os.O_APPEND|os.O_WRONLY, 0)
		if err != nil {
			return vm.ID, err
		}
		_, err = f.WriteString(text)
		w.wrote = append(w.wrote, text)
		return vm.ID + text, errors.Join(err, f.Close())
	}
	return "nobody", nil
}

// clearDisks deletes the volumes and images that outlive their instances.
func (c *chaos) clearDisks() error {
	ctx := context.Background()
	volumes, err := c.volumes()
	wrong := []error{err}
	for _, v := range volumes {
		if v.InstanceID != "" {
			wrong = append(wrong, fmt.Errorf("volume %s is still attached to %s", v.ID, v.InstanceID))
			continue
		}
		if err := c.tenant.Do(ctx, "DELETE", volumesPath+"/"+v.ID, nil, nil); err != nil && !fault.Is(err, fault.NotFound) {
			wrong = append(wrong, err)
		}
	}
	var images []api.Image
	wrong = append(wrong, api.Pages(ctx, c.tenant, api.ImagePath("default", ""), func(m api.Image) error {
		images = append(images, m)
		return nil
	}))
	for _, m := range images {
		if m.State == string(compute.ImageCreating) {
			wrong = append(wrong, fmt.Errorf("image %s is still %s", m.ID, m.State))
		}
		if m.ID != c.image {
			wrong = append(wrong, c.tenant.Do(ctx, "DELETE", api.ImagePath("default", m.ID), nil, nil))
		}
	}
	<-time.After(5 * time.Minute)
	return errors.Join(wrong...)
}
