package control_test

import (
	"crypto/rand"
	"net/http"
	"slices"
	"testing"

	"github.com/outcrop-cloud/outcrop/internal/api"
	"github.com/outcrop-cloud/outcrop/internal/apptest"
	"github.com/outcrop-cloud/outcrop/internal/compute"
)

const gib = int64(1) << 30

// contract: U-11
func TestDataVolumes(t *testing.T) {
	apptest.Each(t, func(t *testing.T, s *apptest.System) {
		n := s.Node("n1")
		op := s.Operator
		i := n.Stopped("default", api.CreateInstance{DataVolumes: []api.DataVolumeInput{{SizeBytes: gib}, {SizeBytes: 2*gib + 1}}})
		if len(i.DataVolumes) != 2 || i.DataVolumes[0].Device != "/dev/vdb" || i.DataVolumes[1].Device != "/dev/vdc" ||
			i.DataVolumes[0].SizeBytes != gib || i.DataVolumes[1].SizeBytes != 2*gib+512 {
			t.Fatalf("data volumes %+v", i.DataVolumes)
		}
		d, _ := n.Desired(i.ID)
		if slices.ContainsFunc(d.Volumes, func(v api.DesiredVolume) bool { return !v.Made }) {
			t.Errorf("after a run the node is told %+v", d.Volumes)
		}
		if len(d.Volumes) != 3 || !d.Volumes[0].Root || d.Volumes[1].ID != i.DataVolumes[0].VolumeID || d.Volumes[2].ID != i.DataVolumes[1].VolumeID {
			t.Errorf("the node is told %+v", d.Volumes)
		}
		at := func(action string) string { return api.InstancePath("default", i.ID, action) }
		first, second := i.DataVolumes[0].VolumeID, i.DataVolumes[1].VolumeID

		op.Do("POST", at("detach-volume"), api.DetachVolume{VolumeID: first}).Want(http.StatusAccepted).Decode(&i)
		if len(i.DataVolumes) != 1 || i.DataVolumes[0].Device != "/dev/vdc" {
			t.Errorf("after the detach %+v", i.DataVolumes)
		}
		op.Do("POST", at("detach-volume"), api.DetachVolume{VolumeID: first}).Refused(http.StatusNotFound, "NOT_FOUND")
		op.Do("POST", at("detach-volume"), api.DetachVolume{VolumeID: i.RootVolumeID}).Refused(http.StatusConflict, "CONFLICT")
		op.Do("POST", at("attach-volume"), api.AttachVolume{VolumeID: first}).Want(http.StatusAccepted).Decode(&i)
		if len(i.DataVolumes) != 2 || i.DataVolumes[0].VolumeID != first || i.DataVolumes[0].Device != "/dev/vdb" {
			t.Errorf("after the attach %+v", i.DataVolumes)
		}
		op.Do("POST", at("attach-volume"), api.AttachVolume{VolumeID: first}).Refused(http.StatusConflict, "CONFLICT")
		op.Do("POST", at("attach-volume"), api.AttachVolume{}).Refused(http.StatusBadRequest, "INVALID_INPUT")
		op.Do("POST", at("attach-volume"), api.AttachVolume{VolumeID: first, SizeBytes: gib}).Refused(http.StatusBadRequest, "INVALID_INPUT")
		op.Do("POST", at("attach-volume"), api.AttachVolume{VolumeID: "vol-zzzzzzzzzz"}).Refused(http.StatusNotFound, "NOT_FOUND")
		op.Do("POST", at("attach-volume"), api.AttachVolume{SizeBytes: gib}).Want(http.StatusAccepted)

		op.Do("POST", at("start"), nil).Want(http.StatusAccepted)
		n.Drive("default", i.ID, compute.StateRunning)
		op.Do("POST", at("attach-volume"), api.AttachVolume{SizeBytes: gib}).Refused(http.StatusConflict, "INVALID_STATE")
		op.Do("POST", at("detach-volume"), api.DetachVolume{VolumeID: second}).Refused(http.StatusConflict, "INVALID_STATE")

		// Terminate removes what came with the instance; what was attached or
		// detached by hand stays.
		op.Do("DELETE", api.InstancePath("default", i.ID), nil).Want(http.StatusAccepted)
		n.Drive("default", i.ID, compute.StateTerminated)
		var out api.SyncResponse
		n.Do("POST", api.NodePath("n1", "sync"), api.SyncRequest{Instances: []api.ObservedInstance{}}).Want(http.StatusOK).Decode(&out)
		var gone []string
		for _, v := range out.Volumes {
			if v.Gone {
				gone = append(gone, v.ID)
			}
		}
		if len(out.Volumes) != 3 || !slices.Equal(gone, []string{second}) {
			t.Errorf("volumes on the node %+v; want %s to go and two to stay", out.Volumes, second)
		}
		n.Do("POST", api.NodePath("n1", "sync"), api.SyncRequest{Instances: []api.ObservedInstance{}, GoneVolumes: []string{second, first}}).Want(http.StatusOK)
		var left api.List[api.Volume]
		op.Do("GET", "/v1/projects/default/compute/volumes", nil).Want(http.StatusOK).Decode(&left)
		if len(left.Items) != 2 || slices.ContainsFunc(left.Items, func(v api.Volume) bool { return v.ID == second || v.InstanceID != "" }) {
			t.Errorf("volumes %+v; want two that are attached to none, whatever the node says of those that were not to go", left.Items)
		}
		op.Do("DELETE", "/v1/projects/default/compute/volumes/"+first, nil).Want(http.StatusNoContent)
		op.Do("GET", "/v1/projects/shop/compute/volumes/"+first, nil).Refused(http.StatusNotFound, "NOT_FOUND")
	})
}

// contract: U-11
func TestDataVolumeLimits(t *testing.T) {
	s := apptest.Start(t, apptest.Options{})
	image := s.Image("default")
	make := func(n int, size int64) api.CreateInstance {
		in := api.CreateInstance{Name: "x", ImageID: image, InstanceType: "m1.tiny"}
		for range n {
			in.DataVolumes = append(in.DataVolumes, api.DataVolumeInput{SizeBytes: size})
		}
		return in
	}
	path := api.InstancePath("default", "")
	s.Operator.Do("POST", path, make(compute.MaxDataVolumes, 1<<20)).Want(http.StatusAccepted)
	s.Operator.Do("POST", path, make(compute.MaxDataVolumes+1, 1<<20)).Refused(http.StatusBadRequest, "INVALID_INPUT")
	s.Operator.Do("POST", path, make(1, 1<<20-1)).Refused(http.StatusBadRequest, "INVALID_INPUT")
}

// contract: U-11 U-09
func TestCreateImage(t *testing.T) {
	apptest.Each(t, func(t *testing.T, s *apptest.System) {
		n, other := s.Node("n1"), s.Node("n2")
		// n2 is full, so that everything lands on n1.
		s.Operator.Do("PATCH", api.NodePath("n2"), `{"reservedVCPUs":64}`).Want(http.StatusOK)
		op := s.Operator
		var shipped api.Image
		op.Do("POST", api.ImagePath("default", "")+"?name=shipped&tag=stratum.dev/agent-activation%3Dautomatic", apptest.DiskImage()).Want(http.StatusCreated).Decode(&shipped)
		i := n.Launch("default", api.CreateInstance{ImageID: shipped.ID, DataVolumes: []api.DataVolumeInput{{SizeBytes: gib}}})
		at := api.InstancePath("default", i.ID, "create-image")
		op.Do("POST", at, api.CreateImage{Name: "gold"}).Refused(http.StatusConflict, "INVALID_STATE")
		op.Do("POST", api.InstancePath("default", i.ID, "stop"), nil).Want(http.StatusAccepted)
		n.Drive("default", i.ID, compute.StateStopped)

		var img api.Image
		op.Do("POST", at, api.CreateImage{Name: "gold"}).Want(http.StatusAccepted).Decode(&img)
		if img.State != "creating" || img.Tags[compute.ActivationTag] != "automatic" {
			t.Errorf("the new image %+v", img)
		}
		op.Do("POST", at, api.CreateImage{Name: "again"}).Refused(http.StatusConflict, "INVALID_STATE")
		op.Do("POST", api.InstancePath("default", i.ID, "start"), nil).Refused(http.StatusConflict, "INVALID_STATE")
		op.Do("POST", api.InstancePath("default", ""), api.CreateInstance{Name: "early", ImageID: img.ID, InstanceType: "m1.tiny"}).Refused(http.StatusBadRequest, "INVALID_INPUT")

		out := n.Sync(0)
		if len(out.Uploads) != 1 || len(out.Uploads[0].VolumeIDs) != 2 || out.Uploads[0].InstanceID != i.ID {
			t.Fatalf("the node is told %+v", out.Uploads)
		}
		up := api.NodePath("n1", "uploads", out.Uploads[0].ID)
		other.Do("PUT", api.NodePath("n2", "uploads", out.Uploads[0].ID, "0"), disk()).Refused(http.StatusNotFound, "NOT_FOUND")
		n.Do("PUT", up+"/2", disk()).Refused(http.StatusNotFound, "NOT_FOUND")
		n.Do("PUT", up+"/0", "no disk").Refused(http.StatusBadRequest, "INVALID_INPUT")
		n.Do("PUT", up+"/1", disk()).Want(http.StatusNoContent)
		// What has arrived stays until the rest has: no row of an image names it yet.
		if err := s.Control.Forget(t.Context()); err != nil {
			t.Fatal(err)
		}
		n.Do("PUT", up+"/0", disk()).Want(http.StatusNoContent)
		op.Do("GET", api.ImagePath("default", img.ID), nil).Want(http.StatusOK).Decode(&img)
		if img.State != "available" || len(img.DataVolumes) != 1 || img.SHA256 == "" {
			t.Errorf("the finished image %+v", img)
		}

		// Launches clone the data devices.
		clone := n.Launch("default", api.CreateInstance{ImageID: img.ID, DataVolumes: []api.DataVolumeInput{{SizeBytes: gib}}})
		if len(clone.DataVolumes) != 2 || clone.DataVolumes[0].SourceSnapshotID != img.DataVolumes[0].SnapshotID || clone.DataVolumes[1].SourceSnapshotID != "" {
			t.Errorf("the clone's volumes %+v", clone.DataVolumes)
		}
		d, _ := n.Desired(clone.ID)
		if d.Volumes[1].Image == nil || d.Volumes[2].Image != nil {
			t.Errorf("the node is told %+v", d.Volumes)
		}
		n.Do("GET", api.NodePath("n1", "images", d.Volumes[1].Image.SHA256), nil).Want(http.StatusOK)
		other.Do("GET", api.NodePath("n2", "images", d.Volumes[1].Image.SHA256), nil).Refused(http.StatusNotFound, "NOT_FOUND")

		// An image of an instance whose agent went over to the command carries no tag.
		op.Do("POST", api.InstancePath("default", i.ID, "enable-agent"), `{"force":true}`).Want(http.StatusAccepted)
		img = api.Image{}
		op.Do("POST", at, api.CreateImage{Name: "plain"}).Want(http.StatusAccepted).Decode(&img)
		if _, tagged := img.Tags[compute.ActivationTag]; tagged {
			t.Errorf("tags %v after force", img.Tags)
		}
		op.Do("DELETE", api.InstancePath("default", i.ID), nil).Want(http.StatusAccepted)
		n.Drive("default", i.ID, compute.StateTerminated)
		op.Do("GET", api.ImagePath("default", img.ID), nil).Want(http.StatusOK).Decode(&img)
		if img.State != "failed" {
			t.Errorf("the image of a terminated instance is %s, want failed", img.State)
		}
	})
}

// disk is a raw disk that is unlike all others.
func disk() []byte {
	b := make([]byte, 1<<16)
	_, _ = rand.Read(b[512:])
	return b
}
