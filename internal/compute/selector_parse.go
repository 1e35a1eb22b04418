package compute

import (
	"fmt"
	"strconv"
	"strings"
)

// Bounds of what ParseSelectors reads.
const (
	MaxSelectors     = 32
	MaxSelectorsText = 8192 // bytes
)

// ParseSelectors reads conditions on labels, which all have to hold:
//
//	capability.sec.tpm                      reported
//	!capability.sec.tpm                     not reported
//	capability.sec.tpm=true                 reported, and equal
//	pool!=batch                             not reported, or another
//	pool in (web, batch)                    reported, and one of them
//	pool not in (web, batch)                not reported, or none of them
//	capability.gpu.nvidia-l40s>=2           a countable of 2 units or more
//
// Conditions are separated by commas. A key or value with other characters than
// A–Z a–z 0–9 . _ - / : + @ is written in double quotes, with Go's escapes. The
// kind of a key decides what it may be compared with.
func ParseSelectors(text string) ([]Selector, error) {
	if len(text) > MaxSelectorsText {
		return nil, fmt.Errorf("selectors have at most %d bytes, these have %d", MaxSelectorsText, len(text))
	}
	p := selectorParser{text: text}
	var list []Selector
	for p.space(); !p.done(); {
		if len(list) == MaxSelectors {
			return nil, fmt.Errorf("there may be at most %d selectors", MaxSelectors)
		}
		s, err := p.selector()
		if err != nil {
			return nil, err
		}
		list = append(list, s)
		if p.done() {
			break
		}
		if !p.take(",") {
			return nil, p.expected("a comma between two selectors")
		}
		if p.done() {
			return nil, p.expected("a selector after the comma")
		}
	}
	return list, nil
}

type selectorParser struct {
	text string
	at   int
}

func (p *selectorParser) done() bool { return p.at >= len(p.text) }

func (p *selectorParser) space() {
	for !p.done() && (p.text[p.at] == ' ' || p.text[p.at] == '\t') {
		p.at++
	}
}

// take steps over token and the space behind it, where it comes next.
func (p *selectorParser) take(token string) bool {
	if !strings.HasPrefix(p.text[p.at:], token) {
		return false
	}
	p.at += len(token)
	p.space()
	return true
}

// expected is the error for what stands at the current place.
func (p *selectorParser) expected(what string) error {
	found := "the end"
	if !p.done() {
		found = strconv.Quote(excerpt(p.text[p.at:]))
	}
	return fmt.Errorf("at character %d of the selectors: expected %s, found %s", p.at+1, what, found)
}

func excerpt(s string) string {
	const most = 20
	if len(s) > most {
		return s[:most] + "…"
	}
	return s
}

func (p *selectorParser) selector() (Selector, error) {
	missing := p.take("!")
	key, err := p.word("a label's key")
	if err != nil {
		return Selector{}, err
	}
	s := Selector{Key: key, Op: OpExists}
	switch {
	case missing:
		s.Op = OpMissing
		return s, nil
	case p.take(">="):
		return p.atLeast(s)
	case p.take("!="):
		s.Op = OpNotIn
	case p.take("=="), p.take("="):
		s.Op = OpIn
	case p.done(), p.text[p.at] == ',':
		return s, nil
	default:
		return p.oneOf(s)
	}
	v, err := p.value(key)
	s.Values = []string{v}
	return s, err
}

func (p *selectorParser) atLeast(s Selector) (Selector, error) {
	if LabelKindOf(s.Key) != KindCountable {
		return s, fmt.Errorf("%s is not countable, so >= cannot be asked of it; compare it with = or in (…)", quoteSelector(s.Key))
	}
	v, err := p.value(s.Key)
	s.Op = OpAtLeast
	s.Min, _ = CountableUnits(v)
	return s, err
}

func (p *selectorParser) oneOf(s Selector) (Selector, error) {
	const operators = `=, !=, >=, "in (…)", "not in (…)" or a comma after the key`
	start := p.at
	s.Op = OpIn
	word, err := p.word(operators)
	if err == nil && word == "not" {
		s.Op = OpNotIn
		word, err = p.word(operators)
	}
	if err != nil || word != "in" {
		p.at = start
		return s, p.expected(operators)
	}
	if !p.take("(") {
		return s, p.expected(`"(" after in`)
	}
	for {
		v, err := p.value(s.Key)
		if err != nil {
			return s, err
		}
		s.Values = append(s.Values, v)
		if p.take(")") {
			return s, nil
		}
		if !p.take(",") {
			return s, p.expected(`"," or ")" in the list of values`)
		}
	}
}

// value reads a value that the kind of key can have.
func (p *selectorParser) value(key string) (string, error) {
	v, err := p.word("a value for " + quoteSelector(key))
	switch {
	case err != nil || readable(key, v):
		return v, err
	case LabelKindOf(key) == KindBoolean:
		return "", fmt.Errorf("%s is true or false, not %q", key, excerpt(v))
	}
	return "", fmt.Errorf("%s is a whole number of units, 0 or more, not %q", key, excerpt(v))
}

// word reads a bare or quoted word and the space behind it.
func (p *selectorParser) word(what string) (string, error) {
	rest := p.text[p.at:]
	if strings.HasPrefix(rest, `"`) {
		quoted, err := strconv.QuotedPrefix(rest)
		if err != nil {
			return "", p.expected("a closing quote, and in quotes only Go's escapes")
		}
		p.at += len(quoted)
		p.space()
		return strconv.Unquote(quoted)
	}
	n := len(rest) - len(strings.TrimLeft(rest, bareSelector))
	if n == 0 {
		return "", p.expected(what)
	}
	p.at += n
	p.space()
	return rest[:n], nil
}
