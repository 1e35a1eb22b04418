package node

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"time"

	"github.com/outcrop-cloud/outcrop/internal/fault"
)

// randN is a duration from 0 up to below n. A test that is to be replayed draws its own.
var randN = rand.N[time.Duration]

// backoff doubles from first to most, with jitter: a delay is between half of
// the step and the whole of it, so that many agents do not come in step.
type backoff struct {
	first, most time.Duration
	step        time.Duration
}

func (b *backoff) next() time.Duration {
	b.step = min(max(2*b.step, b.first), b.most)
	return b.step/2 + randN(b.step/2+1)
}

func (b *backoff) reset() { b.step = 0 }

// jitter spreads d by a tenth to both sides.
func jitter(d time.Duration) time.Duration {
	return d - d/10 + randN(d/5+1)
}

// Delays of calls to the server. A server that is back hears from the node
// within 5 s (contract N-06); one that refuses the node is asked rarely.
const (
	retryFirst  = 500 * time.Millisecond
	retryMost   = 4500 * time.Millisecond
	retryRefuse = 30 * time.Second
)

// pace says when a loop may call the server again, and logs each change of what
// is wrong once.
type pace struct {
	log   *slog.Logger
	what  string
	delay backoff
	said  string
	// advice says what a person has to do; empty for what time may cure.
	advice func(error) string
}

func newPace(log *slog.Logger, what string) *pace {
	return &pace{log: log, what: what, delay: backoff{first: retryFirst, most: retryMost}, advice: adviceFor}
}

func (p *pace) worked() {
	p.delay.reset()
	if p.said != "" {
		p.log.Info(p.what + " works again")
		p.said = ""
	}
}

// failed returns how long to wait after err.
func (p *pace) failed(err error) time.Duration {
	advice := p.advice(err)
	if text := err.Error(); text != p.said {
		p.said = text
		attrs := []any{"error", text}
		if advice != "" {
			attrs = append(attrs, "do", advice)
		}
		p.log.Warn(p.what+" failed; it is tried again", attrs...)
	}
	d := p.delay.next()
	if advice != "" {
		d = jitter(retryRefuse)
	}
	// Retry-After is a floor. A tenth on top keeps the callers of a busy server
	// from coming back together (lesson 2).
	if after, ok := errors.AsType[interface {
		error
		RetryAfter() time.Duration
	}](err); ok {
		d = max(d, after.RetryAfter()+randN(after.RetryAfter()/10+1))
	}
	return d
}

// adviceFor says what a person has to do about a refusal; empty for what time
// may cure.
func adviceFor(err error) string {
	switch {
	case fault.HasCode(err, fault.NodeIDConflict):
		return "another machine reports as this node: give this one an --id and a --data of its own; where it takes the other's place, an operator runs outcrop node readmit ID and gives it the join token"
	case fault.Is(err, fault.Unauthenticated):
		return "a node that has joined renews its credential by itself; for another, make a token with outcrop token create --role node --node ID and write it to the token file; it is taken from there without a restart"
	case fault.Is(err, fault.Forbidden):
		return "the token is bound to another node, role or zone: give the agent the matching --id, --role and --zone, or another token"
	case fault.Is(err, fault.Invalid):
		return "the server does not understand this agent: run the same version of both"
	}
	return ""
}

// tokenCheck is how often a waiting loop looks for a renewed token.
const tokenCheck = 5 * time.Second

// pause waits for d, less when early gets a message or the token is renewed. It
// reports whether ctx still lives.
func (a *agent) pause(ctx context.Context, d time.Duration, early <-chan struct{}) bool {
	for end := time.Now().Add(d); time.Now().Before(end) && !a.up.renewed(); {
		switch wait(ctx, min(tokenCheck, time.Until(end)), early) {
		case cut:
			return false
		case woken:
			return true
		}
	}
	return ctx.Err() == nil
}

// Outcomes of wait.
type waited int

const (
	over  waited = iota // the time is over
	woken               // early got a message
	cut                 // ctx has ended
)

func wait(ctx context.Context, d time.Duration, early <-chan struct{}) waited {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return cut
	case <-early:
		return woken
	case <-t.C:
		return over
	}
}
