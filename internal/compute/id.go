package compute

import (
	"crypto/rand"
	"strings"
)

// Kinds of generated ids (contract U-20).
const (
	instancePrefix = "i-"
	VolumePrefix   = "vol-"
	ImagePrefix    = "img-"
	NICPrefix      = "eni-"
	SubnetPrefix   = "subnet-"
	VPCPrefix      = "vpc-"
	SnapshotPrefix = "snap-"
	GroupPrefix    = "pg-"
	MovePrefix     = "mv-"
)

const (
	base62 = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
	base32 = "abcdefghijklmnopqrstuvwxyz234567"
)

// NewInstanceID returns "i-" and 9 base62 characters (53 bits), unguessable.
// It becomes a DNS name, so the store refuses one that equals another under
// case folding, and the caller draws again.
func NewInstanceID() string { return instancePrefix + randomText(base62, 9) }

// NewID returns prefix and 10 lower-case base32 characters (50 bits).
func NewID(prefix string) string { return prefix + randomText(base32, 10) }

func randomText(alphabet string, n int) string {
	var b strings.Builder
	// Bytes beyond the last whole multiple of the alphabet would favour its
	// first letters, so they are drawn again.
	limit := 256 - 256%len(alphabet)
	buf := make([]byte, 2*n)
	for b.Len() < n {
		_, _ = rand.Read(buf) // never fails since Go 1.24
		for _, c := range buf {
			if int(c) < limit && b.Len() < n {
				b.WriteByte(alphabet[int(c)%len(alphabet)])
			}
		}
	}
	return b.String()
}

// ValidInstanceID reports whether id has the form of an instance id.
func ValidInstanceID(id string) bool {
	rest, ok := strings.CutPrefix(id, instancePrefix)
	return ok && len(rest) == 9 && strings.Trim(rest, base62) == ""
}

// ValidNodeID reports whether id may name a node: 1–63 of A–Z a–z 0–9 . _ -,
// the first alphanumeric (contract N-02).
func ValidNodeID(id string) bool { return validName(id, 63, base62, base62+"._-") }

// ValidProjectID reports whether id may name a project: 1–63 of a–z 0–9 -, the
// first alphanumeric.
func ValidProjectID(id string) bool {
	const lower = "0123456789abcdefghijklmnopqrstuvwxyz"
	return validName(id, 63, lower, lower+"-")
}

func validName(id string, max int, first, rest string) bool {
	return id != "" && len(id) <= max && strings.ContainsRune(first, rune(id[0])) && strings.Trim(id, rest) == ""
}
