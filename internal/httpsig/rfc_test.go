package httpsig

import (
	"crypto/ed25519"
	"encoding/base64"
	"testing"
)

// The key test-key-ed25519 of RFC 9421 section B.1.4.
const (
	rfcSeed   = "n4Ni+HpISpVObnQMW0wOhCKROaIKqKtW/2ZYb2p9KcU="
	rfcPublic = "JrQLj5P/89iXES9+vFgrIy29clF9CC/oPPsw3c5D0bs="
)

func rfcKeys(t testing.TB) (ed25519.PrivateKey, ed25519.PublicKey) {
	t.Helper()
	seed, err := base64.StdEncoding.DecodeString(rfcSeed)
	if err != nil {
		t.Fatal(err)
	}
	pub, err := ParsePublicKey(rfcPublic)
	if err != nil {
		t.Fatal(err)
	}
	key := ed25519.NewKeyFromSeed(seed)
	if !pub.Equal(key.Public()) {
		t.Fatal("the two halves of the RFC's key do not belong together")
	}
	return key, pub
}

// rfcRequest is test-request of RFC 9421 section B.2.
func rfcRequest() *Message {
	return &Message{
		Method:    "POST",
		RawTarget: "/foo?param=Value&Pet=dog",
		Scheme:    "https",
		Authority: "example.com",
		Header: map[string][]string{
			"Date":           {"Tue, 20 Apr 2021 02:07:55 GMT"},
			"Content-Type":   {"application/json"},
			"Content-Digest": {"sha-512=:WZDPaVn/7XgHaAy8pmojAkGWoRx2UFChF41A2svX+TaPm+AbwAgBWnrIiYllu7BNNyealdVLvRwEmTHWXvJwew==:"},
			"Content-Length": {"18"},
		},
	}
}

// rfcTransformed is the request of RFC 9421 section B.4.
func rfcTransformed() *Message {
	return &Message{
		Method:    "GET",
		RawTarget: "/demo?name1=Value1&Name2=value2",
		Scheme:    "https",
		Authority: "example.org",
		Header: map[string][]string{
			"Date":   {"Fri, 15 Jul 2022 14:24:55 GMT"},
			"Accept": {"application/json", "*/*"},
		},
	}
}

// The two ed25519 signatures of the RFC, made and checked: ed25519 always gives
// the same bytes.
func TestRFCSignatures(t *testing.T) {
	key, pub := rfcKeys(t)
	for _, tt := range []struct {
		section, label, list, base, sig string
		m                               *Message
	}{
		{
			"B.2.6", "sig-b26", `("date" "@method" "@path" "@authority" "content-type" "content-length")`,
			`"date": Tue, 20 Apr 2021 02:07:55 GMT
"@method": POST
"@path": /foo
"@authority": example.com
"content-type": application/json
"content-length": 18
"@signature-params": ("date" "@method" "@path" "@authority" "content-type" "content-length");created=1618884473;keyid="test-key-ed25519"`,
			"wqcAqbmYJ2ji2glfAMaRy4gruYYnx2nEFN2HN6jrnDnQCK1u02Gb04v9EDgwUPiu4A0w6vuQv5lIp5WPpBKRCw==",
			rfcRequest(),
		},
		{
			"B.4", "transform", `("@method" "@path" "@authority" "accept")`,
			`"@method": GET
"@path": /demo
"@authority": example.org
"accept": application/json, */*
"@signature-params": ("@method" "@path" "@authority" "accept");created=1618884473;keyid="test-key-ed25519"`,
			"ZT1kooQsEHpZ0I1IjCqtQppOmIqlJPeo7DHR3SoMn0s5JZ1eRGS0A+vyYP9t/LXlh5QMFFQ6cpLt2m0pmj3NDA==",
			rfcTransformed(),
		},
	} {
		t.Run(tt.section, func(t *testing.T) {
			in := Input{Components: MustComponents(tt.list), Created: 1618884473, KeyID: "test-key-ed25519"}
			if base, err := in.AppendBase(nil, tt.m); err != nil || string(base) != tt.base {
				t.Fatalf("base: %v\n%s\nwant\n%s", err, base, tt.base)
			}
			sig, err := in.Sign(tt.m, key)
			if got := base64.StdEncoding.EncodeToString(sig); err != nil || got != tt.sig {
				t.Fatalf("signature %s, %v; want %s", got, err, tt.sig)
			}
			tt.m.Header[headerInput] = []string{tt.label + "=" + in.String()}
			tt.m.Header[headerSignature] = []string{tt.label + "=:" + tt.sig + ":"}
			got, err := Verify(tt.m, tt.label, pub)
			if err != nil || got.Created != 1618884473 || got.KeyID != "test-key-ed25519" {
				t.Errorf("Verify: %+v, %v", got, err)
			}
		})
	}
}

// RFC 9421 section B.4 lists what an intermediary may change and what not.
func TestRFCTransformations(t *testing.T) {
	_, pub := rfcKeys(t)
	for _, tt := range []struct {
		name string
		ok   bool
		edit func(*Message)
	}{
		{"field added", true, func(m *Message) { m.Header["Accept-Language"] = []string{"en-US,en;q=0.5"} }},
		{"date and query removed, accept joined", true, func(m *Message) {
			delete(m.Header, "Date")
			m.Header["Accept"] = []string{"application/json, */*"}
		}},
		{"whitespace added", true, func(m *Message) { m.Header["Accept"] = []string{"  application/json", "*/*  "} }},
		{"authority and method changed", false, func(m *Message) { m.Authority, m.Method = "example.com", "POST" }},
		{"accept in another order", false, func(m *Message) { m.Header["Accept"] = []string{"*/*", "application/json"} }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			m := rfcTransformed()
			m.Header[headerInput] = []string{`transform=("@method" "@path" "@authority" "accept");created=1618884473;keyid="test-key-ed25519"`}
			m.Header[headerSignature] = []string{"transform=:ZT1kooQsEHpZ0I1IjCqtQppOmIqlJPeo7DHR3SoMn0s5JZ1eRGS0A+vyYP9t/LXlh5QMFFQ6cpLt2m0pmj3NDA==:"}
			tt.edit(m)
			if _, err := Verify(m, "transform", pub); (err == nil) != tt.ok {
				t.Errorf("Verify: %v, want ok=%v", err, tt.ok)
			}
		})
	}
}

// RFC 9421 section 2.3: the order of the parameters is the signer's.
func TestInputKeepsOrder(t *testing.T) {
	const params = `("@target-uri" "@authority" "date" "cache-control");keyid="test-key-rsa-pss";alg="rsa-pss-sha512";created=1618884475;expires=1618884775;tag="a\"b\\";nonce=""`
	dict, err := parseDictionary([]string{"s=" + params})
	if err != nil {
		t.Fatal(err)
	}
	in, err := inputOf(dict, "s")
	if err != nil || in.String() != params {
		t.Errorf("got %s, %v\nwant %s", in, err, params)
	}
	if in.Expires != 1618884775 || in.Tag != `a"b\` || !in.has(paramNonce) {
		t.Errorf("got %+v", in)
	}
	byHand := Input{Components: in.Components, Nonce: "n", Created: 1, Alg: "ed25519", Tag: "t", KeyID: "k", Expires: 2}
	want := `("@target-uri" "@authority" "date" "cache-control");created=1;expires=2;nonce="n";keyid="k";alg="ed25519";tag="t"`
	if byHand.String() != want {
		t.Errorf("got %s\nwant %s", byHand, want)
	}
}
