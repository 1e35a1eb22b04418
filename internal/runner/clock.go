package runner

import (
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// clock is the runner's time. Two clocks run in it: the wall clock, which may be
// wrong, and boot, the time since the machine started, which nobody sets and
// which goes on while the machine sleeps.
type clock struct {
	boot func() time.Duration
	mono func() time.Duration // stands still while the machine sleeps

	mu       sync.Mutex
	anchored bool
	server   time.Time     // what the server's clock said
	at       time.Duration // at this moment of boot
}

func newClock() *clock {
	return &clock{boot: func() time.Duration { return kernelClock(unix.CLOCK_BOOTTIME) },
		mono: func() time.Duration { return kernelClock(unix.CLOCK_MONOTONIC) }}
}

func kernelClock(id int32) time.Duration {
	var t unix.Timespec
	_ = unix.ClockGettime(id, &t) // cannot fail with these ids
	return time.Duration(t.Nano())
}

// signing is what requests are dated with: this machine's clock until the server
// says that it is off, from then on the server's own, carried on by boot. Setting
// the wall clock later does no harm (lesson 5).
func (c *clock) signing() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.anchored {
		return time.Now()
	}
	return c.server.Add(c.boot() - c.at)
}

// correct takes over the server's time and returns how far off this machine's
// clock is.
func (c *clock) correct(server time.Time) (skew time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.anchored, c.server, c.at = true, server, c.boot()
	return time.Until(server) * -1
}

// sleepGap is how much more boot must have gone on than mono for a sleep. The two
// are read one after the other, so some is always there.
const sleepGap = 2 * time.Second

// sleepWatch finds out that the machine slept (lesson 38).
type sleepWatch struct {
	clock *clock
	ahead time.Duration // of boot against mono
}

func newSleepWatch(c *clock) *sleepWatch {
	return &sleepWatch{clock: c, ahead: c.boot() - c.mono()}
}

// slept returns how long the machine slept since the last call, 0 for not at all.
func (w *sleepWatch) slept() time.Duration {
	ahead := w.clock.boot() - w.clock.mono()
	gap := ahead - w.ahead
	if gap < sleepGap {
		return 0
	}
	w.ahead = ahead
	return gap
}
