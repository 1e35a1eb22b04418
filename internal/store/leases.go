package store

import (
	"errors"
	"time"
)

// leaseAhead is how much longer than this server's a lease of another one may be, as
// their clocks differ. One that is longer was taken while somebody's clock was wrong,
// and would keep everybody from the loop until then.
const leaseAhead = 10 * time.Minute

// Lead takes or renews the lease of a loop that only one server may run, and
// reports whether holder has it until then.
func (tx *Tx) Lead(name, holder string, until time.Time) (bool, error) {
	err := tx.must(ErrStale, `INSERT INTO leases (name, holder, until) VALUES ($1, $2, $3)
		ON CONFLICT (name) DO UPDATE SET holder = excluded.holder, until = excluded.until WHERE leases.holder = excluded.holder OR leases.until < $4 OR leases.until > $5`,
		name, holder, micros(until), micros(tx.Now), micros(until.Add(leaseAhead)))
	if errors.Is(err, ErrStale) {
		return false, nil
	}
	return err == nil, err
}

// SyncedBoot is the boot id of the node's last sync whose consequences were drawn.
func (tx *Tx) SyncedBoot(nodeID string) (id string, err error) {
	return id, tx.get(`SELECT synced_boot FROM node_liveness WHERE node_id = $1`, []any{nodeID}, &id)
}

// SetSyncedBoot notes that the consequences of a node's boot were drawn.
func (tx *Tx) SetSyncedBoot(nodeID, bootID string) error {
	return tx.must(ErrNotFound, `UPDATE node_liveness SET synced_boot = $2 WHERE node_id = $1`, nodeID, bootID)
}
