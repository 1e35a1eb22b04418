package httpsig

import (
	"errors"
	"strings"
	"unicode/utf8"
)

var (
	errNoParam    = errors.New("the query has no parameter of that name")
	errTwoParams  = errors.New("the query has several parameters of that name; cover @query instead")
	errParamBytes = errors.New("the query parameter is not UTF-8")
)

// appendParam is @query-param: the one parameter called name (given encoded),
// form-decoded and encoded again (RFC 9421 section 2.2.8). A name that occurs
// twice is an error there too.
func (t target) appendParam(dst []byte, name string) ([]byte, error) {
	if !t.hasPath {
		return nil, errNoPath
	}
	want, found := formDecode(name), false
	var value string
	for rest := t.query; rest != ""; {
		var pair string
		pair, rest, _ = strings.Cut(rest, "&")
		if pair == "" {
			continue
		}
		n, v, _ := strings.Cut(pair, "=")
		if formDecode(n) != want {
			continue
		}
		if found {
			return nil, errTwoParams
		}
		value, found = formDecode(v), true
	}
	switch {
	case !found:
		return nil, errNoParam
	case !utf8.ValidString(value) || !utf8.ValidString(want):
		// The form parser would put U+FFFD for bad bytes, and so make different
		// queries sign alike.
		return nil, errParamBytes
	}
	return appendFormEncoded(dst, value), nil
}

// formDecode undoes application/x-www-form-urlencoded: "+" is a space, a broken
// percent escape stands for itself.
func formDecode(s string) string {
	if strings.IndexByte(s, '%') < 0 && strings.IndexByte(s, '+') < 0 {
		return s
	}
	out := make([]byte, 0, len(s))
	for i := 0; i < len(s); i++ {
		switch {
		case s[i] == '+':
			out = append(out, ' ')
		case s[i] == '%' && i+2 < len(s) && isHex(s[i+1]) && isHex(s[i+2]):
			out = append(out, unhex(s[i+1])<<4|unhex(s[i+2]))
			i += 2
		default:
			out = append(out, s[i])
		}
	}
	return string(out)
}

// appendFormEncoded percent-encodes with the form percent-encode set, a space
// as %20.
func appendFormEncoded(dst []byte, s string) []byte {
	const digits = "0123456789ABCDEF"
	for i := range len(s) {
		c := s[i]
		if isAlnum(c) || c == '*' || c == '-' || c == '.' || c == '_' {
			dst = append(dst, c)
		} else {
			dst = append(dst, '%', digits[c>>4], digits[c&15])
		}
	}
	return dst
}

func isAlnum(c byte) bool {
	return isDigit(c) || 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z'
}

func isHex(c byte) bool {
	return isDigit(c) || 'a' <= c && c <= 'f' || 'A' <= c && c <= 'F'
}

func unhex(c byte) byte {
	if isDigit(c) {
		return c - '0'
	}
	return c | 0x20 - 'a' + 10
}
