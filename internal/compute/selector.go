package compute

import (
	"slices"
	"strconv"
	"strings"
)

// SelectorOp is what a selector asks of a label.
type SelectorOp string

const (
	OpIn      SelectorOp = "in"       // reported, and one of Values
	OpNotIn   SelectorOp = "not in"   // not reported, or none of Values
	OpExists  SelectorOp = "exists"   // reported
	OpMissing SelectorOp = "missing"  // not reported
	OpAtLeast SelectorOp = "at least" // a countable of Min units or more
)

// Selector is one condition on the labels of a node.
type Selector struct {
	Key    string
	Op     SelectorOp
	Values []string // of OpIn and OpNotIn
	Min    int64    // of OpAtLeast
}

// Matches reports whether labels meet the condition. An absent label is not
// reported: it equals nothing, is not false and not zero (contract N-14).
func (s *Selector) Matches(labels map[string]string) bool {
	v, ok := labels[s.Key]
	switch s.Op {
	case OpIn:
		return ok && slices.Contains(s.Values, v)
	case OpNotIn:
		return !ok || !slices.Contains(s.Values, v)
	case OpExists:
		return ok
	case OpMissing:
		return !ok
	case OpAtLeast:
		n, whole := CountableUnits(v)
		return ok && whole && n >= s.Min
	}
	return false
}

// String is the condition as ParseSelectors reads it.
func (s Selector) String() string {
	key := quoteSelector(s.Key)
	switch s.Op {
	case OpExists:
		return key
	case OpMissing:
		return "!" + key
	case OpAtLeast:
		return key + ">=" + strconv.FormatInt(s.Min, 10)
	case OpIn, OpNotIn:
		values := make([]string, len(s.Values))
		for i, v := range s.Values {
			values[i] = quoteSelector(v)
		}
		switch {
		case len(values) != 1:
			return key + " " + string(s.Op) + " (" + strings.Join(values, ", ") + ")"
		case s.Op == OpIn:
			return key + "=" + values[0]
		default:
			return key + "!=" + values[0]
		}
	}
	return key + " " + string(s.Op)
}

// bareSelector are the characters of a key or value that needs no quotes.
const bareSelector = base62 + "._-/:+@"

// quoteSelector puts a key or value in quotes where it would not be read back as
// it is.
func quoteSelector(s string) string {
	if s == "" || strings.Trim(s, bareSelector) != "" {
		return strconv.Quote(s)
	}
	return s
}
