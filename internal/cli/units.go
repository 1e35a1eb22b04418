package cli

import (
	"fmt"
	"math"
	"math/big"
	"regexp"
	"strconv"
	"strings"
	"time"
)

const unitLetters = "KMGT"

var sizePattern = regexp.MustCompile(`^([0-9]{1,19}(?:\.[0-9]{1,19})?) ?([A-Za-z]*)$`)

// parseSize reads a size in bytes: a number alone, or with KiB, MiB, GiB or TiB
// (K, M, G and T mean the same). The result is exact: 1.5GiB is a size, 0.1GiB
// is no whole number of bytes and thus an error.
func parseSize(s string) (int64, error) {
	m := sizePattern.FindStringSubmatch(strings.TrimSpace(s))
	if m == nil {
		return 0, fmt.Errorf("%q is not a size; write it like 512MiB or 8GiB", s)
	}
	unit, err := unitBytes(m[2])
	if err != nil {
		return 0, fmt.Errorf("%q is not a size: %w", s, err)
	}
	n, _ := new(big.Rat).SetString(m[1])
	n.Mul(n, new(big.Rat).SetInt64(unit))
	switch {
	case !n.IsInt():
		return 0, fmt.Errorf("%q is not a whole number of bytes; use a smaller unit", s)
	case !n.Num().IsInt64():
		return 0, fmt.Errorf("%q is too large; the largest size is %d bytes", s, int64(math.MaxInt64))
	}
	return n.Num().Int64(), nil
}

func unitBytes(unit string) (int64, error) {
	u := strings.ToUpper(unit)
	if u == "" || u == "B" {
		return 1, nil
	}
	power := strings.IndexByte(unitLetters, u[0]) + 1
	if power > 0 {
		switch u[1:] {
		case "", "IB":
			return 1 << (10 * power), nil
		case "B":
			return 0, fmt.Errorf("write %ciB, which is 1024-based, instead of %s", u[0], unit)
		}
	}
	return 0, fmt.Errorf("there is no unit %q; use KiB, MiB, GiB or TiB", unit)
}

// formatSize writes bytes for a person: exact where it can be, else with one decimal.
func formatSize(n int64) string {
	unit, suffix := int64(1), "B"
	for i := range len(unitLetters) {
		// A value that would round up to 1024.0 belongs to the next unit.
		next := int64(1) << (10 * (i + 1))
		if n < next-next/20480 {
			break
		}
		unit, suffix = next, string(unitLetters[i])+"iB"
	}
	if n%unit == 0 {
		return strconv.FormatInt(n/unit, 10) + suffix
	}
	return strconv.FormatFloat(float64(n)/float64(unit), 'f', 1, 64) + suffix
}

// age is how long ago t was, roughly: 45s, 3m, 5h, 12d, 2y.
func age(t, now time.Time) string {
	if t.IsZero() {
		return ""
	}
	return rough(max(now.Sub(t), 0))
}

func rough(d time.Duration) string {
	const day = 24 * time.Hour
	switch {
	case d < 2*time.Minute:
		return fmt.Sprintf("%ds", d/time.Second)
	case d < 2*time.Hour:
		return fmt.Sprintf("%dm", d/time.Minute)
	case d < 2*day:
		return fmt.Sprintf("%dh", d/time.Hour)
	case d < 2*365*day:
		return fmt.Sprintf("%dd", d/day)
	}
	return fmt.Sprintf("%dy", d/(365*day))
}

// moment is a time in full, with how long ago it was.
func moment(t, now time.Time) string {
	if t.IsZero() {
		return ""
	}
	when := t.UTC().Format("2006-01-02 15:04:05Z")
	if t.After(now) {
		return when + " (in " + rough(t.Sub(now)) + ")"
	}
	return when + " (" + age(t, now) + " ago)"
}

// parseDuration is time.ParseDuration with days (30d).
func parseDuration(s string) (time.Duration, error) {
	if days, ok := strings.CutSuffix(s, "d"); ok {
		n, err := strconv.ParseUint(days, 10, 16)
		if err == nil && n > 0 {
			return time.Duration(n) * 24 * time.Hour, nil
		}
	}
	d, err := time.ParseDuration(s)
	if err != nil || d <= 0 {
		return 0, fmt.Errorf("%q is not a duration; write it like 30s, 12h or 30d", s)
	}
	return d, nil
}

// parsePairs reads key=value words.
func parsePairs(flag string, words []string) (map[string]string, error) {
	if len(words) == 0 {
		return nil, nil
	}
	pairs := make(map[string]string, len(words))
	for _, w := range words {
		k, v, ok := strings.Cut(w, "=")
		if !ok || k == "" {
			return nil, usagef("--%s is key=value, not %q", flag, w)
		}
		if _, twice := pairs[k]; twice {
			return nil, usagef("--%s names %q twice", flag, k)
		}
		pairs[k] = v
	}
	return pairs, nil
}

// wholeSeconds reads a duration that is a whole number of seconds, 0 as well.
func wholeSeconds(flag, s string) (int64, error) {
	if s == "0" || s == "0s" {
		return 0, nil
	}
	d, err := parseDuration(s)
	if err != nil {
		return 0, usagef("--%s: %s", flag, err)
	}
	if d%time.Second != 0 {
		return 0, usagef("--%s: %s is no whole number of seconds", flag, s)
	}
	return int64(d / time.Second), nil
}
