package compute

import (
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/base64"
	"time"
)

// JoinState is where the join of a machine stands.
type JoinState string

const (
	JoinPending  JoinState = "pending"  // an operator is to approve it
	JoinAdmitted JoinState = "admitted" // the key is the node's
	JoinRefused  JoinState = "refused"  // an operator has refused it
)

// Rules of joining.
const (
	// JoinTokenLife is how long a join token lives where nothing is said, JoinTokenMost
	// how long at most.
	JoinTokenLife = time.Hour
	JoinTokenMost = 24 * time.Hour
	// MaxJoinUses bounds how many machines one join token admits.
	MaxJoinUses = 1000
	// JoinWaits is how long a join waits for approval, and how long a refusal is told.
	JoinWaits = 24 * time.Hour
	// MaxPendingJoins bounds how many may wait at one time.
	MaxPendingJoins = 1000
	// CredentialLife is how long a node's credential lives; the node renews it when
	// half of that is over.
	CredentialLife = 24 * time.Hour
	// JoinKept is how long the key of a node that never reported is kept after it was
	// last heard of.
	JoinKept = 7 * 24 * time.Hour
)

// NodeJoin is a machine's claim to a node id by a key of its own (contract N-21,
// N-22). One id has at most one.
type NodeJoin struct {
	NodeID    string
	Key       ed25519.PublicKey
	State     JoinState
	TokenID   string // of the join token
	MachineID string
	BootID    string
	Hostname  string
	// NodeRole and NodeZone, where set, are all that the node may claim.
	NodeRole  string
	NodeZone  string
	CreatedAt time.Time
	SeenAt    time.Time
	ExpiresAt time.Time // zero for one that was admitted
}

// KeyID is the fingerprint by which a node's key is known: "SHA256:" and the
// base64 of the digest of its 32 bytes.
func KeyID(key ed25519.PublicKey) string {
	sum := sha256.Sum256(key)
	return keyIDPrefix + base64.RawStdEncoding.EncodeToString(sum[:])
}

const keyIDPrefix = "SHA256:"

// ValidKeyID reports whether text may be a fingerprint.
func ValidKeyID(text string) bool {
	if len(text) != len(keyIDPrefix)+43 || text[:len(keyIDPrefix)] != keyIDPrefix {
		return false
	}
	raw, err := base64.RawStdEncoding.Strict().DecodeString(text[len(keyIDPrefix):])
	return err == nil && len(raw) == sha256.Size
}

// Stands reports whether the claim still counts at now.
func (j *NodeJoin) Stands(now time.Time) bool {
	return j.ExpiresAt.IsZero() || now.Before(j.ExpiresAt)
}

// Claimant is the machine of the join.
func (j *NodeJoin) Claimant() Claimant {
	return Claimant{Hostname: j.Hostname, MachineID: j.MachineID, BootID: j.BootID, Key: KeyID(j.Key), SeenAt: j.SeenAt}
}
