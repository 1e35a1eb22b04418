package httpsig

import (
	"crypto/sha256"
	"crypto/sha512"
	"encoding/base64"
	"errors"
	"fmt"

	"github.com/dunglas/httpsfv"
)

// DigestAlgorithm is an algorithm of Content-Digest (RFC 9530 section 5).
type DigestAlgorithm uint8

// The algorithms that RFC 9530 lists as active.
const (
	SHA256 DigestAlgorithm = iota
	SHA512
)

// String is the algorithm's key in the field.
func (a DigestAlgorithm) String() string {
	if a == SHA512 {
		return "sha-512"
	}
	return "sha-256"
}

// ContentDigest is the value of Content-Digest for exactly these bytes, such as
// sha-256=:…:. No body is the empty body. Contract row R-22.
func ContentDigest(a DigestAlgorithm, body []byte) string {
	return string(appendDigest(nil, a, body))
}

func appendDigest(dst []byte, a DigestAlgorithm, body []byte) []byte {
	dst = append(append(dst, a.String()...), "=:"...)
	if a == SHA512 {
		sum := sha512.Sum512(body)
		dst = base64.StdEncoding.AppendEncode(dst, sum[:])
	} else {
		sum := sha256.Sum256(body)
		dst = base64.StdEncoding.AppendEncode(dst, sum[:])
	}
	return append(dst, ':')
}

// VerifyDigest checks the lines of Content-Digest against the exact body. The
// digest by need must be there; every other one that this package knows must
// match too, and the rest are ignored as RFC 9530 section 2 allows. The digests
// are no secret, so they are compared plainly.
func VerifyDigest(lines []string, body []byte, need DigestAlgorithm) error {
	var buf [128]byte
	if len(lines) == 1 && lines[0] == string(appendDigest(buf[:0], need, body)) {
		return nil
	}
	if len(lines) == 0 {
		return errors.New("the Content-Digest header is missing; send it for an empty body too")
	}
	dict, err := parseDictionary(lines)
	if err != nil {
		return fmt.Errorf("the Content-Digest header: %w", err)
	}
	if _, ok := dict.Get(need.String()); !ok {
		return fmt.Errorf("the Content-Digest header has no %s digest", need)
	}
	for _, a := range []DigestAlgorithm{SHA256, SHA512} {
		member, ok := dict.Get(a.String())
		if !ok {
			continue
		}
		text, err := httpsfv.Marshal(member)
		if err != nil || a.String()+"="+text != ContentDigest(a, body) {
			return fmt.Errorf("the body does not match its %s digest", a)
		}
	}
	return nil
}
