package store

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"time"
)

// PutBlob stores bytes once per content, counts one more reference and returns
// the hex sha256 (contract U-04).
func (tx *Tx) PutBlob(b []byte) (string, error) {
	sum := sha256.Sum256(b)
	hash := hex.EncodeToString(sum[:])
	_, err := tx.exec(`INSERT INTO blobs (sha256, bytes, refs) VALUES ($1, $2, 1) ON CONFLICT (sha256) DO UPDATE SET refs = blobs.refs + 1`, hash, b)
	return hash, err
}

// DropBlob takes one reference back; a blob without any is gone. An empty hash
// is none.
func (tx *Tx) DropBlob(hash string) error {
	if hash == "" {
		return nil
	}
	if err := tx.must(fmt.Errorf("blob %s is referenced but not there", hash), `UPDATE blobs SET refs = refs - 1 WHERE sha256 = $1`, hash); err != nil {
		return err
	}
	_, err := tx.exec(`DELETE FROM blobs WHERE sha256 = $1 AND refs <= 0`, hash)
	return err
}

// Blob reads the bytes of a blob; ErrNotFound.
func (tx *Tx) Blob(hash string) (b []byte, err error) {
	return b, tx.get(`SELECT bytes FROM blobs WHERE sha256 = $1`, []any{hash}, &b)
}

// BlobRefs reads every blob's reference count, by hash: for the audit.
func (tx *Tx) BlobRefs() (map[string]int64, error) {
	return tx.counts(`SELECT sha256, refs FROM blobs`)
}

// BlobUses counts the instances that name each blob: what the counts must be.
func (tx *Tx) BlobUses() (map[string]int64, error) {
	return tx.counts(`SELECT user_data_hash, COUNT(*) FROM instances WHERE user_data_hash <> '' GROUP BY user_data_hash`)
}

func (tx *Tx) counts(q string) (map[string]int64, error) {
	out := map[string]int64{}
	err := tx.each(q, nil, func(scan scanFunc) error {
		var key string
		var n int64
		err := scan(&key, &n)
		out[key] = n
		return err
	})
	return out, err
}

// BlobForNode reads a blob that an instance placed on the node names; ErrNotFound
// for every other (contract N-24).
func (tx *Tx) BlobForNode(nodeID, hash string) (b []byte, err error) {
	return b, tx.get(`SELECT b.bytes FROM blobs b WHERE b.sha256 = $1 AND EXISTS
		(SELECT 1 FROM instances i WHERE i.user_data_hash = b.sha256 AND i.node_id = $2 AND i.node_id <> '')`, []any{hash, nodeID}, &b)
}

// Remembered is the answer to an earlier create with the same Idempotency-Key.
type Remembered struct {
	Request []byte // sha256 of the request
	Answer  string // JSON
}

// Remember writes the first answer to a create (contract E-10), in place of one from
// before old, which is too old to count. Where another server has answered meanwhile, the
// transaction is run again, and finds that answer.
func (tx *Tx) Remember(scope, key string, r Remembered, old time.Time) error {
	return tx.must(errCrossed, `INSERT INTO idempotency (scope, name, request, answer, created_at) VALUES ($1, $2, $3, $4, $5)
		ON CONFLICT (scope, name) DO UPDATE SET request = excluded.request, answer = excluded.answer, created_at = excluded.created_at
		WHERE idempotency.created_at < $6`, scope, key, r.Request, r.Answer, micros(tx.Now), micros(old))
}

// Recall reads what an earlier create answered, not older than since; ErrNotFound.
func (tx *Tx) Recall(scope, key string, since time.Time) (r Remembered, err error) {
	return r, tx.get(`SELECT request, answer FROM idempotency WHERE scope = $1 AND name = $2 AND created_at >= $3`,
		[]any{scope, key, micros(since)}, &r.Request, &r.Answer)
}

// ForgetAnswers removes remembered answers older than t.
func (tx *Tx) ForgetAnswers(t time.Time) (int64, error) {
	return tx.exec(`DELETE FROM idempotency WHERE created_at < $1`, micros(t))
}
