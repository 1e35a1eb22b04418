package httpsig

import (
	"crypto/ed25519"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/dunglas/httpsfv"
)

// The refusals of [Policy.Verify], to be told apart with errors.Is. Their texts
// may be shown to the caller: they never hold a key, a signature or a header.
var (
	// ErrRequired: the message carries neither Signature nor Signature-Input.
	ErrRequired = errors.New("the request must be signed: Signature and Signature-Input are missing")
	// ErrInvalid: a signature header is there, and the whole does not verify.
	ErrInvalid = errors.New("the signature is not valid")
	// ErrStale: the signature verified, and created is too far from the clock.
	ErrStale = errors.New("the signature's created is too far from the server's clock")
)

// The header names in canonical form.
const (
	headerSignature = "Signature"
	headerInput     = "Signature-Input"
	headerDigest    = "Content-Digest"
)

// maxParam bounds nonce and keyid, in bytes; both must have one at least.
const maxParam = 256

// Profile is what two ends agree on: the label and the components, exactly
// these in exactly this order.
type Profile struct {
	Label      string
	Components []Component
}

// Runner is the profile of runner hosts. Contract row R-21.
var Runner = Profile{
	Label:      "runner",
	Components: MustComponents(`("@method" "@path" "@query" "content-digest")`),
}

// Node is the profile of nodes that ask for their credential. The label keeps a
// signature for the one from passing as one for the other.
var Node = Profile{Label: "node", Components: Runner.Components}

// Policy verifies messages against a profile: one signature under the profile's
// label and none beside it, exactly the profile's components, exactly the
// parameters created, nonce, keyid and alg="ed25519" in any order, a body that
// matches its sha-256 digest where content-digest is covered, and created
// within Skew of Now.
type Policy struct {
	Profile
	// Skew is how far created may be from Now, either side, inclusive.
	Skew time.Duration
	Now  func() time.Time
}

// KeyFunc finds the public key for a keyid. No key and no error means that
// there is none; an error is passed on as it is.
type KeyFunc func(keyid string) (ed25519.PublicKey, error)

// Result is what a verified signature says.
type Result struct {
	KeyID, Nonce string
	Created      time.Time
	// KeepUntil is when the nonce may be forgotten: the first whole second after
	// both Skew since acceptance and the last instant at which Created could
	// pass. A store that forgets at exactly this second, or keeps whole seconds
	// only, is still safe. Contract row R-24.
	KeepUntil time.Time
}

// Verify checks one message with its exact body. The error wraps [ErrRequired],
// [ErrInvalid] or [ErrStale], or is the one that keys returned. With ErrStale
// the Result holds what was signed, so that the answer can tell the skew.
func (p *Policy) Verify(m *Message, body []byte, keys KeyFunc) (Result, error) {
	if len(m.Header[headerSignature]) == 0 && len(m.Header[headerInput]) == 0 {
		return Result{}, ErrRequired
	}
	in, sig, err := p.parse(m)
	if err != nil {
		return Result{}, invalid(err)
	}
	key, err := keys(in.KeyID)
	if err != nil {
		return Result{}, err
	}
	if err := p.check(m, body, &in, sig, key); err != nil {
		return Result{}, invalid(err)
	}
	r := Result{KeyID: in.KeyID, Nonce: in.Nonce, Created: in.created()}
	now := p.Now()
	if now.Sub(r.Created).Abs() > p.Skew {
		return r, fmt.Errorf("%w: it may be %v away; correct the clock and sign again", ErrStale, p.Skew)
	}
	r.KeepUntil = keepUntil(now, r.Created, p.Skew)
	return r, nil
}

func invalid(err error) error { return fmt.Errorf("%w: %w", ErrInvalid, err) }

// keepUntil is strictly after the later of the two limits.
func keepUntil(accepted, created time.Time, skew time.Duration) time.Time {
	last := accepted
	if created.After(last) {
		last = created
	}
	return time.Unix(last.Add(skew).Unix()+1, 0)
}

// parse reads the two headers and holds them against the profile.
func (p *Policy) parse(m *Message) (Input, []byte, error) {
	in, sig, others, err := lookup(m, p.Label)
	switch {
	case err != nil:
		return Input{}, nil, err
	case others:
		return Input{}, nil, fmt.Errorf("there is a signature beside %q", p.Label)
	case !slices.Equal(in.Components, p.Components):
		return Input{}, nil, fmt.Errorf("the covered components must be exactly %s", Input{Components: p.Components})
	case len(in.order) != 4 || !in.has(paramCreated) || !in.has(paramNonce) || !in.has(paramKeyID) || !in.has(paramAlg):
		return Input{}, nil, errors.New("the parameters must be exactly created, nonce, keyid and alg")
	case in.Nonce == "" || len(in.Nonce) > maxParam || in.KeyID == "" || len(in.KeyID) > maxParam:
		return Input{}, nil, fmt.Errorf("nonce and keyid must have 1 to %d bytes", maxParam)
	}
	return in, sig, nil
}

// check does the cryptography: first the signature, so that only a holder of
// the key can have a large body hashed.
func (p *Policy) check(m *Message, body []byte, in *Input, sig []byte, key ed25519.PublicKey) error {
	if key == nil {
		return errors.New("keyid names no key")
	}
	if err := in.verify(m, sig, key); err != nil {
		return err
	}
	for _, c := range p.Components {
		if c.name == "content-digest" {
			return VerifyDigest(m.Header[headerDigest], body, SHA256)
		}
	}
	return nil
}

// Verify checks the signature under label (RFC 9421 section 3.2) and returns
// what it covers. It holds the message to no policy: components, times and the
// body's digest are the caller's to judge. Other labels are ignored.
func Verify(m *Message, label string, key ed25519.PublicKey) (Input, error) {
	in, sig, _, err := lookup(m, label)
	if err == nil {
		err = in.verify(m, sig, key)
	}
	if err != nil {
		return Input{}, invalid(err)
	}
	return in, nil
}

func (in *Input) verify(m *Message, sig []byte, key ed25519.PublicKey) error {
	if in.has(paramAlg) && in.Alg != algEd25519 {
		return errors.New(`alg must be "ed25519"`)
	}
	if len(sig) != ed25519.SignatureSize {
		return errors.New("an ed25519 signature has 64 bytes")
	}
	if err := checkKey(key); err != nil {
		return err
	}
	var buf [512]byte
	base, err := in.AppendBase(buf[:0], m)
	if err != nil {
		return err
	}
	if !ed25519.Verify(key, base, sig) {
		return errors.New("it does not verify against the key for the message as received")
	}
	return nil
}

// lookup returns the input and the signature under label, and whether there are
// signatures under other labels.
func lookup(m *Message, label string) (in Input, sig []byte, others bool, err error) {
	inputs, err := parseDictionary(m.Header[headerInput])
	if err != nil {
		return in, nil, false, fmt.Errorf("the Signature-Input header: %w", err)
	}
	sigs, err := parseDictionary(m.Header[headerSignature])
	if err != nil {
		return in, nil, false, fmt.Errorf("the Signature header: %w", err)
	}
	if in, err = inputOf(inputs, label); err != nil {
		return in, nil, false, err
	}
	sig, err = signatureOf(sigs, label)
	return in, sig, len(inputs.Names()) > 1 || len(sigs.Names()) > 1, err
}

func inputOf(inputs *httpsfv.Dictionary, label string) (Input, error) {
	member, _ := inputs.Get(label)
	inner, ok := member.(httpsfv.InnerList)
	if !ok {
		return Input{}, fmt.Errorf("the Signature-Input header has no list under %q", label)
	}
	return parseInput(inner)
}

func signatureOf(sigs *httpsfv.Dictionary, label string) ([]byte, error) {
	member, _ := sigs.Get(label)
	item, _ := member.(httpsfv.Item)
	sig, ok := item.Value.([]byte)
	if !ok || len(item.Params.Names()) > 0 {
		return nil, fmt.Errorf("the Signature header has no byte sequence under %q", label)
	}
	return sig, nil
}
