package limit_test

import (
	"testing"
	"time"

	"github.com/outcrop-cloud/outcrop/internal/limit"
)

func TestLimiter(t *testing.T) {
	now := time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)
	l := limit.New(limit.Rate{Burst: 2, PerSecond: 0.5}, func() time.Time { return now })
	take := func(name string, want time.Duration) {
		t.Helper()
		if got := l.Take(name); got != want {
			t.Errorf("%s waits %v, want %v", name, got, want)
		}
	}
	take("a", 0)
	take("a", 0)
	take("a", 2*time.Second)
	take("b", 0) // each name by itself
	if l.Spent("a") != 2*time.Second || l.Spent("b") != 0 || l.Spent("c") != 0 {
		t.Error("what is left is told wrongly")
	}
	now = now.Add(time.Second)
	take("a", time.Second)
	l.Give("a")
	take("a", 0)
	now = now.Add(time.Hour)
	take("c", 0) // sweeps: nothing is remembered of a and b that a new bucket does not say
	take("a", 0)
	take("a", 0)
	take("a", 2*time.Second)
	now = now.Add(-time.Minute) // a clock that goes back gives nothing
	take("a", 2*time.Second)
	if limit.TooSoon(1500*time.Millisecond).RetryAfter() != 2 {
		t.Error("the header is cut short")
	}
}
