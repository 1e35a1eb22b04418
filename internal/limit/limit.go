// Package limit is a token bucket for each name: how often one key or one source
// may do something.
package limit

import (
	"math"
	"sync"
	"time"
)

// Rate is how many requests are let through: Burst at once, PerSecond in the
// long run.
type Rate struct{ Burst, PerSecond float64 }

// Limiter is a bucket for each name. It is safe for concurrent use.
type Limiter struct {
	rate Rate
	now  func() time.Time

	mu      sync.Mutex
	buckets map[string]*bucket
	swept   time.Time
}

// bucket holds what is left at a moment.
type bucket struct {
	left float64
	at   time.Time
}

// New is a limiter with full buckets.
func New(r Rate, now func() time.Time) *Limiter {
	return &Limiter{rate: r, now: now, buckets: map[string]*bucket{}, swept: now()}
}

// at brings a bucket up to now.
func (l *Limiter) at(b *bucket, now time.Time) float64 {
	if gone := now.Sub(b.at); gone > 0 {
		b.left = min(l.rate.Burst, b.left+gone.Seconds()*l.rate.PerSecond)
		b.at = now
	}
	return b.left
}

// Take takes one and answers zero, or how long to wait for the next.
func (l *Limiter) Take(name string) (wait time.Duration) {
	now := l.now()
	l.mu.Lock()
	defer l.mu.Unlock()
	b := l.buckets[name]
	if b == nil {
		l.sweep(now)
		b = &bucket{left: l.rate.Burst, at: now}
		l.buckets[name] = b
	}
	if l.at(b, now) < 1 {
		return time.Duration((1 - b.left) / l.rate.PerSecond * float64(time.Second))
	}
	b.left--
	return 0
}

// Give gives one back.
func (l *Limiter) Give(name string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if b := l.buckets[name]; b != nil {
		b.left = min(l.rate.Burst, b.left+1)
	}
}

// Spent answers how long to wait when nothing is left, without taking.
func (l *Limiter) Spent(name string) (wait time.Duration) {
	now := l.now()
	l.mu.Lock()
	defer l.mu.Unlock()
	if b := l.buckets[name]; b != nil && l.at(b, now) < 1 {
		return time.Duration((1 - b.left) / l.rate.PerSecond * float64(time.Second))
	}
	return 0
}

// sweep drops the buckets that are full again: they say no more than new ones.
func (l *Limiter) sweep(now time.Time) {
	full := time.Duration(l.rate.Burst / l.rate.PerSecond * float64(time.Second))
	if now.Sub(l.swept) < full {
		return
	}
	l.swept = now
	for name, b := range l.buckets {
		if l.at(b, now) >= l.rate.Burst {
			delete(l.buckets, name)
		}
	}
}

// TooSoon is the cause of a 429: how long to wait.
type TooSoon time.Duration

// Error says how long.
func (t TooSoon) Error() string { return "wait " + time.Duration(t).String() }

// RetryAfter is the wait in whole seconds, for the Retry-After header.
func (t TooSoon) RetryAfter() int64 { return int64(math.Ceil(time.Duration(t).Seconds())) }
