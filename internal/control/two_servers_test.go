package control_test

import (
	"sync"
	"testing"

	"github.com/outcrop-cloud/outcrop/internal/api"
	"github.com/outcrop-cloud/outcrop/internal/apptest"
	"github.com/outcrop-cloud/outcrop/internal/control"
	"github.com/outcrop-cloud/outcrop/internal/iam"
	"github.com/outcrop-cloud/outcrop/internal/store"
)

// The same key at two servers at once makes one thing.
// contract: E-10
func TestOneKeyTwoServers(t *testing.T) {
	s := apptest.Start(t, apptest.Options{Kind: "postgres"})
	servers := []*control.Control{s.Control, secondServer(t, s)}
	image := s.Image("default")
	for _, key := range []string{"a", "b", "c", "d", "e", "f", "g", "h"} {
		var out [2]api.Instance
		var all sync.WaitGroup
		for n, c := range servers {
			all.Go(func() {
				var err error
				in := api.CreateInstance{Name: key, ImageID: image, InstanceType: "m1.tiny"}
				if out[n], err = c.CreateInstance(t.Context(), iam.System, "default", in, key); err != nil {
					t.Error(err)
				}
			})
		}
		all.Wait()
		if out[0].ID != out[1].ID {
			t.Errorf("key %s made %s and %s", key, out[0].ID, out[1].ID)
		}
	}
}

// An instance of which one server makes an image is not moved by another one that began
// before it heard of that.
// contract: N-20 U-21
func TestImageAndMoveTwoServers(t *testing.T) {
	s := apptest.Start(t, apptest.Options{Kind: "postgres"})
	second := secondServer(t, s)
	a, b := newMachine(t, s, "n1"), newMachine(t, s, "n2")
	i := launched(t, s, a, b, api.CreateInstance{})[0]
	do(s, "stop", i.ID, nil).Want(202)
	settle(a, b)
	for range 8 {
		var m api.Image
		var imageErr, moveErr error
		var all sync.WaitGroup
		all.Go(func() {
			m, imageErr = second.CreateImage(t.Context(), iam.System, "default", i.ID, api.CreateImage{Name: "x"}, "")
		})
		all.Go(func() {
			_, moveErr = s.Control.MigrateInstance(t.Context(), iam.System, "default", i.ID, api.MigrateInstance{})
		})
		all.Wait()
		if (imageErr == nil) == (moveErr == nil) {
			t.Fatalf("both, or neither: %v, %v", imageErr, moveErr)
		}
		if imageErr == nil {
			s.Operator.Do("DELETE", api.ImagePath("default", m.ID), nil).Want(204)
		}
		settle(a, b)
		if err := s.DB.Read(t.Context(), func(tx *store.Tx) error {
			if u, err := tx.UploadOf(i.ID); err == nil {
				t.Errorf("left: %+v", u)
			}
			return nil
		}); err != nil {
			t.Error(err)
		}
	}
}

// An instance whose image another server deleted while it was created keeps its node from
// nothing else.
// contract: U-21 // lesson 10
func TestImageGoneMeanwhile(t *testing.T) {
	apptest.Each(t, func(t *testing.T, s *apptest.System) {
		a, b := newMachine(t, s, "n1"), newMachine(t, s, "n2")
		ok := launched(t, s, a, b, api.CreateInstance{})[0]
		only(s, "n1", []string{"n2"}, func() {
			bad := s.Create("default", api.CreateInstance{})
			if err := s.DB.Write(t.Context(), func(tx *store.Tx) error { return tx.DeleteImage(bad.ImageID) }); err != nil {
				t.Fatal(err)
			}
			place(t, s)
			do(s, "stop", ok.ID, nil).Want(202)
			a.sync()
			told := map[string]api.DesiredInstance{}
			for _, d := range a.told.Instances {
				told[d.ID] = d
			}
			if told[ok.ID].Goal != "stopped" || told[bad.ID].Goal != "running" || told[bad.ID].Image.SHA256 != "" {
				t.Errorf("%+v", told)
			}
			s.Operator.Do("DELETE", api.InstancePath("default", bad.ID), nil).Want(202)
			settle(a)
			if got := s.Operator.Instance("default", bad.ID).State; got != "terminated" {
				t.Errorf("%s", got)
			}
		})
	})
}

// Of two instances that are given one volume at two servers, one gets it; so it is with
// its being deleted.
// contract: U-11
func TestVolumeTwoServers(t *testing.T) {
	s := apptest.Start(t, apptest.Options{Kind: "postgres"})
	second := secondServer(t, s)
	a, b := newMachine(t, s, "n1"), newMachine(t, s, "n2")
	is := launched(t, s, a, b, api.CreateInstance{DataVolumes: []api.DataVolumeInput{{SizeBytes: 1 << 20}}}, api.CreateInstance{})
	for _, i := range is {
		do(s, "stop", i.ID, nil).Want(202)
	}
	settle(a, b)
	volume := is[0].DataVolumes[0].VolumeID
	do(s, "detach-volume", is[0].ID, api.DetachVolume{VolumeID: volume}).Want(202)
	for range 8 {
		var all sync.WaitGroup
		var err [2]error
		for n, c := range []*control.Control{s.Control, second} {
			all.Go(func() {
				_, err[n] = c.AttachVolume(t.Context(), iam.System, "default", is[n].ID, api.AttachVolume{VolumeID: volume})
			})
		}
		all.Wait()
		if (err[0] == nil) == (err[1] == nil) {
			t.Fatalf("both, or neither: %v, %v", err[0], err[1])
		}
		for n := range is {
			if err[n] == nil {
				do(s, "detach-volume", is[n].ID, api.DetachVolume{VolumeID: volume}).Want(202)
			}
		}
	}
	books(t, s)
}
