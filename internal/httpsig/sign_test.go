package httpsig

import (
	"bytes"
	"crypto/ed25519"
	"maps"
	"slices"
	"testing"
	"time"
	"unicode"

	"pgregory.net/rapid"
)

// contract: R-21 R-22
func TestSignerWritesTheContract(t *testing.T) {
	m := heartbeat()
	s := &Signer{Profile: Runner, Key: testKey, KeyID: "key-1", Now: clock(testNow), Nonce: func() string { return "n-1" }}
	if err := s.Sign(m, nil); err != nil {
		t.Fatal(err)
	}
	want := map[string]string{
		headerInput:  `runner=("@method" "@path" "@query" "content-digest");created=1700000000;nonce="n-1";keyid="key-1";alg="ed25519"`,
		headerDigest: "sha-256=:47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU=:",
	}
	for name, value := range want {
		if got := m.Header[name]; len(got) != 1 || got[0] != value {
			t.Errorf("%s: got %q, want %q", name, got, value)
		}
	}
	if _, err := testPolicy(testNow).Verify(m, nil, oneKey); err != nil {
		t.Error(err)
	}
}

// A retry is a new signature: fresh nonce, fresh created, nothing left of the
// first.
func TestSignerAgain(t *testing.T) {
	now := testNow
	s := &Signer{Profile: Runner, Key: testKey, KeyID: "key-1", Now: func() time.Time { return now }}
	m := heartbeat()
	seen := map[string]bool{}
	for range 100 {
		if err := s.Sign(m, []byte(heartbeatBody)); err != nil {
			t.Fatal(err)
		}
		got, err := testPolicy(now).Verify(m, []byte(heartbeatBody), oneKey)
		if err != nil || seen[got.Nonce] || !got.Created.Equal(now) {
			t.Fatalf("got %+v, %v", got, err)
		}
		seen[got.Nonce] = true
		now = now.Add(time.Second)
	}
}

// A signer that cannot build the base leaves no signature behind.
func TestSignerFails(t *testing.T) {
	m := heartbeat()
	m.RawTarget = "/a b"
	s := &Signer{Profile: Runner, Key: testKey, KeyID: "key-1", Now: clock(testNow)}
	if err := s.Sign(m, nil); err == nil || m.Header[headerSignature] != nil || m.Header[headerInput] != nil {
		t.Errorf("got %v and the header %q", err, m.Header)
	}
}

// What is signed verifies, and with any one bit changed it does not.
//
// lesson 33
// lesson 34
func TestRoundTripAndOneBit(t *testing.T) {
	targetText := rapid.StringOfN(rapid.RuneFrom([]rune("abcXYZ019-._~!$&'()*+,;=:@/?%2F")), 0, 40, -1)
	text := rapid.StringOfN(rapid.RuneFrom(nil, printable), 1, maxParam, -1)
	rapid.Check(t, func(t *rapid.T) {
		seed := rapid.SliceOfN(rapid.Byte(), 32, 32).Draw(t, "seed")
		key := ed25519.NewKeyFromSeed(seed)
		keyid, nonce := text.Draw(t, "keyid"), text.Draw(t, "nonce")
		body := rapid.SliceOf(rapid.Byte()).Draw(t, "body")
		m := &Message{
			Method:    rapid.StringMatching("[A-Za-z!#$%&'*+.^_`|~-]{1,10}").Filter(func(s string) bool { return s != "CONNECT" }).Draw(t, "method"),
			RawTarget: "/" + targetText.Draw(t, "target"),
		}
		s := &Signer{Profile: Runner, Key: key, KeyID: keyid, Now: clock(testNow), Nonce: func() string { return nonce }}
		if err := s.Sign(m, body); err != nil {
			t.Fatal(err)
		}
		keys := func(id string) (ed25519.PublicKey, error) {
			if id != keyid {
				return nil, nil
			}
			return key.Public().(ed25519.PublicKey), nil
		}
		got, err := testPolicy(testNow).Verify(m, body, keys)
		if err != nil || got.KeyID != keyid || got.Nonce != nonce {
			t.Fatalf("got %+v, %v", got, err)
		}
		flips := parts(m, body)
		part := rapid.SampledFrom(slices.Sorted(maps.Keys(flips))).Filter(func(p string) bool { return len(flips[p].bytes) > 0 }).Draw(t, "part")
		bit := rapid.IntRange(0, len(flips[part].bytes)*8-1).Draw(t, "bit")
		changed, changedBody := flips[part].flip(bit)
		if _, err := testPolicy(testNow).Verify(changed, changedBody, keys); err == nil {
			t.Fatalf("bit %d of %s changed, and it still verifies", bit, part)
		}
	})
}

// Every bit of one whole message.
func TestEveryBitCounts(t *testing.T) {
	m, body := signed(t, nil), []byte(heartbeatBody)
	for name, part := range parts(m, body) {
		for bit := range len(part.bytes) * 8 {
			changed, changedBody := part.flip(bit)
			if _, err := testPolicy(testNow).Verify(changed, changedBody, oneKey); err == nil {
				t.Errorf("bit %d of %s changed, and it still verifies", bit, name)
			}
		}
	}
}

// printable is what a structured field's string may hold.
var printable = &unicode.RangeTable{R16: []unicode.Range16{{Lo: ' ', Hi: '~', Stride: 1}}, LatinOffset: 1}

// part is one piece of a message and the way to put a changed one in its place.
type part struct {
	bytes []byte
	put   func(changed []byte) (*Message, []byte)
}

func (p part) flip(bit int) (*Message, []byte) {
	changed := bytes.Clone(p.bytes)
	changed[bit/8] ^= 1 << (bit % 8)
	return p.put(changed)
}

func parts(m *Message, body []byte) map[string]part {
	edit := func(f func(m *Message, text string)) func([]byte) (*Message, []byte) {
		return func(changed []byte) (*Message, []byte) {
			c := *m
			c.Header = maps.Clone(m.Header)
			f(&c, string(changed))
			return &c, body
		}
	}
	all := map[string]part{
		"method": {[]byte(m.Method), edit(func(m *Message, text string) { m.Method = text })},
		"target": {[]byte(m.RawTarget), edit(func(m *Message, text string) { m.RawTarget = text })},
		"body":   {body, func(changed []byte) (*Message, []byte) { return m, changed }},
	}
	for name, lines := range m.Header {
		all[name] = part{[]byte(lines[0]), edit(func(m *Message, text string) { m.Header[name] = []string{text} })}
	}
	return all
}
