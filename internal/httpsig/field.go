package httpsig

import (
	"encoding/base64"
	"errors"
	"fmt"
	"net/textproto"
	"regexp"
	"strings"

	"github.com/dunglas/httpsfv"
)

var errNoField = errors.New("the message has no such field")

// lines returns a field's lines and whether the field is there at all.
func (m *Message) lines(name string, trailer bool) ([]string, bool) {
	from := m.Header
	if trailer {
		from = m.Trailer
	}
	lines := from[canonicalName(name)]
	if len(lines) == 0 && name == "host" && !trailer && m.Authority != "" {
		// net/http takes Host out of the header.
		return []string{m.Authority}, true
	}
	return lines, len(lines) > 0
}

// canonicalName spares the hot path the allocation.
func canonicalName(name string) string {
	switch name {
	case "content-digest":
		return headerDigest
	case "content-type":
		return "Content-Type"
	}
	return textproto.CanonicalMIMEHeaderKey(name)
}

// appendField is the value of a field component (RFC 9421 section 2.1).
func appendField(dst []byte, c Component, m *Message) ([]byte, error) {
	lines, ok := m.lines(c.name, c.flags&flagTR != 0)
	if !ok {
		return nil, errNoField
	}
	switch {
	case c.flags&flagBS != 0:
		return appendWrapped(dst, lines), nil
	case c.flags&flagKey != 0:
		return appendMember(dst, lines, c.arg)
	case c.flags&flagSF != 0:
		return appendStructured(dst, lines, m.fieldType(c.name))
	}
	for i, line := range lines {
		if i > 0 {
			dst = append(dst, ", "...)
		}
		dst = append(dst, unfold(line)...)
	}
	return dst, nil
}

// appendWrapped is bs: each line a byte sequence, so that commas inside a line
// and between lines stay apart (RFC 9421 section 2.1.3).
func appendWrapped(dst []byte, lines []string) []byte {
	for i, line := range lines {
		if i > 0 {
			dst = append(dst, ", "...)
		}
		dst = append(dst, ':')
		dst = base64.StdEncoding.AppendEncode(dst, []byte(unfold(line)))
		dst = append(dst, ':')
	}
	return dst
}

// appendMember is key: one member of a dictionary, serialized anew (RFC 9421
// section 2.1.2). A key that the field holds twice is refused although
// structured fields take the last: readers that take the first would see
// something that nobody signed.
func appendMember(dst []byte, lines []string, key string) ([]byte, error) {
	dict, err := parseDictionary(unfolded(lines))
	if err != nil {
		return nil, err
	}
	member, ok := dict.Get(key)
	if !ok {
		return nil, fmt.Errorf("the dictionary has no member %.80q", key)
	}
	return appendMarshaled(dst, member)
}

// appendStructured is sf: the whole field, serialized anew (RFC 9421 section
// 2.1.1).
func appendStructured(dst []byte, lines []string, t FieldType) ([]byte, error) {
	var value httpsfv.StructuredFieldValue
	var err error
	switch t {
	case DictionaryField:
		value, err = parseDictionary(unfolded(lines))
	case ListField:
		value, err = parseList(unfolded(lines))
	case ItemField:
		value, err = parseItem(unfolded(lines))
	default:
		return nil, errors.New("the field is not known to be a structured field; name its type in Message.Fields")
	}
	if err != nil {
		return nil, err
	}
	return appendMarshaled(dst, value)
}

func appendMarshaled(dst []byte, v httpsfv.StructuredFieldValue) ([]byte, error) {
	text, err := httpsfv.Marshal(v)
	return append(dst, text...), err
}

func unfolded(lines []string) []string {
	out := make([]string, len(lines))
	for i, line := range lines {
		out[i] = unfold(line)
	}
	return out
}

// folding is obs-fold (RFC 9112 section 5.2).
var folding = regexp.MustCompile("[ \t]*\r?\n[ \t]+")

// unfold trims a line and puts one space for each obsolete line folding. A line
// break that is no folding stays, and fails the base.
func unfold(line string) string {
	if strings.IndexByte(line, '\n') >= 0 {
		line = folding.ReplaceAllString(line, " ")
	}
	return strings.Trim(line, " \t")
}
