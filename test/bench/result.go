package main

import (
	"fmt"
	"io"
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
	More      map[string]float64 `json:"more,omitempty"`  // further figures, the unit in the name
	Steps     []share            `json:"steps,omitempty"` // of the value, one after the other
	Load1     float64            `json:"load1"`           // the machine's load average when it was printed
	Skipped   string             `json:"skipped,omitempty"`
}

// share is one step of a whole.
type share struct {
	Step    string  `json:"step"`
	Ms      float64 `json:"ms"`
	Percent float64 `json:"percent"`
}

// table prints the steps for people.
func (r result) table(to io.Writer) {
	for _, s := range r.Steps {
		fmt.Fprintf(to, "  %-52s %9.1f ms %6.1f %%\n", s.Step, s.Ms, s.Percent)
	}
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
	for i, s := range r.Steps {
		r.Steps[i].Ms, r.Steps[i].Percent = short(s.Ms), short(s.Percent)
	}
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
