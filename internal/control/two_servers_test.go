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
		all.Go(func() { m, imageErr = second.CreateImage(t.Context(), iam.System, "default", i.ID, api.CreateImage{Name: "x"}, "") })
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
