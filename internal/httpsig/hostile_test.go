package httpsig

import (
	"bytes"
	"crypto/ed25519"
	"crypto/sha256"
	"crypto/sha512"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"math/big"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// Each file under testdata/hostile is one request with the heartbeat's body:
//
//	why: what is hostile about it
//	want: ok, required, invalid or stale
//	request: POST /path            (only where it is another one)
//	Signature-Input: …             (headers, any number of lines each)
//
//	"@method": POST                (only where the usual base will not do)
//	…
//
// The base is signed as it stands, by code that knows nothing of the package,
// so that a case fails for its own reason and not for want of a signature.
// {params} is what follows the label in the first Signature-Input, {digest} the
// first Content-Digest, {sig} the signature; see placeholders for the rest.
//
// contract: R-20
// contract: R-21
// contract: R-22
// contract: R-23
// lesson 33
// lesson 34
func TestHostile(t *testing.T) {
	files, err := filepath.Glob("testdata/hostile/*.txt")
	if err != nil || len(files) < 100 {
		t.Fatalf("only %d cases found, %v", len(files), err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			h := readHostile(t, file)
			_, err := testPolicy(testNow).Verify(h.m, []byte(heartbeatBody), oneKey)
			if !errors.Is(err, h.want) {
				t.Errorf("%s: got %v, want %v", h.why, err, h.want)
			}
			for _, other := range []error{ErrRequired, ErrInvalid, ErrStale} {
				if other != h.want && errors.Is(err, other) {
					t.Errorf("%s: %v is two refusals at once", h.why, err)
				}
			}
		})
	}
}

type hostile struct {
	why  string
	want error
	m    *Message
}

var hostileWants = map[string]error{"ok": nil, "required": ErrRequired, "invalid": ErrInvalid, "stale": ErrStale}

const usualBase = `"@method": POST
"@path": /v1/hosts/heartbeat
"@query": ?
"content-digest": {digest}
"@signature-params": {params}`

func readHostile(t testing.TB, file string) hostile {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	head, base, ok := strings.Cut(strings.TrimSuffix(string(text), "\n"), "\n\n")
	if !ok {
		base = usualBase
	}
	h := hostile{m: heartbeat()}
	for line := range strings.SplitSeq(head, "\n") {
		name, value, ok := strings.Cut(line, ":")
		value = strings.TrimPrefix(value, " ")
		switch {
		case !ok:
			t.Fatalf("%s: no colon in %q", file, line)
		case name == "why":
			h.why = value
		case name == "want":
			if h.want, ok = hostileWants[value]; !ok {
				t.Fatalf("%s: want %q is none", file, value)
			}
		case name == "request":
			h.m.Method, h.m.RawTarget, _ = strings.Cut(value, " ")
		default:
			h.m.Header[name] = append(h.m.Header[name], value)
		}
	}
	h.fill(base)
	return h
}

// fill puts the digests first, then the signature over the base that holds them.
func (h *hostile) fill(base string) {
	h.replace(digestPlaceholders())
	params, digest := "", ""
	if lines := h.m.Header[headerInput]; len(lines) > 0 {
		_, params, _ = strings.Cut(lines[0], "=")
	}
	if lines := h.m.Header[headerDigest]; len(lines) > 0 {
		digest = lines[0]
	}
	base = strings.NewReplacer("{params}", params, "{digest}", digest).Replace(base)
	base = digestPlaceholders().Replace(base)
	h.replace(signaturePlaceholders(ed25519.Sign(testKey, []byte(base))))
}

func (h *hostile) replace(r *strings.Replacer) {
	for _, lines := range h.m.Header {
		for i := range lines {
			lines[i] = r.Replace(lines[i])
		}
	}
}

func digestPlaceholders() *strings.Replacer {
	s256, s512 := sha256.Sum256([]byte(heartbeatBody)), sha512.Sum512([]byte(heartbeatBody))
	b64 := base64.StdEncoding.EncodeToString
	return strings.NewReplacer("{sha256}", b64(s256[:]), "{sha512}", b64(s512[:]),
		"{sha256-hex}", hex.EncodeToString(s256[:]), "{sha256-loose}", loose(b64(s256[:])))
}

func signaturePlaceholders(sig []byte) *strings.Replacer {
	b64 := base64.StdEncoding.EncodeToString
	return strings.NewReplacer("{sig}", b64(sig), "{sig-loose}", loose(b64(sig)),
		"{sig-unpadded}", base64.RawStdEncoding.EncodeToString(sig), "{sig-url}", base64.URLEncoding.EncodeToString(sig),
		"{sig-63}", b64(sig[:63]), "{sig-65}", b64(append(bytes.Clone(sig), 0)), "{sig-s+l}", b64(plusL(sig)))
}

// loose sets a bit that the last base64 character does not use.
func loose(s string) string {
	const alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
	end := strings.IndexByte(s, '=')
	next := alphabet[strings.IndexByte(alphabet, s[end-1])+1]
	return s[:end-1] + string(next) + s[end:]
}

// plusL adds the group's order to S, which a lax verifier reduces again.
func plusL(sig []byte) []byte {
	l, _ := new(big.Int).SetString("7237005577332262213973186563042994240857116359379907606001950938285454250989", 10)
	s := bytes.Clone(sig[32:])
	slices.Reverse(s)
	sum := l.Add(l, new(big.Int).SetBytes(s)).FillBytes(make([]byte, 32))
	slices.Reverse(sum)
	return append(bytes.Clone(sig[:32]), sum...)
}
