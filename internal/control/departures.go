package control

import (
	"errors"

	"github.com/outcrop-cloud/outcrop/internal/api"
	"github.com/outcrop-cloud/outcrop/internal/compute"
	"github.com/outcrop-cloud/outcrop/internal/store"
)

// desiredDepartures tells a node to remove what it may still have of instances and
// volumes that are its no longer.
func desiredDepartures(tx *store.Tx, nodeID string, out *api.SyncResponse) error {
	all, err := tx.DeparturesOn(nodeID)
	for _, d := range all {
		if d.Volume {
			out.Volumes = append(out.Volumes, api.KeptVolume{ID: d.ID, Gone: true})
			continue
		}
		out.Instances = append(out.Instances, api.DesiredInstance{ID: d.ID, Epoch: d.Epoch, Goal: string(compute.GoalGone), Departed: true,
			Volumes: []api.DesiredVolume{}, Interfaces: []api.DesiredInterface{}})
	}
	return err
}

// instanceDeparted takes a node's word that nothing is left there of an instance
// which is its no longer.
func instanceDeparted(tx *store.Tx, nodeID string, o api.ObservedInstance) (changed bool, err error) {
	d, err := tx.Departure(nodeID, o.ID)
	if errors.Is(err, store.ErrNotFound) || err == nil && (d.Volume || o.Phase != string(compute.PhaseGone) || o.Epoch != d.Epoch) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	return true, tx.Departed(&d)
}
