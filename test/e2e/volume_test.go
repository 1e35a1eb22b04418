package e2e

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/outcrop-cloud/outcrop/internal/api"
	"github.com/outcrop-cloud/outcrop/internal/compute"
)

// TestVolumes has data volumes on real disks: made with an instance, moved to
// another, and part of an image; and a console that goes both ways.
// contract: U-11 U-19
func TestVolumes(t *testing.T) { isolated(t, []string{"micro"}, dataVolumes) }

func dataVolumes(t *testing.T, l *lab) {
	c := newCloud(t, l)
	c.network = "host"
	c.startNode()
	const bytes = 64 << 20
	a := c.launch(api.CreateInstance{Name: "first", ImageID: c.image, VCPUs: 1, MemoryBytes: guestMemory, DataVolumes: []api.DataVolumeInput{{SizeBytes: bytes}}})
	c.says(a, 1, saysReady)
	inA := c.reaches(a, compute.StateRunning)
	if len(inA.DataVolumes) != 1 || inA.DataVolumes[0].Device != "/dev/vdb" {
		t.Fatalf("data volumes %+v", inA.DataVolumes)
	}
	volume := inA.DataVolumes[0].VolumeID
	disks := func(id, said string, volumes ...string) {
		t.Helper()
		for n, v := range append(volumes, "cidata") { // the seed comes last
			device := fmt.Sprintf("disk device=/dev/vd%c", 'b'+n)
			if !strings.Contains(said, device) || !strings.Contains(said, "serial="+v+" ") {
				t.Errorf("%s has no %s with serial %s:\n%s", id, device, v, said)
			}
		}
	}
	disks(a, c.says(a, 1, saysReady), volume)

	// The console by way of server and node, typed and read.
	conn, err := c.op.Upgrade(t.Context(), http.MethodGet, api.InstancePath(project, a, "console", "stream"), api.ConsoleProtocol)
	if err != nil {
		t.Fatal(err)
	}
	sh := newShell(t, conn)
	if said, status := sh.run("echo these bytes | dd of=/dev/vdb conv=fsync 2>/dev/null; sync; head -c 11 /dev/vdb"); status != 0 || said != "these bytes" {
		t.Errorf("status %d, %q", status, said)
	}
	conn.Close()

	c.stop(a, within(60))
	c.reaches(a, compute.StateStopped)
	c.call(http.MethodPost, api.InstancePath(project, a, "detach-volume"), api.DetachVolume{VolumeID: volume}, nil)

	b := c.create("second", nil)
	c.says(b, 1, saysReady)
	c.reaches(b, compute.StateRunning)
	c.stop(b, within(60))
	c.reaches(b, compute.StateStopped)
	c.call(http.MethodPost, api.InstancePath(project, b, "attach-volume"), api.AttachVolume{VolumeID: volume}, nil)
	c.start(b)
	disks(b, c.says(b, 2, saysReady), volume)
	c.reaches(b, compute.StateRunning)
	shB := c.shell(b)
	if said, _ := shB.run("head -c 11 /dev/vdb"); said != "these bytes" {
		t.Errorf("the volume holds %q", said)
	}
	shB.io.Close()

	// Root and data as one image, and a launch from it.
	c.stop(b, within(60))
	c.reaches(b, compute.StateStopped)
	var img api.Image
	c.call(http.MethodPost, api.InstancePath(project, b, "create-image"), api.CreateImage{Name: "made"}, &img)
	await(t, patience, "image made of an instance", func() (string, bool) {
		c.call(http.MethodGet, api.ImagePath(project, img.ID), nil, &img)
		return fmt.Sprintf("%+v", img), img.State == "available"
	})
	if len(img.DataVolumes) != 1 || img.DataVolumes[0].VirtualSizeBytes != bytes {
		t.Errorf("image %+v", img)
	}
	clone := c.launch(api.CreateInstance{Name: "clone", ImageID: img.ID, VCPUs: 1, MemoryBytes: guestMemory})
	said := c.says(clone, 1, saysReady)
	inClone := c.reaches(clone, compute.StateRunning)
	if len(inClone.DataVolumes) != 1 || inClone.DataVolumes[0].VolumeID == volume || inClone.DataVolumes[0].SourceSnapshotID != img.DataVolumes[0].SnapshotID {
		t.Fatalf("data volumes of the clone: %+v", inClone.DataVolumes)
	}
	disks(clone, said, inClone.DataVolumes[0].VolumeID)
	shC := c.shell(clone)
	if said, _ := shC.run("head -c 11 /dev/vdb"); said != "these bytes" {
		t.Errorf("the cloned volume holds %q", said)
	}
	shC.io.Close()

	for _, id := range []string{a, b, clone} {
		c.terminate(id)
		c.reaches(id, compute.StateTerminated)
	}
	var volumes api.List[api.Volume]
	await(t, soon, "only files of volumes that the server has", func() (string, bool) {
		c.call(http.MethodGet, "/v1/projects/"+project+"/compute/volumes", nil, &volumes)
		files, _ := filepath.Glob(c.path("node/volumes/*"))
		return fmt.Sprint(volumes.Items, files), len(files) == len(volumes.Items)
	})
	t.Logf("volumes that outlive their instances: %d", len(volumes.Items))
	if left, _ := os.ReadDir(c.path("node/uploads")); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
	c.node.stop(t)
}
