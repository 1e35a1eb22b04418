package httpsig

import (
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/dunglas/httpsfv"
)

// Input is one member of Signature-Input: what a signature covers, in order,
// and its parameters (RFC 9421 section 2.3). In an Input made by hand a zero
// parameter is left out and the others are written in the order below; an Input
// that was parsed keeps the order in which it came.
type Input struct {
	Components []Component
	Created    int64 // Unix seconds
	Expires    int64 // Unix seconds
	Nonce      string
	KeyID      string
	Alg        string // "ed25519" or left out
	Tag        string

	order []param // as parsed
}

type param uint8

const (
	paramCreated param = iota
	paramExpires
	paramNonce
	paramKeyID
	paramAlg
	paramTag
)

var paramNames = [...]string{"created", "expires", "nonce", "keyid", "alg", "tag"}

// algEd25519 is the algorithm's name in the registry (RFC 9421 section 6.2.2).
const algEd25519 = "ed25519"

// maxInteger bounds a structured field's integer (RFC 9651 section 3.3.1).
const maxInteger = 999_999_999_999_999

func parseInput(inner httpsfv.InnerList) (Input, error) {
	cs, err := components(inner)
	if err != nil {
		return Input{}, err
	}
	in := Input{Components: cs, order: make([]param, 0, len(paramNames))}
	for _, name := range inner.Params.Names() {
		value, _ := inner.Params.Get(name)
		if err := in.set(name, value); err != nil {
			return Input{}, err
		}
	}
	return in, nil
}

// set takes one parsed parameter. A parameter that RFC 9421 does not define is
// refused: nobody here could honour it.
func (in *Input) set(name string, value any) error {
	number, text, p := (*int64)(nil), (*string)(nil), param(0)
	switch name {
	case "created":
		number, p = &in.Created, paramCreated
	case "expires":
		number, p = &in.Expires, paramExpires
	case "nonce":
		text, p = &in.Nonce, paramNonce
	case "keyid":
		text, p = &in.KeyID, paramKeyID
	case "alg":
		text, p = &in.Alg, paramAlg
	case "tag":
		text, p = &in.Tag, paramTag
	default:
		return fmt.Errorf("unknown signature parameter %.80q", name)
	}
	var ok bool
	if number != nil {
		*number, ok = value.(int64)
	} else {
		*text, ok = value.(string)
	}
	if !ok {
		return fmt.Errorf("signature parameter %q has the wrong type", name)
	}
	in.order = append(in.order, p)
	return nil
}

// has says whether a parameter is there, be it empty.
func (in *Input) has(p param) bool {
	if in.order != nil {
		for _, q := range in.order {
			if p == q {
				return true
			}
		}
		return false
	}
	switch p {
	case paramCreated:
		return in.Created != 0
	case paramExpires:
		return in.Expires != 0
	}
	return *in.text(p) != ""
}

func (in *Input) text(p param) *string {
	return [...]*string{paramNonce: &in.Nonce, paramKeyID: &in.KeyID, paramAlg: &in.Alg, paramTag: &in.Tag}[p]
}

// String is the value of @signature-params, which is also what follows the
// label in Signature-Input.
func (in Input) String() string { return string(in.append(nil)) }

func (in *Input) append(dst []byte) []byte {
	dst = append(dst, '(')
	for i, c := range in.Components {
		if i > 0 {
			dst = append(dst, ' ')
		}
		dst = c.append(dst)
	}
	dst = append(dst, ')')
	if in.order != nil {
		for _, p := range in.order {
			dst = in.appendParam(dst, p)
		}
		return dst
	}
	for p := range param(len(paramNames)) {
		if in.has(p) {
			dst = in.appendParam(dst, p)
		}
	}
	return dst
}

func (in *Input) appendParam(dst []byte, p param) []byte {
	dst = append(append(append(dst, ';'), paramNames[p]...), '=')
	switch p {
	case paramCreated:
		return strconv.AppendInt(dst, in.Created, 10)
	case paramExpires:
		return strconv.AppendInt(dst, in.Expires, 10)
	}
	return appendString(dst, *in.text(p))
}

// check refuses what could not be written down: it keeps an Input made by hand
// from breaking out of its line.
func (in *Input) check() error {
	for p := paramNonce; p <= paramTag; p++ {
		if !isPrintable(*in.text(p)) {
			return fmt.Errorf("signature parameter %q may hold printable ASCII only", paramNames[p])
		}
	}
	if max(in.Created, in.Expires) > maxInteger || min(in.Created, in.Expires) < -maxInteger {
		return errors.New("created and expires must fit a structured field's integer")
	}
	return unique(in.Components)
}

// created is Created as a time.
func (in *Input) created() time.Time { return time.Unix(in.Created, 0) }

// appendString writes a structured field's string (RFC 9651 section 4.1.6).
func appendString(dst []byte, s string) []byte {
	dst = append(dst, '"')
	for i := range len(s) {
		if s[i] == '"' || s[i] == '\\' {
			dst = append(dst, '\\')
		}
		dst = append(dst, s[i])
	}
	return append(dst, '"')
}

func isPrintable(s string) bool {
	for i := range len(s) {
		if s[i] < ' ' || s[i] >= 0x7f {
			return false
		}
	}
	return true
}
