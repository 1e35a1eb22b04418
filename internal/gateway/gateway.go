// Package gateway holds the runner gateway's verbs (one method each, the caller
// first) and its loops: apps, API keys, runner hosts and their work.
//
// A request goes through one order of checks (contract E-07), and every verb
// holds to it: [Gateway.Admit] says who calls and verifies a runner key's
// signature; the verb asks for the permission, takes from the rate limit, and
// only then reads the body. Bodies reach a verb as bytes for that reason.
//
// The nonce of a signed request is taken in the transaction of its verb, so that
// a request that is refused leaves none behind.
package gateway

import (
	"context"
	"crypto/rand"
	"log/slog"
	"path/filepath"
	"time"

	"github.com/outcrop-cloud/outcrop/internal/bearer"
	"github.com/outcrop-cloud/outcrop/internal/fleet"
	"github.com/outcrop-cloud/outcrop/internal/httpsig"
	"github.com/outcrop-cloud/outcrop/internal/iam"
	"github.com/outcrop-cloud/outcrop/internal/limit"
	"github.com/outcrop-cloud/outcrop/internal/store"
)

// Options configure a Gateway. Zero values take the defaults.
type Options struct {
	DB  *store.DB
	Dir string // data folder: the key of the API keys' hashes lives here
	Log *slog.Logger
	Now func() time.Time
	// Tokens finds the caller of a bearer token that is no API key.
	Tokens func(ctx context.Context, token string) (iam.Caller, error)

	Version       string         // Outcrop's
	RunnerVersion string         // what the update setting follow means; see fleet.UpdateSetting
	Protocol      fleet.Protocol // zero: this build's, without an announced minimum
	Rate          limit.Rate     // of one key; zero: DefaultRate
	Failures      limit.Rate     // of failed authentication from one source; zero: DefaultFailures
	KeepHosts     time.Duration  // how long a silent host stays in the list; 0: 30 days
	KeepWork      time.Duration  // how long a job stays after its end; 0: 30 days
}

// MaxBody bounds every body of the gateway, in bytes.
const MaxBody = 1 << 20

// Skew is how far a signature's created may be from the gateway's clock, either
// side (contract R-23).
const Skew = 5 * time.Minute

const keepFor = 30 * 24 * time.Hour

// Gateway is the runner gateway without a transport.
type Gateway struct {
	o        Options
	db       *store.DB
	log      *slog.Logger
	now      func() time.Time
	keys     *bearer.Keyring[*cachedKey]
	policy   httpsig.Policy
	rate     *limit.Limiter // by key
	failures *limit.Limiter // by source
	forged   *limit.Limiter // bad signatures, by source and key
}

// New prepares a Gateway; Run starts its loops.
func New(o Options) (*Gateway, error) {
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Protocol == (fleet.Protocol{}) {
		o.Protocol = fleet.Protocol{Current: fleet.CurrentProtocol, Minimum: 1}
	}
	if err := o.Protocol.Validate(); err != nil {
		return nil, err
	}
	if o.Rate == (limit.Rate{}) {
		o.Rate = DefaultRate
	}
	if o.Failures == (limit.Rate{}) {
		o.Failures = DefaultFailures
	}
	if o.KeepHosts == 0 {
		o.KeepHosts = keepFor
	}
	if o.KeepWork == 0 {
		o.KeepWork = keepFor
	}
	keys, err := bearer.Open[*cachedKey](filepath.Join(o.Dir, PepperFile), "API keys")
	if err != nil {
		return nil, err
	}
	return &Gateway{
		o: o, db: o.DB, log: o.Log, now: o.Now, keys: keys,
		policy: httpsig.Policy{Profile: httpsig.Runner, Skew: Skew, Now: o.Now},
		rate:   limit.New(o.Rate, o.Now), failures: limit.New(o.Failures, o.Now), forged: limit.New(o.Failures, o.Now),
	}, nil
}

// randomBytes are 32 bytes that nobody can guess.
func randomBytes() (b [32]byte) {
	_, _ = rand.Read(b[:]) // never fails since Go 1.24
	return b
}
