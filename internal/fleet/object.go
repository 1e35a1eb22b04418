package fleet

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/outcrop-cloud/outcrop/internal/fault"
	"github.com/outcrop-cloud/outcrop/internal/nearest"
)

// problems gathers all that is wrong with a body.
type problems struct{ fields []fault.Field }

func (p *problems) add(path, format string, args ...any) {
	p.fields = append(p.fields, fault.Field{Path: path, Message: fmt.Sprintf(format, args...)})
}

func (p *problems) err() error {
	if len(p.fields) == 0 {
		return nil
	}
	return invalidBody(p.fields)
}

// object reads the fields of one JSON object. A nil object has no fields and
// reports no problems, so that a reader need not stop at a missing one.
type object struct {
	path   string // with a trailing dot, empty at the top
	fields map[string]jsontext.Value
	asked  []string
	p      *problems
}

const (
	required = true
	optional = false
)

// parse reads a body that must be one JSON object without repeated names.
func parse(body []byte) (*object, *problems) {
	p := &problems{}
	o := &object{p: p}
	err := json.Unmarshal(body, &o.fields)
	switch {
	case err != nil && (len(body) == 0 || jsontext.Value(body).IsValid()):
		p.add("", "must be a JSON object")
	case err != nil:
		p.add("", "is not valid JSON: %s", jsonCause(err))
	case o.fields == nil:
		p.add("", "must be a JSON object, not null")
	default:
		return o, p
	}
	return nil, p
}

// jsonCause says what is wrong and where, without a quote of the body.
func jsonCause(err error) string {
	if errors.Is(err, jsontext.ErrDuplicateName) {
		return "a name stands twice in one object"
	}
	var syntactic *jsontext.SyntacticError
	if errors.As(err, &syntactic) {
		return fmt.Sprintf("it breaks off or goes wrong near byte %d", syntactic.ByteOffset)
	}
	return "it cannot be read"
}

// take returns the field; a missing one that is needed is a problem.
func (o *object) take(name string, need bool) (jsontext.Value, bool) {
	if o == nil {
		return nil, false
	}
	o.asked = append(o.asked, name)
	v, ok := o.fields[name]
	if !ok && need {
		o.p.add(o.path+name, "is required")
	}
	return v, ok
}

// noOthers reports every field that nobody asked for, with the nearest one that
// there is (contract E-05).
func (o *object) noOthers() {
	if o == nil {
		return
	}
	var others []string
	for name := range o.fields {
		if !slices.Contains(o.asked, name) {
			others = append(others, name)
		}
	}
	slices.Sort(others)
	for _, name := range others {
		hint := ""
		if n := nearest.Nearest(name, o.asked); n != "" {
			hint = "; did you mean " + n + "?"
		}
		o.p.add(o.path+name, "is not known%s", hint)
	}
}

// text reads a string of min to max characters (Unicode code points, as JSON
// Schema counts them).
func (o *object) text(name string, min, max int, need bool) (string, bool) {
	v, ok := o.take(name, need)
	if !ok {
		return "", false
	}
	return o.p.text(o.path+name, v, min, max)
}

func (p *problems) text(path string, v jsontext.Value, min, max int) (string, bool) {
	s, ok := unquote(v)
	n := utf8.RuneCountInString(s)
	if !ok || n < min || n > max {
		p.add(path, "must be a string of %d to %d characters", min, max)
		return "", false
	}
	return s, true
}

func unquote(v jsontext.Value) (string, bool) {
	if v.Kind() != '"' {
		return "", false
	}
	b, err := jsontext.AppendUnquote(nil, v)
	return string(b), err == nil
}

// name is a text that a database can hold as a key: PostgreSQL's texts cannot
// hold U+0000.
func (o *object) name(name string, max int, need bool) (string, bool) {
	s, ok := o.text(name, 1, max, need)
	if ok && strings.ContainsRune(s, 0) {
		o.p.add(o.path+name, "must not contain the character U+0000")
		return "", false
	}
	return s, ok
}

// integer reads a whole number. 30.0 and 3e1 are whole, as they are to JSON
// Schema.
func (o *object) integer(name string, min, max int64, need bool) (int64, bool) {
	v, ok := o.take(name, need)
	if !ok {
		return 0, false
	}
	n, ok := whole(v)
	if !ok || n < min || n > max {
		o.p.add(o.path+name, "must be a whole number %s", rangeText(min, max))
		return 0, false
	}
	return n, true
}

func rangeText(min, max int64) string {
	if max == math.MaxInt64 {
		return fmt.Sprintf("of at least %d", min)
	}
	return fmt.Sprintf("from %d to %d", min, max)
}

func whole(v jsontext.Value) (int64, bool) {
	if v.Kind() != '0' {
		return 0, false
	}
	if n, err := strconv.ParseInt(string(v), 10, 64); err == nil {
		return n, true
	}
	const exact = 1 << 53 // above it a float64 skips whole numbers
	f, err := strconv.ParseFloat(string(v), 64)
	if err != nil || f != math.Trunc(f) || math.Abs(f) > exact {
		return 0, false
	}
	return int64(f), true
}

func (o *object) boolean(name string, need bool) (value, ok bool) {
	v, ok := o.take(name, need)
	if !ok {
		return false, false
	}
	switch v.Kind() {
	case 't':
		return true, true
	case 'f':
		return false, true
	}
	o.p.add(o.path+name, "must be true or false")
	return false, false
}

// moment reads a date-time (RFC 3339 section 5.6).
func (o *object) moment(name string, need bool) (time.Time, bool) {
	v, ok := o.take(name, need)
	if !ok {
		return time.Time{}, false
	}
	s, ok := unquote(v)
	var t time.Time
	if !ok || t.UnmarshalText([]byte(strings.ToUpper(s))) != nil {
		o.p.add(o.path+name, "must be a date-time like 2026-03-01T12:00:00Z")
		return time.Time{}, false
	}
	return t.UTC(), true
}

// object reads a nested object.
func (o *object) object(name string, need bool) (*object, bool) {
	v, ok := o.take(name, need)
	if !ok {
		return nil, false
	}
	in := &object{path: o.path + name + ".", p: o.p}
	if v.Kind() != '{' || json.Unmarshal(v, &in.fields) != nil {
		o.p.add(o.path+name, "must be an object")
		return nil, false
	}
	return in, true
}

// list reads an array of min to max elements, each by one.
func (o *object) list(name string, min, max int, need bool, one func(path string, v jsontext.Value)) bool {
	v, ok := o.take(name, need)
	if !ok {
		return false
	}
	var all []jsontext.Value
	if v.Kind() != '[' || json.Unmarshal(v, &all) != nil || len(all) < min || len(all) > max {
		o.p.add(o.path+name, "must be an array of %d to %d elements", min, max)
		return false
	}
	for i, e := range all {
		one(o.path+name+"."+strconv.Itoa(i), e)
	}
	return true
}
