// Package bearer turns the secrets that callers show into keyed hashes, and
// remembers what they stand for and when they were used. Both APIs' doors are built
// on it: the compute API's tokens and the gateway's keys.
package bearer

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"
	"os"
	"path/filepath"
	"sync"
	"time"
)

// MAC is the keyed hash of a secret, all that is stored of it.
type MAC [sha256.Size]byte

// maxCached bounds what is remembered; when it is reached, all is read anew.
const maxCached = 1 << 17

// Keyring knows the secrets of one kind. T is what a secret stands for. It is safe
// for concurrent use.
type Keyring[T any] struct {
	macs sync.Pool

	mu    sync.RWMutex
	cache map[MAC]entry[T]

	usedMu sync.Mutex
	used   map[string]time.Time
}

type entry[T any] struct {
	value      T
	generation int64
}

// Open reads the key of the hashes, and makes it where it is not there. It is a
// file of its own: a copy of the database alone does not let anybody test guesses
// (contract R-25). what names the secrets in errors.
func Open[T any](file, what string) (*Keyring[T], error) {
	key, err := os.ReadFile(file)
	if errors.Is(err, os.ErrNotExist) {
		key, err = makeKey(file)
	}
	if err != nil {
		return nil, fmt.Errorf("the key of the %s: %w", what, err)
	}
	if len(key) != 32 {
		return nil, fmt.Errorf("%s has %d bytes, not 32: restore it from the backup (without it all %s are void)", file, len(key), what)
	}
	k := &Keyring[T]{cache: map[MAC]entry[T]{}, used: map[string]time.Time{}}
	k.macs.New = func() any { return hmac.New(sha256.New, key) }
	return k, nil
}

// makeKey makes the 0600 file in one step; when another process was first, its
// bytes count.
func makeKey(file string) ([]byte, error) {
	if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
		return nil, err
	}
	key := make([]byte, 32)
	_, _ = rand.Read(key)
	tmp, err := os.CreateTemp(filepath.Dir(file), ".new-*")
	if err != nil {
		return nil, err
	}
	defer os.Remove(tmp.Name())
	_, err = tmp.Write(key)
	if err := errors.Join(err, tmp.Sync(), tmp.Close()); err != nil {
		return nil, err
	}
	if err := os.Link(tmp.Name(), file); errors.Is(err, os.ErrExist) {
		return os.ReadFile(file)
	} else if err != nil {
		return nil, err
	}
	return key, nil
}

// MAC hashes a text. Texts of different kinds begin differently, so that the hash
// of one is never that of another.
func (k *Keyring[T]) MAC(text string) (out MAC) {
	h := k.macs.Get().(hash.Hash)
	h.Reset()
	_, _ = h.Write([]byte(text))
	h.Sum(out[:0])
	k.macs.Put(h)
	return out
}

// Cached is what a secret stood for when it was last read. It is current when that
// was under this generation of the store's, else it has to be read again.
func (k *Keyring[T]) Cached(mac MAC, generation int64) (v T, known, current bool) {
	k.mu.RLock()
	defer k.mu.RUnlock()
	e, known := k.cache[mac]
	return e.value, known, known && e.generation == generation
}

// Remember keeps what was read. The generation is the one from before the reading,
// so that a change in between makes it be read again. Do not remember that a secret
// is unknown: guesses must not fill memory.
func (k *Keyring[T]) Remember(mac MAC, generation int64, v T) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if len(k.cache) >= maxCached {
		clear(k.cache)
	}
	k.cache[mac] = entry[T]{v, generation}
}

// Used notes when a secret was used, by its id.
func (k *Keyring[T]) Used(id string, now time.Time) {
	k.usedMu.Lock()
	k.used[id] = now
	k.usedMu.Unlock()
}

// TakeUsed is what was used since it was last taken. A loop writes it once a minute,
// so that a heartbeat does not cost a second write.
func (k *Keyring[T]) TakeUsed() map[string]time.Time {
	k.usedMu.Lock()
	defer k.usedMu.Unlock()
	out := k.used
	k.used = make(map[string]time.Time, len(out))
	return out
}
