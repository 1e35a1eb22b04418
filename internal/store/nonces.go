package store

import (
	"errors"
	"time"
)

// ErrReplayed: the nonce belongs to a request that was accepted before.
var ErrReplayed = errors.New("store: the nonce was used before")

// Nonce is the nonce of a signed request.
type Nonce struct {
	KeyID, Nonce string
	// KeepUntil, in whole seconds, is when it may be forgotten.
	KeepUntil time.Time
}

// nonceUpsert takes a row that is past its time as if it were not there.
const nonceUpsert = ` ON CONFLICT (key_id, nonce) DO UPDATE SET keep_until = excluded.keep_until WHERE nonces.keep_until <= $1 RETURNING key_id, nonce`

// InsertNonce takes the nonce; ErrReplayed when it was taken. It stands and falls
// with the transaction, so a request that is refused burns nothing (contract R-24).
func (tx *Tx) InsertNonce(n *Nonce) error {
	var key, nonce string
	err := tx.get(`INSERT INTO nonces (key_id, nonce, keep_until) VALUES ($2, $3, $4)`+nonceUpsert,
		[]any{tx.Now.Unix(), n.KeyID, n.Nonce, n.KeepUntil.Unix()}, &key, &nonce)
	if errors.Is(err, ErrNotFound) {
		return ErrReplayed
	}
	return err
}

// NonceTaken reports whether the nonce belongs to an accepted request.
func (tx *Tx) NonceTaken(n *Nonce) (bool, error) {
	var until int64
	err := tx.get(`SELECT keep_until FROM nonces WHERE key_id = $1 AND nonce = $2 AND keep_until > $3`, []any{n.KeyID, n.Nonce, tx.Now.Unix()}, &until)
	if errors.Is(err, ErrNotFound) {
		return false, nil
	}
	return err == nil, err
}

// ForgetNonces removes up to limit nonces that are past their time and returns
// how many.
func (tx *Tx) ForgetNonces(limit int64) (int64, error) {
	return tx.exec(`DELETE FROM nonces WHERE (key_id, nonce) IN (SELECT key_id, nonce FROM nonces WHERE keep_until <= $1 ORDER BY keep_until LIMIT $2)`,
		tx.Now.Unix(), limit)
}
