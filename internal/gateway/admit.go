package gateway

import (
	"context"
	"crypto/ed25519"
	"errors"
	"strings"
	"time"

	"github.com/outcrop-cloud/outcrop/internal/api"
	"github.com/outcrop-cloud/outcrop/internal/fault"
	"github.com/outcrop-cloud/outcrop/internal/fleet"
	"github.com/outcrop-cloud/outcrop/internal/httpsig"
	"github.com/outcrop-cloud/outcrop/internal/iam"
	"github.com/outcrop-cloud/outcrop/internal/store"
)

// Codes of the refusals of Admit (contract E-07, R-20 to R-24).
const (
	CodeUnauthorized      = "unauthorized"
	CodeSignatureRequired = "runner_key_signature_required"
	CodeSignatureInvalid  = "runner_key_signature_invalid"
	CodeSignatureStale    = "runner_key_signature_stale"
	CodeSignatureReplayed = "runner_key_signature_replayed"
)

// Caller is who calls: a key of an app, or an operator who acts in one.
type Caller struct {
	appID  string
	key    *fleet.Key // nil: an operator
	token  iam.Caller // of an operator
	update fleet.UpdateSetting
	nonce  *store.Nonce // of a signed request
}

// id is what the caller is known as in created_by.
func (c *Caller) id() string {
	if c.key != nil {
		return c.key.ID
	}
	return c.token.TokenID
}

// host answers nil where the caller may speak for the host of the name: a runner
// key speaks for its own only (contract R-20).
func (c *Caller) host(name string) error {
	if c.key == nil || c.key.Runner == nil || c.key.Runner.Host == name {
		return nil
	}
	return fault.Coded(fault.Forbidden, fleet.CodeForbidden, "this runner key belongs to host %q, not to %q; make another key for that one", c.key.Runner.Host, name)
}

func (c *Caller) may(p fleet.Permission) error {
	if c.key == nil && c.token.Role == iam.Operator || c.key != nil && c.key.Has(p) {
		return nil
	}
	if c.key == nil {
		return fault.Coded(fault.Forbidden, fleet.CodeForbidden, "a token of role %s may not use the gateway: use an API key that holds %s, or an operator's token", c.token.Role, p)
	}
	return fleet.Lacks(p)
}

// Request is what Admit looks at.
type Request struct {
	Authorization string // the header
	AppID         string // the header X-Outerlayer-App-Id
	Source        string // who is at the other end of the connection
	NoApp         bool   // the route is about apps themselves: the header may be missing
	Message       *httpsig.Message
	// Body reads the body, bounded. It is not called before the key is known.
	Body func() ([]byte, error)
}

// Admit finds the caller and verifies the signature of a runner key, in the order
// of contract E-07, and returns the body.
func (g *Gateway) Admit(ctx context.Context, r *Request) (Caller, []byte, error) {
	who, err := g.authenticate(ctx, r)
	if err != nil {
		return Caller{}, nil, err
	}
	body, err := r.Body()
	if err != nil {
		return Caller{}, nil, err
	}
	if who.key != nil && who.key.Runner != nil {
		who.nonce, err = g.verify(r, who.key, body)
	}
	return who, body, err
}

// errUnauthorized is one answer for an unknown, a revoked and an expired key.
func errUnauthorized(text string) error {
	return fault.Coded(fault.Unauthenticated, CodeUnauthorized, "%s", text)
}

const (
	needAuth = "authentication is needed: send Authorization: Bearer with an API key (sk_outerlayer_…)"
	needApp  = "the header X-Outerlayer-App-Id must hold the id of the key's app, a UUID"
	badKey   = "the API key is not valid (unknown, revoked or expired); make a new one with: outcrop key create"
	otherApp = "the API key does not belong to the app in X-Outerlayer-App-Id"
	noSuch   = "there is no app with the id in X-Outerlayer-App-Id; list them with: outcrop app list"
)

func (g *Gateway) authenticate(ctx context.Context, r *Request) (who Caller, err error) {
	scheme, secret, ok := strings.Cut(r.Authorization, " ")
	if secret = strings.TrimSpace(secret); !ok || secret == "" || !strings.EqualFold(scheme, "Bearer") {
		return who, g.failed(r.Source, needAuth)
	}
	appID := fleet.CanonicalID(r.AppID)
	if appID == "" && !(r.NoApp && r.AppID == "") {
		return who, g.failed(r.Source, needApp)
	}
	if !strings.HasPrefix(secret, fleet.SecretPrefix) {
		return g.operator(ctx, r, appID, secret)
	}
	if len(secret) > 128 {
		return who, g.failed(r.Source, badKey)
	}
	c, err := g.find(ctx, secret, func() error { return g.patience(r.Source) })
	now := g.now()
	switch {
	case errors.Is(err, store.ErrNotFound) || err == nil && !c.ValidAt(now):
		return who, g.failed(r.Source, badKey)
	case err != nil:
		return who, err
	case appID != c.AppID && appID != "":
		return who, g.failed(r.Source, otherApp)
	}
	g.keys.Used(c.ID, now)
	return Caller{appID: c.AppID, key: &c.Key, update: c.update}, nil
}

// operator is for the bearer tokens of the compute API (contract E-07).
func (g *Gateway) operator(ctx context.Context, r *Request, appID, secret string) (who Caller, err error) {
	if err := g.patience(r.Source); err != nil {
		return who, err
	}
	who = Caller{appID: appID}
	if who.token, err = g.o.Tokens(ctx, secret); err != nil {
		if fault.Is(err, fault.Unauthenticated) {
			err = g.failed(r.Source, badKey)
		}
		return who, err
	}
	if appID == "" {
		return who, nil
	}
	err = g.db.Read(ctx, func(tx *store.Tx) error {
		app, err := tx.App(appID)
		who.update = app.Update
		return err
	})
	if errors.Is(err, store.ErrNotFound) {
		err = g.failed(r.Source, noSuch)
	}
	return who, err
}

// patience refuses a source that has failed too often lately, before anything is
// looked up for it. Keys in memory are let through all the same: a whole site of
// hosts may stand behind one address.
func (g *Gateway) patience(source string) error {
	if wait := g.failures.Spent(source); wait > 0 {
		return tooSoon(wait, "too many requests from here failed to authenticate; wait %d seconds")
	}
	return nil
}

// failed counts a failed authentication and answers it.
func (g *Gateway) failed(source, text string) error {
	if wait := g.failures.Take(source); wait > 0 {
		return tooSoon(wait, "too many requests from here failed to authenticate; wait %d seconds")
	}
	return errUnauthorized(text)
}

// verify checks the signature of a runner key's request and returns the nonce,
// which nobody has taken yet (contract ).
func (g *Gateway) verify(r *Request, key *fleet.Key, body []byte) (*store.Nonce, error) {
	forger := r.Source + " " + key.ID
	if wait := g.forged.Spent(forger); wait > 0 {
		return nil, tooSoon(wait, "too many requests with this key were signed wrongly; wait %d seconds")
	}
	result, err := g.policy.Verify(r.Message, body, func(keyid string) (ed25519.PublicKey, error) {
		if keyid != key.ID {
			return nil, nil
		}
		return key.Runner.PublicKey, nil
	})
	switch {
	case err == nil:
		return &store.Nonce{KeyID: key.ID, Nonce: result.Nonce, KeepUntil: result.KeepUntil}, nil
	case errors.Is(err, httpsig.ErrRequired):
		return nil, fault.Coded(fault.Unauthenticated, CodeSignatureRequired, "this is a runner key: %v", err)
	case errors.Is(err, httpsig.ErrStale):
		return nil, g.stale(result.Created, err)
	}
	g.forged.Take(forger)
	return nil, fault.Coded(fault.Unauthenticated, CodeSignatureInvalid, "%v", err)
}

// stale tells the server's time, so that the host can correct its signing clock
// and go on (lesson 5).
func (g *Gateway) stale(created time.Time, err error) error {
	now := g.now()
	e := fault.Coded(fault.Unauthenticated, CodeSignatureStale, "%v; the gateway's clock says %s", err, now.UTC().Format(time.RFC3339))
	e.Details = api.ClockDetails{ServerTime: now.UTC(), SkewSeconds: int64(created.Sub(now) / time.Second)}
	return e
}

func errReplayed() error {
	return fault.Coded(fault.Unauthenticated, CodeSignatureReplayed, "a request with this nonce was accepted before; sign every attempt anew, with a nonce of its own")
}

// enter is how every verb begins: the permission, then the rate limit.
func (g *Gateway) enter(ctx context.Context, who *Caller, p fleet.Permission) error {
	err := who.may(p)
	if err == nil && who.key != nil {
		if wait := g.rate.Take(who.key.ID); wait > 0 {
			err = tooSoon(wait, "too many requests with this key; wait %d seconds")
		}
	}
	return g.refuse(ctx, who, err)
}

// open enters, then reads the body.
func open[T any](ctx context.Context, g *Gateway, who *Caller, p fleet.Permission, parse func() (T, error)) (in T, err error) {
	if err = g.enter(ctx, who, p); err != nil {
		return in, err
	}
	in, err = parse()
	return in, g.refuse(ctx, who, err)
}

// refuse answers err, unless the request is a replay: that comes before every
// refusal of what was asked (contract E-07).
func (g *Gateway) refuse(ctx context.Context, who *Caller, err error) error {
	if err == nil || who.nonce == nil {
		return err
	}
	taken := false
	rerr := g.db.Read(ctx, func(tx *store.Tx) (err error) {
		taken, err = tx.NonceTaken(who.nonce)
		return err
	})
	switch {
	case rerr != nil:
		return rerr
	case taken:
		return errReplayed()
	}
	return err
}

// writes is how often a write is tried when others come between.
const writes = 10

// write runs fn in a transaction that also takes the request's nonce.
func (g *Gateway) write(ctx context.Context, who *Caller, fn func(*store.Tx) error) error {
	return g.settled(who, func() error {
		return g.db.Write(ctx, func(tx *store.Tx) error {
			if who.nonce != nil {
				if err := tx.InsertNonce(who.nonce); err != nil {
					return err
				}
			}
			return fn(tx)
		})
	})
}

// read is write for a verb that changes nothing; a signed request's nonce is
// taken all the same.
func (g *Gateway) read(ctx context.Context, who *Caller, fn func(*store.Tx) error) error {
	if who.nonce != nil {
		return g.write(ctx, who, fn)
	}
	return g.db.Read(ctx, fn)
}

// settled does again what lost against another write, and turns a nonce that was
// taken into its refusal. A replay does not count against the key's rate.
func (g *Gateway) settled(who *Caller, once func() error) error {
	err := once()
	for try := 1; try < writes && store.Conflict(err); try++ {
		err = once()
	}
	if errors.Is(err, store.ErrReplayed) {
		g.rate.Give(who.key.ID)
		return errReplayed()
	}
	return err
}
