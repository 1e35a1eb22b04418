package httpsig

import (
	"crypto/ed25519"
	"errors"
	"math/big"
	"slices"
)

var (
	errKeyText   = errors.New("a host public key is the base64 (RFC 4648 section 4, with padding) of 32 raw bytes")
	errKeyForm   = errors.New("the ed25519 public key is not in canonical form")
	errKeyOrder  = errors.New("the ed25519 public key has a small order: anyone could sign for it")
	errKeyCurve  = errors.New("the ed25519 public key is not a point on the curve")
	errKeyLength = errors.New("an ed25519 public key has 32 bytes")
)

// ParsePublicKey reads a host's public key: canonical base64 of the raw 32
// bytes. It refuses a key that is not a point on the curve, is not in canonical
// form, or has a small order (then signatures verify that no private key made).
func ParsePublicKey(text string) (ed25519.PublicKey, error) {
	if len(text) != 44 {
		return nil, errKeyText
	}
	raw, err := strictBase64.DecodeString(text)
	if err != nil || len(raw) != ed25519.PublicKeySize {
		return nil, errKeyText
	}
	if err := checkKey(raw); err != nil {
		return nil, err
	}
	if !onCurve(raw) {
		return nil, errKeyCurve
	}
	return raw, nil
}

// smallOrder holds the y coordinates, little-endian, of the eight points of
// small order: 1 (order 1), -1 (2), 0 (4) and the two of order 8. Each stands
// for both signs of x.
var smallOrder = [...][ed25519.PublicKeySize]byte{
	{1},
	{0xec, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff,
		0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f},
	{},
	{0xc7, 0x17, 0x6a, 0x70, 0x3d, 0x4d, 0xd8, 0x4f, 0xba, 0x3c, 0x0b, 0x76, 0x0d, 0x10, 0x67, 0x0f,
		0x2a, 0x20, 0x53, 0xfa, 0x2c, 0x39, 0xcc, 0xc6, 0x4e, 0xc7, 0xfd, 0x77, 0x92, 0xac, 0x03, 0x7a},
	{0x26, 0xe8, 0x95, 0x8f, 0xc2, 0xb2, 0x27, 0xb0, 0x45, 0xc3, 0xf4, 0x89, 0xf2, 0xef, 0x98, 0xf0,
		0xd5, 0xdf, 0xac, 0x05, 0xd3, 0xc6, 0x33, 0x39, 0xb1, 0x38, 0x02, 0x88, 0x6d, 0x53, 0xfc, 0x05},
}

// checkKey is cheap enough for every verification, so that a key which came
// past ParsePublicKey is still no way in.
func checkKey(key ed25519.PublicKey) error {
	if len(key) != ed25519.PublicKeySize {
		return errKeyLength
	}
	y := [ed25519.PublicKeySize]byte(key)
	y[31] &= 0x7f
	if !belowP(&y) {
		return errKeyForm
	}
	// This also catches x = 0 with its sign bit set: there y is 1 or -1.
	for i := range smallOrder {
		if y == smallOrder[i] {
			return errKeyOrder
		}
	}
	return nil
}

// belowP says whether y, little-endian, is below p = 2^255 - 19.
func belowP(y *[ed25519.PublicKeySize]byte) bool {
	if y[31] != 0x7f || y[0] < 0xed {
		return true
	}
	for _, b := range y[1:31] {
		if b != 0xff {
			return true
		}
	}
	return false
}

// curveP is 2^255 - 19, curveD is -121665/121666 modulo it (RFC 8032 section 5.1).
var curveP, curveD = func() (*big.Int, *big.Int) {
	p := new(big.Int).Lsh(big.NewInt(1), 255)
	p.Sub(p, big.NewInt(19))
	d := new(big.Int).ModInverse(big.NewInt(121666), p)
	d.Mul(d, big.NewInt(-121665)).Mod(d, p)
	return p, d
}()

// onCurve says whether x² = (y²-1)/(dy²+1) has a solution (RFC 8032 section
// 5.1.3). Fraction and product of the two are squares together.
func onCurve(key ed25519.PublicKey) bool {
	be := slices.Clone(key)
	be[31] &= 0x7f
	slices.Reverse(be)
	y2 := new(big.Int).SetBytes(be)
	y2.Mul(y2, y2).Mod(y2, curveP)
	one := big.NewInt(1)
	u := new(big.Int).Sub(y2, one)
	v := new(big.Int).Mul(curveD, y2)
	v.Add(v, one).Mul(v, u).Mod(v, curveP)
	return big.Jacobi(v, curveP) >= 0
}
