package metadata

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"hash"
	"strconv"
	"sync"
	"time"
)

const (
	minTTL = 1
	maxTTL = 21600 // seconds: six hours, EC2's
	minKey = 32
)

// tokens makes and checks session tokens. A token is its own record: expiry, nonce and an HMAC over them and the
// instance's id, so it holds for one instance only and outlives a restart of the agent that keeps the key.
type tokens struct {
	macs sync.Pool // of hash.Hash
}

// A token's bytes: when it ends (Unix nanoseconds), a nonce, the HMAC. As base64url they make 64 characters, no padding.
const (
	expiryLen = 8
	nonceLen  = 8
	claimsLen = expiryLen + nonceLen
	tokenLen  = claimsLen + sha256.Size
	textLen   = tokenLen / 3 * 4
)

func newTokens(key []byte) (*tokens, error) {
	if len(key) < minKey {
		return nil, errors.New("metadata: the token key is shorter than 32 bytes; make one with crypto/rand and keep it")
	}
	key = append([]byte(nil), key...)
	return &tokens{sync.Pool{New: func() any { return hmac.New(sha256.New, key) }}}, nil
}

// issue makes a token of the instance that ends ttl after now.
func (t *tokens) issue(instance string, ttl time.Duration, now time.Time) string {
	var b [tokenLen]byte
	binary.BigEndian.PutUint64(b[:], uint64(now.Add(ttl).UnixNano()))
	rand.Read(b[expiryLen:claimsLen])
	t.sum(b[claimsLen:claimsLen], instance, b[:claimsLen])
	return base64.RawURLEncoding.EncodeToString(b[:])
}

// valid tells whether the token is the instance's and has not ended.
func (t *tokens) valid(token, instance string, now time.Time) bool {
	if len(token) != textLen {
		return false
	}
	var text [textLen]byte
	copy(text[:], token)
	var b [tokenLen]byte
	if n, err := base64.RawURLEncoding.Decode(b[:], text[:]); err != nil || n != tokenLen {
		return false
	}
	var want [sha256.Size]byte
	t.sum(want[:0], instance, b[:claimsLen])
	return hmac.Equal(want[:], b[claimsLen:]) && now.UnixNano() < int64(binary.BigEndian.Uint64(b[:]))
}

// sum appends the HMAC. The claims have a fixed length, so what follows them cannot be mistaken for a part of them.
func (t *tokens) sum(to []byte, instance string, claims []byte) {
	h := t.macs.Get().(hash.Hash)
	h.Reset()
	h.Write([]byte("outcrop metadata token 1"))
	h.Write(claims)
	h.Write([]byte(instance))
	h.Sum(to)
	t.macs.Put(h)
}

// parseTTL reads the seconds of a token request: digits only, 1 to 21600.
func parseTTL(s string) (int, bool) {
	if len(s) == 0 || len(s) > 5 {
		return 0, false
	}
	for _, c := range []byte(s) {
		if c < '0' || c > '9' {
			return 0, false
		}
	}
	n, err := strconv.Atoi(s)
	return n, err == nil && n >= minTTL && n <= maxTTL
}
