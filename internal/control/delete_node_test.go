package control_test

import (
	"testing"

	"github.com/outcrop-cloud/outcrop/internal/api"
	"github.com/outcrop-cloud/outcrop/internal/apptest"
	"github.com/outcrop-cloud/outcrop/internal/compute"
)

// A node is not forgotten while somebody's volume is on it; one that was to go goes with
// the node.
// contract: N-08 U-11
func TestDeleteNodeWithVolumes(t *testing.T) {
	apptest.Each(t, func(t *testing.T, s *apptest.System) {
		n := s.Node("n1")
		i := n.Stopped("default", api.CreateInstance{DataVolumes: []api.DataVolumeInput{{SizeBytes: 1 << 20}}})
		volume := i.DataVolumes[0].VolumeID
		do(s, "detach-volume", i.ID, api.DetachVolume{VolumeID: volume}).Want(202)
		s.Operator.Do("DELETE", api.InstancePath("default", i.ID), nil).Want(202)
		n.Drive("default", i.ID, compute.StateTerminated)
		s.Operator.Do("DELETE", api.NodePath("n1"), nil).Refused(409, "NODE_IN_USE")
		path := "/v1/projects/default/compute/volumes/" + volume
		s.Operator.Do("DELETE", path, nil).Want(204)
		s.Operator.Do("DELETE", api.NodePath("n1"), nil).Want(204)
		s.Operator.Do("GET", path, nil).Want(404)
		var quota api.Quota
		s.Operator.Do("GET", "/v1/projects/default/quota", nil).Want(200).Decode(&quota)
		if quota.Used.DiskBytes != 0 {
			t.Errorf("%+v", quota.Used)
		}
	})
}
