package fleet

import (
	"fmt"
	"time"
)

// CurrentProtocol is the version of the gateway contract that this build speaks.
const CurrentProtocol = 1

// Protocol says which runners the gateway gives work to: the versions of its
// contract that it serves, and the next minimum with its date (lesson 36).
type Protocol struct {
	Current int64 // what this gateway speaks
	Minimum int64 // below it a host is outdated
	// Next is a minimum that is announced; zero: none. From is when it begins.
	Next int64
	From time.Time
}

// Validate refuses a minimum that would cut off even the newest runner, and one
// that would let in runners that name no protocol (contract R-03).
func (p Protocol) Validate() error {
	switch {
	case p.Minimum < 1:
		return fmt.Errorf("the minimum runner protocol is %d; it is at least 1, as a runner that names none counts as 0", p.Minimum)
	case p.Minimum > p.Current:
		return fmt.Errorf("the minimum runner protocol %d is above %d, the one that this gateway speaks: every runner would be outdated", p.Minimum, p.Current)
	case p.Next == 0 && p.From.IsZero():
		return nil
	case p.Next == 0 || p.From.IsZero():
		return fmt.Errorf("the next minimum runner protocol needs both a number and a date")
	case p.Next <= p.Minimum || p.Next > p.Current:
		return fmt.Errorf("the next minimum runner protocol is %d; it is above the minimum %d and not above %d, the one that this gateway speaks", p.Next, p.Minimum, p.Current)
	}
	return nil
}

// MinimumAt is the minimum in force at now.
func (p Protocol) MinimumAt(now time.Time) int64 {
	if p.Next > p.Minimum && !p.From.IsZero() && !now.Before(p.From) {
		return p.Next
	}
	return p.Minimum
}

// Notice is something that an operator should do by a date.
type Notice struct {
	At      time.Time
	Message string
}

// Notice tells of the announced minimum where it concerns a runner with the
// protocol; nil where it does not.
func (p Protocol) Notice(protocol int64, now time.Time) *Notice {
	if p.Next == 0 || p.From.IsZero() || protocol >= p.Next || protocol < p.Minimum {
		return nil
	}
	when := "from " + p.From.UTC().Format(time.DateOnly) + " on a"
	if !now.Before(p.From) {
		when = "since " + p.From.UTC().Format(time.DateOnly) + " a"
	}
	return &Notice{At: p.From, Message: fmt.Sprintf("%s runner needs protocol %d to get work; this one speaks %d: update it", when, p.Next, protocol)}
}
