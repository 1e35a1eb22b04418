package httpsig

import (
	"crypto/ed25519"
	"crypto/rand"
	"encoding/base64"
	"time"
)

// Sign signs m and returns the 64 bytes of the signature (RFC 9421 section 3.1).
func (in *Input) Sign(m *Message, key ed25519.PrivateKey) ([]byte, error) {
	base, err := in.AppendBase(nil, m)
	if err != nil {
		return nil, err
	}
	return ed25519.Sign(key, base), nil
}

// Signer signs messages by a profile. It may be used by several goroutines when
// Now and Nonce may.
type Signer struct {
	Profile
	Key   ed25519.PrivateKey
	KeyID string
	// Now is the signing clock; correct it when the server says that it is off.
	Now func() time.Time
	// Nonce makes a value that was never used before; nil means 16 random bytes
	// in base64url.
	Nonce func() string
}

// Sign sets Content-Digest, Signature-Input and Signature in m.Header, in place
// of any that are there. Call it again for every attempt to send: each needs its
// own nonce and created. Contract rows.
func (s *Signer) Sign(m *Message, body []byte) error {
	in := Input{
		Components: s.Components,
		Created:    s.Now().Unix(),
		Nonce:      s.nonce(),
		KeyID:      s.KeyID,
		Alg:        algEd25519,
	}
	if m.Header == nil {
		m.Header = map[string][]string{}
	}
	m.Header[headerDigest] = []string{ContentDigest(SHA256, body)}
	sig, err := in.Sign(m, s.Key)
	if err != nil {
		return err
	}
	m.Header[headerInput] = []string{s.Label + "=" + in.String()}
	m.Header[headerSignature] = []string{s.Label + "=:" + base64.StdEncoding.EncodeToString(sig) + ":"}
	return nil
}

func (s *Signer) nonce() string {
	if s.Nonce != nil {
		return s.Nonce()
	}
	var raw [16]byte
	rand.Read(raw[:]) // never fails (crypto/rand since Go 1.24)
	return base64.RawURLEncoding.EncodeToString(raw[:])
}
