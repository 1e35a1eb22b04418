package main

import (
	"os"
	"slices"
	"strconv"
	"strings"
)

// result is one line of output. Ratio is value over reference, round by round;
// Better says which way a better figure lies.
type result struct {
	Name      string             `json:"name"`
	Value     float64            `json:"value"`
	Unit      string             `json:"unit"`
	Reference float64            `json:"reference"`
	Ratio     float64            `json:"ratio"`
	Better    string             `json:"better,omitempty"`  // higher or lower
	Against   string             `json:"against,omitempty"` // what the reference is
	Goal      string             `json:"goal,omitempty"`    // of the ratio
	Rounds    int                `json:"rounds,omitempty"`
	More      map[string]float64 `json:"more,omitempty"` // further figures, the unit in the name
	Load1     float64            `json:"load1"`          // the machine's load average when it was printed
	Skipped   string             `json:"skipped,omitempty"`
}

const (
	higher = "higher"
	lower  = "lower"
)

// short keeps four digits, more are noise.
func short(f float64) float64 {
	s, _ := strconv.ParseFloat(strconv.FormatFloat(f, 'g', 4, 64), 64)
	return s
}

func (r result) shortened() result {
	r.Value, r.Reference, r.Ratio = short(r.Value), short(r.Reference), short(r.Ratio)
	for k, v := range r.More {
		r.More[k] = short(v)
	}
	return r
}

func median[T int64 | float64](v []T) T {
	if len(v) == 0 {
		return 0
	}
	s := slices.Sorted(slices.Values(v))
	return s[len(s)/2]
}

// load1 is the load average of the last minute; 0 where it cannot be told.
func load1() float64 {
	b, _ := os.ReadFile("/proc/loadavg")
	first, _, _ := strings.Cut(string(b), " ")
	f, _ := strconv.ParseFloat(first, 64)
	return f
}
