package control_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/outcrop-cloud/outcrop/internal/api"
	"github.com/outcrop-cloud/outcrop/internal/apptest"
	"github.com/outcrop-cloud/outcrop/internal/compute"
)

// A node that sends a disk larger than the volume does not get it larger on the other
// node: what was accounted is what there is.
// contract: N-24 U-11
func TestMigrateLargerDisk(t *testing.T) {
	apptest.Each(t, func(t *testing.T, s *apptest.System) {
		a, b := newMachine(t, s, "n1"), newMachine(t, s, "n2")
		i := launched(t, s, a, b, api.CreateInstance{DataVolumes: []api.DataVolumeInput{{SizeBytes: 1 << 20}}})[0]
		migrate(s, i.ID, api.MigrateInstance{}).Want(202)
		a.sync()
		a.act()
		a.sync()
		u := a.told.Uploads[0]
		a.Do("PUT", api.NodePath("n1", "uploads", u.ID, "1"), make([]byte, 70<<20)).Want(http.StatusRequestEntityTooLarge)
		a.Do("PUT", api.NodePath("n1", "uploads", u.ID, "0"), diskOf("root")).Want(http.StatusNoContent)
		a.Do("PUT", api.NodePath("n1", "uploads", u.ID, "1"), make([]byte, 2<<20)).Want(http.StatusNoContent)
		got := s.Operator.Instance("default", i.ID)
		if got.NodeID != "n1" || got.State != "starting" || !strings.Contains(got.StateMessage, "2 MiB") {
			t.Errorf("%s on %s: %s", got.State, got.NodeID, got.StateMessage)
		}
		settle(a, b)
		if got := s.Operator.Instance("default", i.ID); got.State != "running" || got.NodeID != "n1" || committed(s, "n2") != 0 {
			t.Errorf("%s on %s: %s", got.State, got.NodeID, got.StateMessage)
		}
		books(t, s)
	})
}

// What a drain stopped runs again when its node takes part again, also where an image is
// being made of it, which then fails instead of waiting for ever.
// contract: N-20 // lesson 22
func TestUncordonWhileImageIsMade(t *testing.T) {
	apptest.Each(t, func(t *testing.T, s *apptest.System) {
		a := newMachine(t, s, "n1")
		i := launched(t, s, a, newMachine(t, s, "n2"), api.CreateInstance{MaintenanceStrategy: "stop"})[0]
		drain(s, "n1", api.DrainNode{})
		drive(t, s, a)
		var m api.Image
		s.Operator.Do("POST", api.InstancePath("default", i.ID, "create-image"), api.CreateImage{Name: "x"}).Want(202).Decode(&m)
		s.Operator.Do("POST", api.NodePath("n1", "uncordon"), nil).Want(200)
		settle(a)
		if got := s.Operator.Instance("default", i.ID); got.State != "running" {
			t.Errorf("%s: %s", got.State, got.StateMessage)
		}
		s.Operator.Do("GET", api.ImagePath("default", m.ID), nil).Want(200).Decode(&m)
		if m.State != "failed" {
			t.Errorf("the image is %s", m.State)
		}
		do(s, "stop", i.ID, nil).Want(202)
		settle(a)
		do(s, "start", i.ID, nil).Want(202)
	})
}

// A volume that is being read for an image stays where it is read.
// contract: U-11
func TestDetachWhileImageIsMade(t *testing.T) {
	apptest.Each(t, func(t *testing.T, s *apptest.System) {
		a, b := newMachine(t, s, "n1"), newMachine(t, s, "n2")
		i := launched(t, s, a, b, api.CreateInstance{DataVolumes: []api.DataVolumeInput{{SizeBytes: 1 << 20}}})[0]
		do(s, "stop", i.ID, nil).Want(202)
		settle(a, b)
		var m api.Image
		do(s, "create-image", i.ID, api.CreateImage{Name: "x"}).Want(202).Decode(&m)
		detach := api.DetachVolume{VolumeID: i.DataVolumes[0].VolumeID}
		do(s, "detach-volume", i.ID, detach).Refused(409, "INVALID_STATE")
		settle(a, b)
		if s.Operator.Do("GET", api.ImagePath("default", m.ID), nil).Want(200).Decode(&m); m.State != "available" || len(m.DataVolumes) != 1 {
			t.Errorf("%+v", m)
		}
		do(s, "detach-volume", i.ID, detach).Want(202)
	})
}

// Who stops what a drain holds stopped, or wishes it stopped, finds it so afterwards.
// contract: N-20 U-16
func TestStopWhileHeld(t *testing.T) {
	for _, how := range []string{"stop", "wish"} {
		t.Run(how, func(t *testing.T) {
			s := apptest.Start(t, apptest.Options{})
			a := newMachine(t, s, "n1")
			i := launched(t, s, a, newMachine(t, s, "n2"), api.CreateInstance{MaintenanceStrategy: "stop"})[0]
			drain(s, "n1", api.DrainNode{})
			drive(t, s, a)
			if how == "stop" {
				do(s, "stop", i.ID, nil).Want(202)
			} else {
				s.Operator.Do("PATCH", api.InstancePath("default", i.ID), map[string]any{"desiredState": "stopped"}).Want(200)
			}
			s.Operator.Do("POST", api.NodePath("n1", "uncordon"), nil).Want(200)
			settle(a)
			if got := s.Operator.Instance("default", i.ID); got.State != "stopped" {
				t.Errorf("%s: %s", got.State, got.StateMessage)
			}
		})
	}
}

// A node that names what nobody asked it for, by the thousand, changes nothing, and what
// is kept of its findings is bounded.
// contract: N-24
func TestSyncFlood(t *testing.T) {
	apptest.Each(t, func(t *testing.T, s *apptest.System) {
		a, b := newMachine(t, s, "n1"), newMachine(t, s, "n2")
		i := launched(t, s, a, b, api.CreateInstance{DataVolumes: []api.DataVolumeInput{{SizeBytes: 1 << 20}}})[0]
		in := b.report()
		for n := range 5000 {
			id := fmt.Sprintf("vol-%d", n)
			in.GoneVolumes = append(in.GoneVolumes, id)
			in.FailedUploads = append(in.FailedUploads, api.FailedUpload{ID: id})
			in.Wakes = append(in.Wakes, api.WakeReport{ID: id})
			in.Findings = append(in.Findings, api.Finding{Code: "X", Message: strings.Repeat("é", 20)})
		}
		in.GoneVolumes = append(in.GoneVolumes, i.DataVolumes[0].VolumeID)
		in.Findings[0].Message = strings.Repeat("x", 1<<16)
		b.Do("POST", api.NodePath("n2", "sync"), in).Want(200)
		var n api.Node
		s.Operator.Do("GET", api.NodePath("n2"), nil).Want(200).Decode(&n)
		if len(n.Findings) > 150 || len(n.Findings) < 100 || len(n.Findings[0].Message) > 1100 {
			t.Errorf("%d findings, the first of %d bytes", len(n.Findings), len(n.Findings[0].Message))
		}
		if got := s.Operator.Instance("default", i.ID); got.State != "running" || len(got.DataVolumes) != 1 {
			t.Errorf("%+v", got)
		}
	})
}

// No word of a node keeps later power actions from being above all before them.
// contract: N-19
func TestPowerGenerationOfANode(t *testing.T) {
	s := apptest.Start(t, apptest.Options{})
	n := booted(s, "n1", "boot 1")
	n.Power = &api.PowerReport{Generation: 1<<63 - 1}
	n.Sync(0)
	var out api.Node
	s.Operator.Do("POST", api.NodePath("n1", "shutdown"), nil).Want(202).Decode(&out)
	if out.PowerAction == nil || out.PowerAction.Generation != 1 || out.State != string(compute.NodeShuttingDown) {
		t.Errorf("%+v", out.PowerAction)
	}
	n.Sync(0)
	if s.Operator.Do("GET", api.NodePath("n1"), nil).Want(200).Decode(&out); out.State != string(compute.NodeShuttingDown) {
		t.Errorf("%s: %+v", out.State, out.PowerAction)
	}
}
