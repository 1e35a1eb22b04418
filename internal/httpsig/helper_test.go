package httpsig

import (
	"crypto/ed25519"
	"encoding/base64"
	"strings"
	"testing"
	"time"
)

const heartbeatBody = `{"host":"builder-01","cliVersion":"1.4.2","runnerProtocol":3,"pollSeconds":30,"slotsUsed":1,"slotsTotal":4,"workRequest":{"ok":true}}`

var (
	testKey = ed25519.NewKeyFromSeed([]byte("a fixed seed of thirty-two bytes"))
	testPub = testKey.Public().(ed25519.PublicKey)
	testNow = time.Unix(1_700_000_000, 0)
)

func clock(t time.Time) func() time.Time { return func() time.Time { return t } }

func oneKey(keyid string) (ed25519.PublicKey, error) {
	if keyid != "key-1" {
		return nil, nil
	}
	return testPub, nil
}

func testPolicy(now time.Time) *Policy {
	return &Policy{Profile: Runner, Skew: 5 * time.Minute, Now: clock(now)}
}

func heartbeat() *Message {
	return &Message{
		Method:    "POST",
		RawTarget: "/v1/hosts/heartbeat",
		Scheme:    "https",
		Authority: "gateway.example",
		Header:    map[string][]string{},
	}
}

// signed is a heartbeat signed as a runner does it, after edit has had its way
// with the input.
func signed(t testing.TB, edit func(*Input)) *Message {
	t.Helper()
	m := heartbeat()
	m.Header[headerDigest] = []string{ContentDigest(SHA256, []byte(heartbeatBody))}
	in := Input{Components: Runner.Components, Created: testNow.Unix(), Nonce: "n-1", KeyID: "key-1", Alg: "ed25519"}
	if edit != nil {
		edit(&in)
	}
	sig, err := in.Sign(m, testKey)
	if err != nil {
		t.Fatal(err)
	}
	m.Header[headerInput] = []string{"runner=" + in.String()}
	m.Header[headerSignature] = []string{"runner=:" + base64.StdEncoding.EncodeToString(sig) + ":"}
	return m
}

// baseOf is the signature base of m for a list and parameters in RFC notation,
// less the last line.
func baseOf(t *testing.T, m *Message, list string) (string, error) {
	t.Helper()
	cs, err := ParseComponents(list)
	if err != nil {
		return "", err
	}
	base, err := (&Input{Components: cs}).AppendBase(nil, m)
	lines, _, _ := strings.Cut(string(base), `"@signature-params"`)
	return strings.TrimSuffix(lines, "\n"), err
}
