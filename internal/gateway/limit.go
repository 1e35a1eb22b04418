package gateway

import (
	"time"

	"github.com/outcrop-cloud/outcrop/internal/fault"
	"github.com/outcrop-cloud/outcrop/internal/limit"
)

// DefaultRate is that of one key on one server. It also bounds how many nonces a
// key can have in store: Burst and, for ten minutes, PerSecond.
var DefaultRate = limit.Rate{Burst: 400, PerSecond: 20}

// DefaultFailures is for failed authentication from one source.
var DefaultFailures = limit.Rate{Burst: 200, PerSecond: 5}

// CodeRateLimited is the code of every 429 of the gateway.
const CodeRateLimited = "rate_limited"

func tooSoon(wait time.Duration, format string) error {
	t := limit.TooSoon(max(wait, time.Millisecond))
	e := fault.Coded(fault.TooMany, CodeRateLimited, format, t.RetryAfter())
	e.Cause = t
	return e
}
