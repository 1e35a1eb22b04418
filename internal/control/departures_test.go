package control_test

import (
	"slices"
	"testing"

	"github.com/outcrop-cloud/outcrop/internal/api"
	"github.com/outcrop-cloud/outcrop/internal/apptest"
	"github.com/outcrop-cloud/outcrop/internal/compute"
	"github.com/outcrop-cloud/outcrop/internal/store"
)

// What is a node's no longer is told gone until the node says that nothing of it is
// left, and not to any other node.
// lesson 3
func TestDepartures(t *testing.T) {
	apptest.Each(t, func(t *testing.T, s *apptest.System) {
		n, other := s.Node("n1"), s.Node("n2")
		departures := []store.Departure{{NodeID: "n1", ID: compute.NewInstanceID(), Epoch: 7}, {NodeID: "n1", ID: "vol-0123456789abcdef0", Volume: true}}
		for _, d := range departures {
			if err := s.DB.Write(t.Context(), func(tx *store.Tx) error { return tx.Depart(&d) }); err != nil {
				t.Fatal(err)
			}
		}
		report := func(n *apptest.Node, in api.SyncRequest) (out api.SyncResponse) {
			n.Do("POST", api.NodePath(n.ID, "sync"), in).Want(200).Decode(&out)
			return out
		}
		told := func(out api.SyncResponse) (instance, volume bool) {
			return slices.ContainsFunc(out.Instances, func(d api.DesiredInstance) bool {
					return d.ID == departures[0].ID && d.Goal == "gone" && d.Epoch == 7
				}),
				slices.Contains(out.Volumes, api.KeptVolume{ID: departures[1].ID, Gone: true})
		}
		gone := api.ObservedInstance{ID: departures[0].ID, Epoch: 7, Phase: "gone"}
		old, running := gone, gone
		old.Epoch, running.Phase = 6, "running"
		for _, o := range []api.ObservedInstance{old, running} {
			if i, v := told(report(n, api.SyncRequest{Instances: []api.ObservedInstance{o}})); !i || !v {
				t.Errorf("after %+v the node is told of the instance %v, of the volume %v", o, i, v)
			}
		}
		if i, v := told(report(other, api.SyncRequest{Instances: []api.ObservedInstance{gone}, GoneVolumes: []string{departures[1].ID}})); i || v {
			t.Error("another node is told to remove them")
		}
		if i, v := told(report(n, api.SyncRequest{Instances: []api.ObservedInstance{gone}})); i || !v {
			t.Errorf("after the VM is gone: told of the instance %v, of the volume %v", i, v)
		}
		if i, v := told(report(n, api.SyncRequest{Instances: []api.ObservedInstance{}, GoneVolumes: []string{departures[1].ID}})); i || v {
			t.Errorf("after all is gone: told of the instance %v, of the volume %v", i, v)
		}
	})
}
