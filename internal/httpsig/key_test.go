package httpsig

import (
	"crypto/ed25519"
	"encoding/base64"
	"errors"
	"math/big"
	"slices"
	"testing"
)

func TestParsePublicKey(t *testing.T) {
	b64 := base64.StdEncoding.EncodeToString
	good := b64(testPub)
	le := func(y *big.Int, sign byte) string {
		raw := y.FillBytes(make([]byte, 32))
		slices.Reverse(raw)
		raw[31] |= sign << 7
		return b64(raw)
	}
	offset := func(n int64) *big.Int { return new(big.Int).Add(curveP, big.NewInt(n)) }
	for _, tt := range []struct {
		name, text string
		want       error
	}{
		{"good", good, nil},
		{"of the RFC", rfcPublic, nil},
		{"empty", "", errKeyText},
		{"31 bytes", b64(testPub[:31]), errKeyText},
		{"33 bytes", b64(append(slices.Clone(testPub), 0)), errKeyText},
		{"no padding", good[:43], errKeyText},
		{"URL alphabet", "-" + good[1:], errKeyText},
		{"space before", " " + good, errKeyText},
		{"line break after", good + "\n", errKeyText},
		{"line break for a character", good[:20] + "\n" + good[21:], errKeyText},
		{"unused bits set", loose(good), errKeyText},
		{"hexadecimal", "d75a980182b10ab7d54bfed3c964073a0ee172f3daa6", errKeyText},
		{"y = p", le(curveP, 0), errKeyForm},
		{"y = p + 1, the identity again", le(offset(1), 0), errKeyForm},
		{"y = 2^255 - 1", le(offset(18), 0), errKeyForm},
		{"y = p + 3 with sign", le(offset(3), 1), errKeyForm},
		{"identity", le(big.NewInt(1), 0), errKeyOrder},
		{"identity with sign: x = 0 is not negative", le(big.NewInt(1), 1), errKeyOrder},
		{"order 2", le(offset(-1), 0), errKeyOrder},
		{"order 2 with sign", le(offset(-1), 1), errKeyOrder},
		{"order 4", le(big.NewInt(0), 0), errKeyOrder},
		{"order 4, the other", le(big.NewInt(0), 1), errKeyOrder},
		{"order 8, a", b64(smallOrder[3][:]), errKeyOrder},
		{"order 8, b", b64(smallOrder[4][:]), errKeyOrder},
		{"off the curve: y = 2", le(big.NewInt(2), 0), errKeyCurve},
		{"on the curve: y = 3", le(big.NewInt(3), 0), nil},
		{"on the curve: y = p - 3", le(offset(-3), 1), nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			key, err := ParsePublicKey(tt.text)
			if !errors.Is(err, tt.want) || err == nil && b64(key) != tt.text {
				t.Errorf("got %x, %v; want %v", key, err, tt.want)
			}
		})
	}
}

// The table of small orders, by arithmetic: doubled three times, each is the
// identity.
func TestSmallOrderTable(t *testing.T) {
	p := curveP
	mod := func(z *big.Int) *big.Int { return z.Mod(z, p) }
	mul := func(a, b *big.Int) *big.Int { return mod(new(big.Int).Mul(a, b)) }
	one := big.NewInt(1)
	// On -x²+y² = 1+dx²y²: y(2P) = (y²+x²) / (1-dx²y²).
	double := func(y *big.Int) *big.Int {
		y2 := mul(y, y)
		den := mod(new(big.Int).Add(mul(curveD, y2), one))
		x2 := mul(new(big.Int).Sub(y2, one), new(big.Int).ModInverse(den, p))
		bottom := mod(new(big.Int).Sub(one, mul(curveD, mul(x2, y2))))
		return mul(new(big.Int).Add(y2, x2), new(big.Int).ModInverse(bottom, p))
	}
	seen := map[string]bool{}
	for _, le := range smallOrder {
		be := slices.Clone(le[:])
		slices.Reverse(be)
		y := mod(new(big.Int).SetBytes(be))
		seen[y.String()] = true
		if !onCurve(le[:]) {
			t.Errorf("%x is not on the curve", le)
		}
		if eight := double(double(double(y))); eight.Cmp(one) != 0 {
			t.Errorf("eight times %x is %v", le, eight)
		}
	}
	if len(seen) != 5 {
		t.Errorf("%d different y, want the 5 of the 8 points", len(seen))
	}
}

// Every key that ed25519 makes is taken.
func TestParsePublicKeyTakesRealOnes(t *testing.T) {
	for i := range 64 {
		seed := make([]byte, 32)
		seed[0] = byte(i)
		pub := ed25519.NewKeyFromSeed(seed).Public().(ed25519.PublicKey)
		if _, err := ParsePublicKey(base64.StdEncoding.EncodeToString(pub)); err != nil {
			t.Errorf("seed %d: %v", i, err)
		}
	}
}
