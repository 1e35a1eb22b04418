package gateway

import (
	"context"
	"encoding/base64"
	"net/url"

	"github.com/outcrop-cloud/outcrop/internal/api"
	"github.com/outcrop-cloud/outcrop/internal/fleet"
	"github.com/outcrop-cloud/outcrop/internal/store"
)

// madeKey is what a create remembers for its Idempotency-Key: enough to make the
// same secret again with the pepper, and not without it.
type madeKey struct {
	Key  api.APIKey
	Salt [32]byte
}

// CreateKey makes a key of the caller's app and answers with its secret, the only
// time (contract R-25). idempotency is the Idempotency-Key, or empty.
func (g *Gateway) CreateKey(ctx context.Context, who Caller, body []byte, idempotency string) (api.NewAPIKey, error) {
	in, err := open(ctx, g, &who, fleet.APIKeyInsert, func() (fleet.NewKey, error) { return fleet.ParseKey(body, g.now()) })
	if err != nil {
		return api.NewAPIKey{}, err
	}
	if who.key != nil {
		if err := who.key.Grant(&in); err != nil {
			return api.NewAPIKey{}, g.refuse(ctx, &who, err)
		}
	}
	made := madeKey{Salt: randomBytes()}
	secret := g.secret(made.Salt)
	k := fleet.Key{ID: fleet.NewID(), AppID: who.appID, Name: in.Name, Prefix: fleet.SecretStart(secret), Permissions: in.Permissions,
		Runner: in.Runner, CreatedBy: who.id(), ExpiresAt: in.ExpiresAt}
	mac := g.keys.MAC("key:" + secret)
	err = g.write(ctx, &who, func(tx *store.Tx) error {
		return once(tx, &who, "api-keys", idempotency, body, &made, func() error {
			k.CreatedAt = tx.Now
			made.Key = keyView(&k)
			return tx.InsertKey(&k, mac[:])
		})
	})
	if err != nil {
		return api.NewAPIKey{}, err
	}
	return api.NewAPIKey{APIKey: made.Key, PlaintextKey: g.secret(made.Salt)}, nil
}

// secret is a key's secret: 32 bytes that are as random as the salt to everybody
// who lacks the pepper.
func (g *Gateway) secret(salt [32]byte) string {
	return fleet.SecretText(g.keys.MAC("secret:" + string(salt[:])))
}

// ListKeys answers a page of the app's keys, oldest first, revoked ones too.
func (g *Gateway) ListKeys(ctx context.Context, who Caller, q url.Values) (api.DataList[api.APIKey], error) {
	p, err := open(ctx, g, &who, fleet.APIKeyRead, func() (listPage, error) { return parsePage(q) })
	if err != nil {
		return api.DataList[api.APIKey]{}, err
	}
	return page(ctx, g, &who, p, func(tx *store.Tx) ([]fleet.Key, int64, error) {
		total, err := tx.CountKeys(who.appID)
		if err != nil {
			return nil, 0, err
		}
		keys, err := tx.Keys(who.appID, p.Limit, p.Offset)
		return keys, total, err
	}, keyView)
}

// RevokeKey ends a key at once, on every server.
func (g *Gateway) RevokeKey(ctx context.Context, who Caller, id string) (out api.APIKey, err error) {
	if err := g.enter(ctx, &who, fleet.APIKeyDelete); err != nil {
		return out, err
	}
	err = g.write(ctx, &who, func(tx *store.Tx) error {
		if err := tx.RevokeKey(who.appID, id); err != nil {
			return notFound(err, "there is no API key %q in this app; list them with: outcrop key list", id)
		}
		k, err := tx.Key(who.appID, id)
		out = keyView(&k)
		return err
	})
	return out, err
}

func keyView(k *fleet.Key) api.APIKey {
	v := api.APIKey{ID: k.ID, AppID: k.AppID, Name: k.Name, KeyPrefix: k.Prefix, Permissions: make([]string, len(k.Permissions)), CreatedBy: k.CreatedBy,
		CreatedAt: k.CreatedAt, ExpiresAt: optional(k.ExpiresAt), LastUsedAt: optional(k.LastUsedAt), RevokedAt: optional(k.RevokedAt)}
	for i, p := range k.Permissions {
		v.Permissions[i] = string(p)
	}
	if k.Runner != nil {
		v.Runner = &api.RunnerKey{Host: k.Runner.Host, PublicKey: base64.StdEncoding.EncodeToString(k.Runner.PublicKey)}
	}
	return v
}
