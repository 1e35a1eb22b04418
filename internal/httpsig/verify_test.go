package httpsig

import (
	"crypto/ed25519"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestVerifyResult(t *testing.T) {
	m := signed(t, nil)
	got, err := testPolicy(testNow).Verify(m, []byte(heartbeatBody), oneKey)
	want := Result{KeyID: "key-1", Nonce: "n-1", Created: testNow, KeepUntil: testNow.Add(301 * time.Second)}
	if err != nil || got != want {
		t.Errorf("got %+v, %v; want %+v", got, err, want)
	}
}

// Both sides of the edge, to the nanosecond: created has whole seconds, the
// clock has not.
//
// contract: R-23
// lesson 35
func TestVerifySkew(t *testing.T) {
	m := signed(t, nil)
	const limit = 5 * time.Minute
	for _, tt := range []struct {
		now  time.Duration // after created
		want error
	}{
		{-limit - time.Second, ErrStale},
		{-limit - time.Nanosecond, ErrStale},
		{-limit, nil},
		{0, nil},
		{limit, nil},
		{limit + time.Nanosecond, ErrStale},
		{limit + time.Second, ErrStale},
	} {
		got, err := testPolicy(testNow.Add(tt.now)).Verify(m, []byte(heartbeatBody), oneKey)
		if !errors.Is(err, tt.want) {
			t.Errorf("%v after created: got %v, want %v", tt.now, err, tt.want)
		}
		if !got.Created.Equal(testNow) {
			t.Errorf("%v after created: the result does not tell created, so nobody can tell the skew", tt.now)
		}
		if tt.want != nil && !got.KeepUntil.IsZero() {
			t.Errorf("%v after created: a refused nonce has a time to be kept", tt.now)
		}
	}
}

// A nonce is kept for five minutes after acceptance and until its created could
// no longer pass, the last instant included: whoever forgets at KeepUntil, with
// a clock of any fineness, forgets no nonce that could still be replayed.
//
// contract: R-24
// lesson 35
func TestVerifyKeepUntil(t *testing.T) {
	m := signed(t, nil)
	const skew = 5 * time.Minute
	for _, after := range []time.Duration{-skew, -time.Second, -time.Nanosecond, 0, time.Nanosecond, time.Second / 2, skew} {
		now := testNow.Add(after)
		got, err := testPolicy(now).Verify(m, []byte(heartbeatBody), oneKey)
		if err != nil {
			t.Fatal(err)
		}
		if !got.KeepUntil.After(now.Add(skew)) {
			t.Errorf("accepted %v after created: forgotten %v after acceptance", after, got.KeepUntil.Sub(now))
		}
		if got.KeepUntil.Nanosecond() != 0 {
			t.Errorf("accepted %v after created: %v is no whole second", after, got.KeepUntil)
		}
		if _, err := testPolicy(got.KeepUntil).Verify(m, []byte(heartbeatBody), oneKey); !errors.Is(err, ErrStale) {
			t.Errorf("accepted %v after created: at KeepUntil a replay would get %v, not stale", after, err)
		}
	}
}

// A fault of the store is not the client's bad signature.
func TestVerifyKeys(t *testing.T) {
	m, body := signed(t, nil), []byte(heartbeatBody)
	broken := errors.New("the store is down")
	_, err := testPolicy(testNow).Verify(m, body, func(string) (ed25519.PublicKey, error) { return nil, broken })
	if !errors.Is(err, broken) || errors.Is(err, ErrInvalid) {
		t.Errorf("got %v, want the store's own error", err)
	}
	other := ed25519.NewKeyFromSeed(make([]byte, 32)).Public().(ed25519.PublicKey)
	for name, key := range map[string]ed25519.PublicKey{
		"none": nil, "empty": {}, "short": testPub[:31], "another": other, "small order": make([]byte, 32),
	} {
		_, err := testPolicy(testNow).Verify(m, body, func(string) (ed25519.PublicKey, error) { return key, nil })
		if !errors.Is(err, ErrInvalid) {
			t.Errorf("key %s: got %v, want invalid", name, err)
		}
	}
}

// With the point of order 1 as key, R = B and S = 1 fit every message: this is
// why keys are checked.
func TestVerifySmallOrderKeySignsAnything(t *testing.T) {
	key := make(ed25519.PublicKey, 32)
	key[0] = 1
	sig := make([]byte, 64)
	copy(sig, slices.Repeat([]byte{0x66}, 32)) // the base point: y = 4/5
	sig[0], sig[32] = 0x58, 1
	if !ed25519.Verify(key, []byte("anything"), sig) {
		t.Fatal("the forgery of the test is none")
	}
	in := Input{Components: Runner.Components}
	m := signed(t, nil)
	if err := in.verify(m, sig, key); !errors.Is(err, errKeyOrder) {
		t.Errorf("got %v, want the key refused", err)
	}
}

// Verify, without a policy, picks its label among others and still refuses what
// is ambiguous.
func TestVerifyAmongLabels(t *testing.T) {
	m := signed(t, nil)
	m.Header[headerInput] = append(m.Header[headerInput], `proxy=("@method");created=1`)
	m.Header[headerSignature] = append(m.Header[headerSignature], "proxy=:AAAA:")
	if in, err := Verify(m, "runner", testPub); err != nil || in.Nonce != "n-1" {
		t.Errorf("got %+v, %v", in, err)
	}
	for _, label := range []string{"proxy", "none", ""} {
		if _, err := Verify(m, label, testPub); !errors.Is(err, ErrInvalid) {
			t.Errorf("label %q: got %v, want invalid", label, err)
		}
	}
	m.Header[headerInput] = append(m.Header[headerInput], m.Header[headerInput][0])
	if _, err := Verify(m, "runner", testPub); !errors.Is(err, ErrInvalid) {
		t.Errorf("label twice: got %v, want invalid", err)
	}
}

// alg may be left out without a policy (RFC 9421 section 3.2), not be another.
func TestVerifyAlg(t *testing.T) {
	for alg, want := range map[string]error{"": nil, "ed25519": nil, "hmac-sha256": ErrInvalid} {
		_, err := Verify(signed(t, func(in *Input) { in.Alg = alg }), "runner", testPub)
		if !errors.Is(err, want) {
			t.Errorf("alg %q: got %v, want %v", alg, err, want)
		}
	}
}

// Without content-digest in the profile the body is not looked at.
func TestPolicyWithoutDigest(t *testing.T) {
	p := testPolicy(testNow)
	p.Components = MustComponents(`("@method" "@target-uri")`)
	m := signed(t, func(in *Input) { in.Components = p.Components })
	if _, err := p.Verify(m, []byte("whatever"), oneKey); err != nil {
		t.Error(err)
	}
}

// The texts are for the client, and must not hand a key or signature around.
func TestErrorsHoldNoSecrets(t *testing.T) {
	m := signed(t, nil)
	sig := m.Header[headerSignature][0]
	m.Method = "PUT"
	_, err := testPolicy(testNow).Verify(m, []byte(heartbeatBody), oneKey)
	if err == nil || strings.Contains(err.Error(), sig[8:20]) || strings.Contains(err.Error(), "n-1") {
		t.Errorf("got %v", err)
	}
}

func TestMustComponentsPanics(t *testing.T) {
	defer func() {
		if recover() == nil {
			t.Error("no panic")
		}
	}()
	MustComponents(`("@nope")`)
}
