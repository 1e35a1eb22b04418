package store

import (
	"crypto/ed25519"
	"errors"
	"time"

	"github.com/outcrop-cloud/outcrop/internal/compute"
)

const joinSelect = `SELECT node_id, public_key, state, token_id, machine_id, boot_id, hostname, node_role, node_zone, created_at, seen_at, expires_at FROM node_joins `

func scanJoin(scan scanFunc) (j compute.NodeJoin, err error) {
	var key []byte
	var created, seen, expires int64
	err = scan(&j.NodeID, &key, &j.State, &j.TokenID, &j.MachineID, &j.BootID, &j.Hostname, &j.NodeRole, &j.NodeZone, &created, &seen, &expires)
	j.Key = ed25519.PublicKey(key)
	j.CreatedAt, j.SeenAt, j.ExpiresAt = fromMicros(created), fromMicros(seen), fromMicros(expires)
	return j, err
}

// NodeJoin reads the join of a node id, whatever its state; ErrNotFound.
func (tx *Tx) NodeJoin(nodeID string) (compute.NodeJoin, error) {
	return one(tx, joinSelect+`WHERE node_id = $1`, []any{nodeID}, scanJoin)
}

// JoinOfKey reads the join of the key with the fingerprint; ErrNotFound.
func (tx *Tx) JoinOfKey(keyID string) (compute.NodeJoin, error) {
	return one(tx, joinSelect+`WHERE key_id = $1`, []any{keyID}, scanJoin)
}

// PendingJoins reads up to limit joins that wait for approval, of node ids after
// the given one, in their order.
func (tx *Tx) PendingJoins(after string, limit int) ([]compute.NodeJoin, error) {
	return list(tx, joinSelect+`WHERE state = 'pending' AND expires_at > $1 AND node_id > $2 ORDER BY node_id LIMIT $3`, []any{micros(tx.Now), after, limit}, scanJoin)
}

// CountPendingJoins is how many wait for approval.
func (tx *Tx) CountPendingJoins() (n int64, err error) {
	return n, tx.get(`SELECT COUNT(*) FROM node_joins WHERE state = 'pending' AND expires_at > $1`, []any{micros(tx.Now)}, &n)
}

// InsertJoin writes a join of a node id that has none; ErrStale where another server
// has just written one for it, or for its key.
func (tx *Tx) InsertJoin(j *compute.NodeJoin) error {
	return tx.must(ErrStale, `INSERT INTO node_joins (node_id, key_id, public_key, state, token_id, machine_id, boot_id, hostname, node_role, node_zone, created_at, seen_at, expires_at)
		VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13) ON CONFLICT DO NOTHING`,
		j.NodeID, compute.KeyID(j.Key), []byte(j.Key), string(j.State), j.TokenID, j.MachineID, j.BootID, j.Hostname, j.NodeRole, j.NodeZone,
		micros(j.CreatedAt), micros(j.SeenAt), micros(j.ExpiresAt))
}

// UpdateJoin writes what can change of a join that was read in the state before;
// ErrStale where it is another one by now.
func (tx *Tx) UpdateJoin(j *compute.NodeJoin, before compute.JoinState) error {
	return tx.must(ErrStale, `UPDATE node_joins SET state = $4, machine_id = $5, boot_id = $6, hostname = $7, seen_at = $8, expires_at = $9
		WHERE node_id = $1 AND key_id = $2 AND state = $3`,
		j.NodeID, compute.KeyID(j.Key), string(before), string(j.State), j.MachineID, j.BootID, j.Hostname, micros(j.SeenAt), micros(j.ExpiresAt))
}

// DropJoin removes a join that was not admitted; ErrStale where it was, meanwhile.
func (tx *Tx) DropJoin(nodeID string) error {
	return tx.must(ErrStale, `DELETE FROM node_joins WHERE node_id = $1 AND state <> 'admitted'`, nodeID)
}

// DeleteJoin forgets the join of a node id, whatever its state, and reports whether
// there was one.
func (tx *Tx) DeleteJoin(nodeID string) (bool, error) {
	n, err := tx.exec(`DELETE FROM node_joins WHERE node_id = $1`, nodeID)
	return n > 0, err
}

// ForgetJoins removes joins that nobody is waiting for any more: pending and
// refused ones from before over, and the keys of nodes that never reported and
// were last heard of before silent.
func (tx *Tx) ForgetJoins(over, silent time.Time) (int64, error) {
	return tx.exec(`DELETE FROM node_joins WHERE state <> 'admitted' AND expires_at <= $1
		OR state = 'admitted' AND seen_at <= $2 AND NOT EXISTS (SELECT 1 FROM nodes n WHERE n.id = node_joins.node_id)`, micros(over), micros(silent))
}

// NodeBoot is the boot of a node's last heartbeat; ErrNotFound.
func (tx *Tx) NodeBoot(nodeID string) (boot string, err error) {
	return boot, tx.get(`SELECT boot_id FROM node_liveness WHERE node_id = $1`, []any{nodeID}, &boot)
}

// UseJoinToken takes one of a join token's uses; ErrNotFound when none is left.
func (tx *Tx) UseJoinToken(id string) error {
	return tx.must(ErrNotFound, `UPDATE tokens SET uses_left = uses_left - 1 WHERE id = $1 AND uses_left > 0`, id)
}

// InsertCredential writes a new credential of a node and drops all but the last of
// those that it had, so that asking again and again does not fill the table. Nobody
// remembers a token that was not there, so this alone is no news to other servers.
func (tx *Tx) InsertCredential(t *Token) error {
	if _, err := tx.exec(`DELETE FROM tokens WHERE node_id = $1 AND key_id <> '' AND expires_at <= $2`, t.NodeID, micros(tx.Now)); err != nil {
		return err
	}
	dropped, err := tx.exec(`DELETE FROM tokens WHERE node_id = $1 AND key_id <> '' AND id NOT IN
		(SELECT id FROM tokens WHERE node_id = $1 AND key_id <> '' ORDER BY created_at DESC, id LIMIT 1)`, t.NodeID)
	if err != nil {
		return err
	}
	if dropped > 0 {
		err = tx.bumpAuth()
	}
	return errors.Join(err, tx.insertToken(t))
}

// ForgetCredentials removes credentials and join tokens that have ended before the
// moment.
func (tx *Tx) ForgetCredentials(before time.Time) (int64, error) {
	return tx.exec(`DELETE FROM tokens WHERE (key_id <> '' OR role = 'join') AND expires_at > 0 AND expires_at <= $1`, micros(before))
}

// claimant is who sent the beat.
func (b *Beat) claimant() compute.Claimant {
	return compute.Claimant{Hostname: b.Facts.Hostname, MachineID: b.Facts.MachineID, BootID: b.BootID}
}

// bindJoined binds a node that reports for the first time to the machine that
// joined as it, or to that of the beat.
func (tx *Tx) bindJoined(n *compute.Node, b *Beat) error {
	b.Clash, b.Refused = nil, false
	j, err := tx.NodeJoin(n.ID)
	switch {
	case errors.Is(err, ErrNotFound) || err == nil && j.State != compute.JoinAdmitted:
	case err != nil:
		return err
	default:
		n.Identity.MachineID = j.MachineID
	}
	if b.Clash, b.Refused, _ = n.Claim(b.claimant(), tx.Now); b.Refused {
		b.Clash.Holder = j.Claimant()
	}
	return nil
}
