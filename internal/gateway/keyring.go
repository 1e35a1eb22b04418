package gateway

import (
	"context"

	"github.com/outcrop-cloud/outcrop/internal/fleet"
	"github.com/outcrop-cloud/outcrop/internal/store"
)

// PepperFile holds the key of the API keys' hashes (contract R-25).
const PepperFile = "gateway.key"

// cachedKey is a key and its app's update setting as they were when they were read.
type cachedKey struct {
	fleet.Key
	update fleet.UpdateSetting
}

// find reads the key of a secret; store.ErrNotFound. A key that was revoked
// before the call, on whatever server, is seen to be. For a secret that is not in
// memory, budget is asked before the database is.
func (g *Gateway) find(ctx context.Context, secret string, budget func() error) (*cachedKey, error) {
	mac := g.keys.MAC("key:" + secret)
	generation, err := g.db.AuthGeneration(ctx)
	if err != nil {
		return nil, err
	}
	c, known, current := g.keys.Cached(mac, generation)
	if current {
		return c, nil
	}
	if !known {
		if err := budget(); err != nil {
			return nil, err
		}
	}
	c = &cachedKey{}
	err = g.db.Read(ctx, func(tx *store.Tx) error {
		var err error
		if c.Key, err = tx.KeyByMAC(mac[:]); err != nil {
			return err
		}
		app, err := tx.App(c.AppID)
		c.update = app.Update
		return err
	})
	if err != nil {
		return nil, err // an unknown key is not remembered: guesses must not fill memory
	}
	g.keys.Remember(mac, generation, c)
	return c, nil
}
