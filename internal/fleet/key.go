package fleet

import (
	"crypto/ed25519"
	"encoding/base64"
	"slices"
	"strings"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/outcrop-cloud/outcrop/internal/fault"
	"github.com/outcrop-cloud/outcrop/internal/httpsig"
)

// Permission is one thing that a key may do, noun.verb.
type Permission string

const (
	HostsIngest  Permission = "hosts.ingest"
	HostsRead    Permission = "hosts.read"
	HostsUpdate  Permission = "hosts.update" // the update setting
	HostsDelete  Permission = "hosts.delete"
	APIKeyInsert Permission = "api_key.insert"
	APIKeyRead   Permission = "api_key.read"
	APIKeyDelete Permission = "api_key.delete" // revoke
	AppRead      Permission = "app.read"
	AppUpdate    Permission = "app.update"
	WorkInsert   Permission = "work.insert"
	WorkRead     Permission = "work.read"
	WorkCancel   Permission = "work.cancel"
	WorkClaim    Permission = "work.claim" // claim, renew, complete, fail, append logs
)

// Permissions are all that a key can hold.
var Permissions = []Permission{
	HostsIngest, HostsRead, HostsUpdate, HostsDelete, APIKeyInsert, APIKeyRead, APIKeyDelete,
	AppRead, AppUpdate, WorkInsert, WorkRead, WorkCancel, WorkClaim,
}

// Key is an API key. Its secret is known to its holder only (contract R-25).
type Key struct {
	ID          string // UUID; the keyid of its signatures
	AppID       string
	Name        string
	Prefix      string // the first characters of the secret, to tell keys apart
	Permissions []Permission
	Runner      *RunnerKey // nil for a plain key
	CreatedBy   string     // id of the key or token that made it
	CreatedAt   time.Time
	ExpiresAt   time.Time // zero: never
	LastUsedAt  time.Time
	RevokedAt   time.Time
}

// RunnerKey binds a key to one host and to the key that its requests must be
// signed with (contract R-20).
type RunnerKey struct {
	Host      string
	PublicKey ed25519.PublicKey
}

// ValidAt reports whether the key may be used.
func (k *Key) ValidAt(now time.Time) bool {
	return k.RevokedAt.IsZero() && (k.ExpiresAt.IsZero() || now.Before(k.ExpiresAt))
}

// Has reports whether the key holds the permission.
func (k *Key) Has(p Permission) bool { return slices.Contains(k.Permissions, p) }

// SecretPrefix makes a key easy to find by secret scanners.
const SecretPrefix = "sk_outerlayer_"

// SecretText is a key's secret as its holder has it.
func SecretText(random [32]byte) string {
	return SecretPrefix + base64.RawURLEncoding.EncodeToString(random[:])
}

// SecretStart is the part of a secret that may be shown.
func SecretStart(secret string) string { return secret[:len(SecretPrefix)+6] }

// NewKey is what the body of POST /v1/api-keys asks for.
type NewKey struct {
	Name        string
	Permissions []Permission
	ExpiresAt   time.Time
	Runner      *RunnerKey
}

// ParseKey reads the body of POST /v1/api-keys at now (contract R-25).
func ParseKey(body []byte, now time.Time) (NewKey, error) {
	var k NewKey
	o, p := parse(body)
	k.Name, _ = o.name("name", maxName, required)
	o.list("permissions", 1, len(Permissions), required, func(path string, v jsontext.Value) {
		text, _ := unquote(v)
		switch perm := Permission(text); {
		case !slices.Contains(Permissions, perm):
			p.add(path, "must be one of %v", Permissions)
		case !slices.Contains(k.Permissions, perm):
			k.Permissions = append(k.Permissions, perm)
		}
	})
	if v, there := o.take("expires_at", optional); there && v.Kind() != 'n' {
		t, ok := o.moment("expires_at", optional)
		if ok && !t.After(now) {
			p.add("expires_at", "must be in the future")
		}
		k.ExpiresAt = t
	}
	if v, there := o.take("runner", optional); there && v.Kind() != 'n' {
		if r, ok := o.object("runner", optional); ok {
			k.Runner = r.runnerKey()
		}
		if slices.Contains(k.Permissions, APIKeyInsert) {
			p.add("permissions", "a runner key cannot hold %s: the keys that it made would need no signature", APIKeyInsert)
		}
	}
	o.noOthers()
	return k, p.err()
}

func (o *object) runnerKey() *RunnerKey {
	r := &RunnerKey{}
	r.Host, _ = o.name("host", 255, required)
	if text, ok := o.text("public_key", 1, 255, required); ok {
		var err error
		if r.PublicKey, err = httpsig.ParsePublicKey(text); err != nil {
			o.p.add(o.path+"public_key", "%s", err)
		}
	}
	o.noOthers()
	return r
}

// Grant answers nil where a key may make the new one: it can never give what it
// lacks, and not for longer than it lasts itself (contract R-25).
func (k *Key) Grant(n *NewKey) error {
	var lacks []string
	for _, p := range n.Permissions {
		if !k.Has(p) {
			lacks = append(lacks, string(p))
		}
	}
	if len(lacks) > 0 {
		return fault.Coded(fault.Forbidden, CodeForbidden, "a key cannot grant what it lacks itself: %s", strings.Join(lacks, ", "))
	}
	if !k.ExpiresAt.IsZero() && (n.ExpiresAt.IsZero() || n.ExpiresAt.After(k.ExpiresAt)) {
		return fault.Coded(fault.Forbidden, CodeForbidden, "a key cannot grant more time than it has itself: set expires_at to %s at the latest", k.ExpiresAt.Format(time.RFC3339))
	}
	return nil
}

// CodeForbidden is the code of every 403 of the gateway (contract E-07).
const CodeForbidden = "forbidden"

// Lacks is the refusal of a caller without the permission, which it names.
func Lacks(p Permission) error {
	return fault.Coded(fault.Forbidden, CodeForbidden, "the key lacks the permission %s", p)
}
