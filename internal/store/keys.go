package store

import (
	"crypto/ed25519"
	"strings"
	"time"

	"github.com/outcrop-cloud/outcrop/internal/fleet"
)

const keySelect = `SELECT id, app_id, name, prefix, permissions, runner_host, public_key, created_by, created_at, expires_at, last_used_at, revoked_at FROM api_keys `

func scanKey(scan scanFunc) (k fleet.Key, err error) {
	var permissions, host string
	var public []byte
	var created, expires, used, revoked int64
	err = scan(&k.ID, &k.AppID, &k.Name, &k.Prefix, &permissions, &host, &public, &k.CreatedBy, &created, &expires, &used, &revoked)
	for p := range strings.FieldsSeq(permissions) {
		k.Permissions = append(k.Permissions, fleet.Permission(p))
	}
	if public != nil {
		k.Runner = &fleet.RunnerKey{Host: host, PublicKey: ed25519.PublicKey(public)}
	}
	k.CreatedAt, k.ExpiresAt, k.LastUsedAt, k.RevokedAt = fromMicros(created), fromMicros(expires), fromMicros(used), fromMicros(revoked)
	return k, err
}

// KeyByMAC reads the key whose secret has the keyed hash; ErrNotFound.
func (tx *Tx) KeyByMAC(mac []byte) (fleet.Key, error) {
	return one(tx, keySelect+`WHERE mac = $1`, []any{mac}, scanKey)
}

// Key reads one key of an app; ErrNotFound for another app's.
func (tx *Tx) Key(appID, id string) (fleet.Key, error) {
	return one(tx, keySelect+`WHERE id = $1 AND app_id = $2`, []any{id, appID}, scanKey)
}

// Keys reads a page of an app's keys, oldest first.
func (tx *Tx) Keys(appID string, limit, offset int64) ([]fleet.Key, error) {
	return list(tx, keySelect+`WHERE app_id = $1 ORDER BY created_at, id LIMIT $2 OFFSET $3`, []any{appID, limit, offset}, scanKey)
}

// CountKeys is how many keys an app has, revoked ones too.
func (tx *Tx) CountKeys(appID string) (n int64, err error) {
	return n, tx.get(`SELECT COUNT(*) FROM api_keys WHERE app_id = $1`, []any{appID}, &n)
}

// InsertKey writes a new key. Nobody remembers that a key is unknown, so a new
// one does not make the servers read all others anew.
func (tx *Tx) InsertKey(k *fleet.Key, mac []byte) error {
	permissions := make([]string, len(k.Permissions))
	for i, p := range k.Permissions {
		permissions[i] = string(p)
	}
	var host string
	var public []byte
	if k.Runner != nil {
		host, public = k.Runner.Host, k.Runner.PublicKey
	}
	_, err := tx.exec(`INSERT INTO api_keys (id, app_id, mac, name, prefix, permissions, runner_host, public_key, created_by, created_at, expires_at, last_used_at, revoked_at)
		VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, 0, 0)`,
		k.ID, k.AppID, mac, k.Name, k.Prefix, strings.Join(permissions, " "), host, public, k.CreatedBy, micros(k.CreatedAt), micros(k.ExpiresAt))
	return err
}

// RevokeKey ends a key from this moment on; revoking twice keeps the first
// moment. ErrNotFound for another app's.
func (tx *Tx) RevokeKey(appID, id string) error {
	if err := tx.must(ErrNotFound, `UPDATE api_keys SET revoked_at = CASE WHEN revoked_at = 0 THEN $3 ELSE revoked_at END WHERE id = $1 AND app_id = $2`, id, appID, micros(tx.Now)); err != nil {
		return err
	}
	return tx.bumpAuth()
}

// TouchKeys writes when keys were last used.
func (tx *Tx) TouchKeys(used map[string]time.Time) error {
	for id, at := range used {
		if _, err := tx.exec(`UPDATE api_keys SET last_used_at = $2 WHERE id = $1 AND last_used_at < $2`, id, micros(at)); err != nil {
			return err
		}
	}
	return nil
}
