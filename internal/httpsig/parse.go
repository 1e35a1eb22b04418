package httpsig

import (
	"encoding/base64"
	"errors"
	"fmt"
	"strings"

	"github.com/dunglas/httpsfv"
)

// Bounds on what is parsed, far above what any real message holds.
const (
	maxField      = 8 << 10 // bytes of one structured field, all lines together
	maxComponents = 64
)

var (
	errRepeated = errors.New("a structured field holds the same key twice")
	errBase64   = errors.New("a byte sequence is not canonical base64")
	errTooLong  = fmt.Errorf("a structured field is longer than %d bytes", maxField)
)

// parseDictionary parses strictly: RFC 9651, and no key or parameter twice
// (where RFC 9651 lets the last one win), and base64 only in the one form that
// an encoder writes. Lines are joined first (RFC 9651 section 4.2).
func parseDictionary(lines []string) (*httpsfv.Dictionary, error) {
	text, err := joined(lines)
	if err != nil {
		return nil, err
	}
	dict, err := httpsfv.UnmarshalDictionary([]string{text})
	if err != nil {
		return nil, err
	}
	params := 0
	for _, name := range dict.Names() {
		member, _ := dict.Get(name)
		params += countParams(member)
	}
	return dict, lossless(text, len(dict.Names()), params)
}

func parseList(lines []string) (httpsfv.List, error) {
	text, err := joined(lines)
	if err != nil {
		return nil, err
	}
	list, err := httpsfv.UnmarshalList([]string{text})
	if err != nil {
		return nil, err
	}
	params := 0
	for _, member := range list {
		params += countParams(member)
	}
	return list, lossless(text, len(list), params)
}

func parseItem(lines []string) (httpsfv.Item, error) {
	text, err := joined(lines)
	if err != nil {
		return httpsfv.Item{}, err
	}
	item, err := httpsfv.UnmarshalItem([]string{text})
	if err != nil {
		return httpsfv.Item{}, err
	}
	return item, lossless(text, 1, countParams(item))
}

func joined(lines []string) (string, error) {
	size := 0
	for _, line := range lines {
		size += len(line) + len(", ")
	}
	if size > maxField {
		return "", errTooLong
	}
	if len(lines) == 1 {
		return lines[0], nil
	}
	return strings.Join(lines, ", "), nil
}

func countParams(m httpsfv.Member) int {
	inner, ok := m.(httpsfv.InnerList)
	if !ok {
		return len(m.(httpsfv.Item).Params.Names())
	}
	n := len(inner.Params.Names())
	for _, item := range inner.Items {
		n += len(item.Params.Names())
	}
	return n
}

// lossless compares a field's text with what the parser kept of it. The text is
// known to be well-formed, so counting separators outside strings is enough to
// see that a repeated key was dropped.
func lossless(text string, members, params int) error {
	commas := 0
	for i := 0; i < len(text); i++ {
		switch c := text[i]; {
		case c == ',':
			commas++
		case c == ';':
			params--
		case c == '"':
			i = stringEnd(text, i)
		case c == ':':
			end := i + 1 + strings.IndexByte(text[i+1:], ':')
			if !canonicalBase64(text[i+1 : end]) {
				return errBase64
			}
			i = end
		case isTchar(c):
			// A key, token or number: a token may go on with ":" and "/".
			for i+1 < len(text) && (isTchar(text[i+1]) || text[i+1] == ':' || text[i+1] == '/') {
				i++
			}
		}
	}
	if params != 0 || members > 0 && commas != members-1 {
		return errRepeated
	}
	return nil
}

// stringEnd is the index of the quote that closes the string opened at i. In a
// display string (%"…") a backslash escapes nothing.
func stringEnd(text string, i int) int {
	display := i > 0 && text[i-1] == '%'
	for i++; i < len(text) && text[i] != '"'; i++ {
		if text[i] == '\\' && !display {
			i++
		}
	}
	return i
}

var strictBase64 = base64.StdEncoding.Strict()

// canonicalBase64 looks at the last four characters of text that is known to
// decode: only there can unused bits be set.
func canonicalBase64(s string) bool {
	if len(s) == 0 {
		return true
	}
	var last [3]byte
	_, err := strictBase64.Decode(last[:], []byte(s[len(s)-4:]))
	return err == nil
}
