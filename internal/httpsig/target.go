package httpsig

import (
	"errors"
	"strings"
)

var (
	errTarget    = errors.New("the request target is not one that RFC 9112 section 3.2 allows")
	errNoPath    = errors.New("this form of request target has no path or query")
	errAuthority = errors.New("the authority is missing or malformed")
	errScheme    = errors.New("the scheme is missing or malformed")
)

// target is a request target taken apart; every part is a piece of the bytes
// received.
type target struct {
	scheme, authority string
	path              string // empty only in absolute form
	query             string // without "?"
	hasPath           bool   // false for "*" and authority form
	absolute          bool
}

// target splits RawTarget by its form (RFC 9112 section 3.2).
func (m *Message) target() (target, error) {
	raw := m.RawTarget
	if raw == "" || !isTargetText(raw) {
		return target{}, errTarget
	}
	t := target{scheme: m.Scheme, authority: m.Authority}
	switch {
	case raw[0] == '/':
		t.hasPath = true
		t.path, t.query, _ = strings.Cut(raw, "?")
	case raw == "*":
	case m.Method == "CONNECT":
		t.authority = raw
	default:
		scheme, rest, ok := strings.Cut(raw, "://")
		if !ok || !isScheme(scheme) {
			return target{}, errTarget
		}
		end := strings.IndexAny(rest, "/?")
		if end < 0 {
			end = len(rest)
		}
		t.scheme, t.authority = scheme, rest[:end]
		t.path, t.query, _ = strings.Cut(rest[end:], "?")
		t.hasPath, t.absolute = true, true
	}
	return t, nil
}

// isTargetText says whether s has only the bytes that a target may be sent
// with. A fragment is never sent, so "#" means that two parsers would differ.
func isTargetText(s string) bool {
	for i := range len(s) {
		if c := s[i]; c <= ' ' || c >= 0x7f || c == '#' {
			return false
		}
	}
	return true
}

func isScheme(s string) bool {
	for i := range len(s) {
		c := s[i] | 0x20
		letter := 'a' <= c && c <= 'z'
		if !letter && (i == 0 || !isDigit(s[i]) && s[i] != '+' && s[i] != '-' && s[i] != '.') {
			return false
		}
	}
	return s != ""
}

// appendScheme is @scheme: lower case (RFC 9421 section 2.2.4).
func (t target) appendScheme(dst []byte) ([]byte, error) {
	if !isScheme(t.scheme) {
		return nil, errScheme
	}
	return appendLower(dst, t.scheme), nil
}

// appendAuthority is @authority: lower case, without the scheme's default port
// (RFC 9421 section 2.2.3, RFC 9110 section 4.2.3).
func (t target) appendAuthority(dst []byte) ([]byte, error) {
	if t.authority == "" || !isTargetText(t.authority) || strings.ContainsAny(t.authority, "@/?") {
		return nil, errAuthority
	}
	host, port := t.authority, ""
	if i := strings.LastIndexByte(host, ':'); i > strings.LastIndexByte(host, ']') {
		host, port = host[:i], host[i+1:]
	}
	dst = appendLower(dst, host)
	if port == "" || port == defaultPort(t.scheme) {
		return dst, nil
	}
	return append(append(dst, ':'), port...), nil
}

func defaultPort(scheme string) string {
	switch {
	case strings.EqualFold(scheme, "https"):
		return "443"
	case strings.EqualFold(scheme, "http"):
		return "80"
	}
	return ""
}

// appendURI is @target-uri (RFC 9421 section 2.2.2), put together as RFC 9112
// section 3.3 says: "*" and CONNECT have an empty path.
func (t target) appendURI(dst []byte, raw string) ([]byte, error) {
	if t.absolute {
		return append(dst, raw...), nil
	}
	dst, err := t.appendScheme(dst)
	if err != nil {
		return nil, err
	}
	if t.authority == "" || !isTargetText(t.authority) {
		return nil, errAuthority
	}
	dst = append(append(dst, "://"...), t.authority...)
	if t.hasPath {
		dst = append(dst, raw...)
	}
	return dst, nil
}

// appendPath is @path: percent-encoded octets stay as they are, an empty path
// is "/" (RFC 9421 section 2.2.6).
func (t target) appendPath(dst []byte) ([]byte, error) {
	switch {
	case !t.hasPath:
		return nil, errNoPath
	case t.path == "":
		return append(dst, '/'), nil
	}
	return append(dst, t.path...), nil
}

// appendQuery is @query: "?" and the query as received, "?" alone without one
// (RFC 9421 section 2.2.7). Contract row R-21.
func (t target) appendQuery(dst []byte) ([]byte, error) {
	if !t.hasPath {
		return nil, errNoPath
	}
	return append(append(dst, '?'), t.query...), nil
}

func appendLower(dst []byte, s string) []byte {
	for i := range len(s) {
		c := s[i]
		if 'A' <= c && c <= 'Z' {
			c |= 0x20
		}
		dst = append(dst, c)
	}
	return dst
}

func isDigit(c byte) bool { return '0' <= c && c <= '9' }
