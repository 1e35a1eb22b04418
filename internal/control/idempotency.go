package control

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"strings"
	"time"

	"github.com/outcrop-cloud/outcrop/internal/fault"
	"github.com/outcrop-cloud/outcrop/internal/store"
)

// rememberFor is how long a create answers the same key with its first answer
// (contract E-10).
const rememberFor = 24 * time.Hour

// maxIdempotencyKey bounds the header.
const maxIdempotencyKey = 255

// once runs a create inside one transaction, or answers again what the same key
// answered before. scope keeps the keys of different creates and projects apart.
func once[In, Out any](ctx context.Context, c *Control, scope, key string, in In, create func(*store.Tx) (Out, error)) (out Out, err error) {
	if len(key) > maxIdempotencyKey || strings.ContainsFunc(key, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return out, fault.InvalidFields([]fault.Field{{Path: "Idempotency-Key", Message: "is 1 to 255 visible ASCII characters; a UUID will do"}})
	}
	request, err := json.Marshal(in)
	if err != nil {
		return out, err
	}
	sum := sha256.Sum256(request)
	err = c.db.Write(ctx, func(tx *store.Tx) error {
		if key == "" {
			out, err = create(tx)
			return err
		}
		done, err := recall(tx, scope, key, sum[:], &out)
		if done || err != nil {
			return err
		}
		if out, err = create(tx); err != nil {
			return err
		}
		answer, err := json.Marshal(out)
		if err != nil {
			return err
		}
		return tx.Remember(scope, key, store.Remembered{Request: sum[:], Answer: string(answer)}, tx.Now.Add(-rememberFor))
	})
	return out, err
}

func recall(tx *store.Tx, scope, key string, request []byte, out any) (done bool, err error) {
	r, err := tx.Recall(scope, key, tx.Now.Add(-rememberFor))
	if errors.Is(err, store.ErrNotFound) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	if !bytes.Equal(r.Request, request) {
		return false, fault.Coded(fault.Conflict, fault.IdempotencyConflict, "this Idempotency-Key came with another request before; use a new key for a new request")
	}
	return true, json.Unmarshal([]byte(r.Answer), out)
}
