package store

import "time"

// Departure is what a node may still have of an instance, or of a volume, that is
// its no longer: moved away, or ended while nobody heard of the node.
type Departure struct {
	NodeID string
	ID     string // of the instance or volume
	Volume bool
	// Epoch of an instance is above that of all it was ever told there, so that a VM
	// which still runs is taken down.
	Epoch int64
	Since time.Time
}

const departureSelect = `SELECT node_id, id, volume, epoch, since FROM departures `

func scanDeparture(scan scanFunc) (d Departure, err error) {
	var since int64
	err = scan(&d.NodeID, &d.ID, &d.Volume, &d.Epoch, &since)
	d.Since = fromMicros(since)
	return d, err
}

// Depart lets the node be told to remove what is left of an instance or volume.
func (tx *Tx) Depart(d *Departure) error {
	if _, err := tx.exec(`INSERT INTO departures (node_id, id, volume, epoch, since) VALUES ($1, $2, $3, $4, $5)
		ON CONFLICT (node_id, id) DO UPDATE SET epoch = excluded.epoch`, d.NodeID, d.ID, d.Volume, d.Epoch, micros(tx.Now)); err != nil {
		return err
	}
	return tx.TouchNode(d.NodeID)
}

// DeparturesOn reads what the node is to remove.
func (tx *Tx) DeparturesOn(nodeID string) ([]Departure, error) {
	return list(tx, departureSelect+`WHERE node_id = $1 ORDER BY id`, []any{nodeID}, scanDeparture)
}

// Departure reads one; ErrNotFound.
func (tx *Tx) Departure(nodeID, id string) (Departure, error) {
	return one(tx, departureSelect+`WHERE node_id = $1 AND id = $2`, []any{nodeID, id}, scanDeparture)
}

// Departed notes that nothing of it is left on the node.
func (tx *Tx) Departed(d *Departure) error {
	if _, err := tx.exec(`DELETE FROM departures WHERE node_id = $1 AND id = $2`, d.NodeID, d.ID); err != nil {
		return err
	}
	return tx.TouchNode(d.NodeID)
}
