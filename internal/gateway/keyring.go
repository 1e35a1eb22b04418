package gateway

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/outcrop-cloud/outcrop/internal/fleet"
	"github.com/outcrop-cloud/outcrop/internal/store"
)

// PepperFile holds the key of the API keys' hashes. It is a file of its own: a
// copy of the database alone does not let anybody test guesses (contract R-25).
const PepperFile = "gateway.key"

// maxCached bounds the keys in memory; when it is reached they are read anew.
const maxCached = 1 << 17

// cachedKey is a key and its app's update setting as they were at a generation
// of the store's.
type cachedKey struct {
	fleet.Key
	update     fleet.UpdateSetting
	generation int64
}

// keyring turns secrets into keyed hashes and remembers what they stand for.
type keyring struct {
	pepper []byte

	mu    sync.RWMutex
	cache map[[32]byte]*cachedKey
}

func loadKeyring(dir string) (*keyring, error) {
	file := filepath.Join(dir, PepperFile)
	b, err := os.ReadFile(file)
	if errors.Is(err, os.ErrNotExist) {
		b, err = newPepper(file)
	}
	if err != nil {
		return nil, fmt.Errorf("the key of the API keys: %w", err)
	}
	if len(b) != 32 {
		return nil, fmt.Errorf("%s has %d bytes, not 32: restore it from the backup (without it all API keys are void)", file, len(b))
	}
	return &keyring{pepper: b, cache: map[[32]byte]*cachedKey{}}, nil
}

// newPepper makes the 0600 file in one step; when another process was first, its
// bytes count.
func newPepper(file string) ([]byte, error) {
	if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
		return nil, err
	}
	b := make([]byte, 32)
	_, _ = rand.Read(b)
	tmp, err := os.CreateTemp(filepath.Dir(file), ".new-*")
	if err != nil {
		return nil, err
	}
	defer os.Remove(tmp.Name())
	_, err = tmp.Write(b)
	if err := errors.Join(err, tmp.Sync(), tmp.Close()); err != nil {
		return nil, err
	}
	if err := os.Link(tmp.Name(), file); errors.Is(err, os.ErrExist) {
		return os.ReadFile(file)
	} else if err != nil {
		return nil, err
	}
	return b, nil
}

// mac is the keyed hash of a secret. what keeps hashes of different things apart.
func (k *keyring) mac(what, secret string) (out [32]byte) {
	h := hmac.New(sha256.New, k.pepper)
	_, _ = h.Write([]byte(what))
	_, _ = h.Write([]byte(secret))
	h.Sum(out[:0])
	return out
}

func (k *keyring) cached(mac [32]byte) *cachedKey {
	k.mu.RLock()
	defer k.mu.RUnlock()
	return k.cache[mac]
}

func (k *keyring) remember(mac [32]byte, c *cachedKey) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if len(k.cache) >= maxCached {
		clear(k.cache)
	}
	k.cache[mac] = c
}

// find reads the key of a secret; store.ErrNotFound. A key that was revoked
// before the call, on whatever server, is seen to be. For a secret that is not in
// memory, budget is asked before the database is.
func (g *Gateway) find(ctx context.Context, secret string, budget func() error) (*cachedKey, error) {
	mac := g.keys.mac("key:", secret)
	generation, err := g.db.AuthGeneration(ctx)
	if err != nil {
		return nil, err
	}
	c := g.keys.cached(mac)
	if c != nil && c.generation == generation {
		return c, nil
	}
	if c == nil {
		if err := budget(); err != nil {
			return nil, err
		}
	}
	// Read under the generation from before, so that a change in between makes it
	// be read again. An unknown key is not remembered: guesses must not fill memory.
	c = &cachedKey{generation: generation}
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
		return nil, err
	}
	g.keys.remember(mac, c)
	return c, nil
}

// lastUsed gathers when keys were used; a loop writes it once a minute.
type lastUsed struct {
	mu sync.Mutex
	at map[string]time.Time
}

func newLastUsed() *lastUsed { return &lastUsed{at: map[string]time.Time{}} }

func (l *lastUsed) touch(id string, now time.Time) {
	l.mu.Lock()
	l.at[id] = now
	l.mu.Unlock()
}

func (l *lastUsed) take() map[string]time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	out := l.at
	l.at = make(map[string]time.Time, len(out))
	return out
}
