package control

import (
	"math"
	"testing"
	"time"
)

// Ages are as a node says them: none is of the future, and none overflows into it.
// contract: N-05
func TestAgeOf(t *testing.T) {
	for _, c := range []struct {
		n    int64
		unit time.Duration
		want time.Duration
	}{
		{5, time.Second, 5 * time.Second}, {-5, time.Second, 0}, {math.MinInt64, time.Second, 0},
		{math.MaxInt64, time.Second, maxAge}, {math.MaxInt64, time.Millisecond, maxAge},
	} {
		if got := ageOf(c.n, c.unit); got != c.want {
			t.Errorf("%d of %v: %v, want %v", c.n, c.unit, got, c.want)
		}
	}
}
