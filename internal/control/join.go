package control

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"time"

	"github.com/outcrop-cloud/outcrop/internal/api"
	"github.com/outcrop-cloud/outcrop/internal/compute"
	"github.com/outcrop-cloud/outcrop/internal/fault"
	"github.com/outcrop-cloud/outcrop/internal/httpsig"
	"github.com/outcrop-cloud/outcrop/internal/iam"
	"github.com/outcrop-cloud/outcrop/internal/limit"
	"github.com/outcrop-cloud/outcrop/internal/store"
)

// joinSkew is how far the created of a node's signature may be from the server's
// clock, either side.
const joinSkew = 5 * time.Minute

// Rates of joining. The first two also bound what one key or token can have
// written: a nonce for each request, for twice joinSkew.
var (
	joinRate   = limit.Rate{Burst: 2 * compute.MaxJoinUses, PerSecond: 10} // of one join token
	renewRate  = limit.Rate{Burst: 20, PerSecond: 0.2}                     // of one node's key
	joinFaults = limit.Rate{Burst: 200, PerSecond: 5}                      // unknown keys and bad signatures from one source
)

// joining is what stands between the outside and a node's key.
type joining struct {
	policy httpsig.Policy
	tokens *limit.Limiter // by join token
	keys   *limit.Limiter // by fingerprint
	faults *limit.Limiter // by source
}

func newJoining(now func() time.Time) *joining {
	return &joining{
		policy: httpsig.Policy{Profile: httpsig.Node, Skew: joinSkew, Now: now},
		tokens: limit.New(joinRate, now), keys: limit.New(renewRate, now), faults: limit.New(joinFaults, now),
	}
}

// SignedRequest is a request that a node's key has signed.
type SignedRequest struct {
	NodeID  string
	Source  string // who is at the other end of the connection
	Message *httpsig.Message
	Body    []byte
}

func tooSoon(wait time.Duration, what string) error {
	t := limit.TooSoon(max(wait, time.Millisecond))
	e := fault.New(fault.TooMany, "too many %s; wait %d seconds", what, t.RetryAfter())
	e.Cause = t
	return e
}

// verify checks that the key of the signature's keyid signed the request and
// returns the nonce, which nobody has taken yet. It is inserted with what the
// request does. A source that often signs wrongly is told to wait; a right signature
// from there is taken all the same, as a whole site may stand behind one address.
func (c *Control) verify(r *SignedRequest, keys httpsig.KeyFunc) (*store.Nonce, error) {
	result, err := c.joins.policy.Verify(r.Message, r.Body, keys)
	switch {
	case err == nil:
		return &store.Nonce{KeyID: "node " + result.KeyID, Nonce: result.Nonce, KeepUntil: result.KeepUntil}, nil
	case errors.Is(err, httpsig.ErrStale):
		now := c.now().UTC()
		e := fault.Coded(fault.Unauthenticated, fault.SignatureStale, "%v; the server's clock says %s", err, now.Format(time.RFC3339))
		e.Details = api.ClockDetails{ServerTime: now, SkewSeconds: int64(result.Created.Sub(now) / time.Second)}
		return nil, e
	}
	wait := c.joins.faults.Take(r.Source)
	switch {
	case wait > 0:
		return nil, tooSoon(wait, "requests from here were signed wrongly")
	case errors.Is(err, httpsig.ErrRequired):
		return nil, fault.New(fault.Unauthenticated, "sign the request with the node's key: Signature, Signature-Input and Content-Digest, under the label node")
	case errors.Is(err, httpsig.ErrInvalid):
		return nil, fault.Coded(fault.Unauthenticated, fault.SignatureInvalid, "%v", err)
	}
	return nil, err
}

// JoinNode admits a machine with a join token to a node id, by the key that the
// machine made and that signed the request, or lets it wait for an operator. The
// same key is answered the same again: a machine that lost the answer asks anew.
func (c *Control) JoinNode(ctx context.Context, who iam.Caller, r *SignedRequest) (api.Admission, error) {
	if err := iam.Allow(who, iam.JoinNode, iam.Scope{NodeID: r.NodeID}); err != nil {
		return api.Admission{}, err
	}
	if wait := c.joins.tokens.Take(who.TokenID); wait > 0 {
		return api.Admission{}, tooSoon(wait, "joins with this token")
	}
	if !compute.ValidNodeID(r.NodeID) {
		return api.Admission{}, fault.InvalidFields([]fault.Field{{Path: "nodeId", Message: nodeIDRule}})
	}
	in, key, err := api.DecodeJoin(r.Body)
	if err != nil {
		return api.Admission{}, err
	}
	nonce, err := c.verify(r, func(keyid string) (ed25519.PublicKey, error) {
		if keyid != compute.KeyID(key) {
			return nil, nil
		}
		return key, nil
	})
	if err != nil {
		return api.Admission{}, err
	}
	return c.admit(ctx, nonce, func(tx *store.Tx) (*admission, error) {
		token, err := tx.Token(who.TokenID)
		if errors.Is(err, store.ErrNotFound) || err == nil && !token.ValidAt(tx.Now) {
			err = errBadToken()
		}
		if err != nil {
			return nil, err
		}
		return joinNode(tx, &token, newJoin(r.NodeID, key, in.Claim(), tx.Now))
	})
}

// RenewCredential gives a node that has joined a new credential. Its key alone says
// who it is: a node whose credential has ended while it was off comes back.
func (c *Control) RenewCredential(ctx context.Context, r *SignedRequest) (api.Admission, error) {
	var known compute.NodeJoin
	nonce, err := c.verify(r, func(keyid string) (ed25519.PublicKey, error) {
		err := c.db.Read(ctx, func(tx *store.Tx) (err error) {
			known, err = tx.NodeJoin(r.NodeID)
			return err
		})
		if errors.Is(err, store.ErrNotFound) || err == nil && keyid != compute.KeyID(known.Key) {
			return nil, errKeyUnknown(r.NodeID)
		}
		return known.Key, err
	})
	if err != nil {
		return api.Admission{}, err
	}
	in, err := api.DecodeClaim(r.Body)
	if err != nil {
		return api.Admission{}, err
	}
	return c.admit(ctx, nonce, func(tx *store.Tx) (*admission, error) {
		return renew(tx, newJoin(r.NodeID, known.Key, in, tx.Now))
	})
}

// errKeyUnknown is one answer for a node id that nobody has and for one that has
// another key: whoever has no key learns of no node.
func errKeyUnknown(nodeID string) error {
	return fault.Coded(fault.Unauthenticated, fault.NodeKeyUnknown, "no node %q has joined with this key; an operator makes a join token with: outcrop node join-token", nodeID)
}

func newJoin(nodeID string, key ed25519.PublicKey, in api.NodeClaim, now time.Time) *compute.NodeJoin {
	return &compute.NodeJoin{NodeID: nodeID, Key: key, MachineID: in.MachineID, BootID: in.BootID, Hostname: in.Hostname, CreatedAt: now, SeenAt: now}
}

// admission is how a join or a renewal ended: with a join, or with a clash.
type admission struct {
	join  *compute.NodeJoin
	fresh bool // it was not known before
	clash *compute.Clash
	// knows says that the caller may hear who holds the id.
	knows bool
}

// joinTries is how often a join is tried when others come between.
const joinTries = 5

// settle writes, and does again what lost against another server's write.
func (c *Control) settle(ctx context.Context, fn func(*store.Tx) error) error {
	err := c.db.Write(ctx, fn)
	for try := 1; try < joinTries && store.Conflict(err); try++ {
		err = c.db.Write(ctx, fn)
	}
	return err
}

// admit decides in one transaction that takes the nonce, and answers with a
// credential where the machine is admitted.
func (c *Control) admit(ctx context.Context, nonce *store.Nonce, decide func(*store.Tx) (*admission, error)) (out api.Admission, err error) {
	if wait := c.joins.keys.Take(nonce.KeyID); wait > 0 {
		return out, tooSoon(wait, "requests with this key")
	}
	var a *admission
	err = c.settle(ctx, func(tx *store.Tx) (err error) {
		if err = tx.InsertNonce(nonce); err != nil {
			return err
		}
		if a, err = decide(tx); err != nil || a.clash != nil {
			return err
		}
		out, err = c.answerJoin(tx, a.join)
		return err
	})
	switch {
	case errors.Is(err, store.ErrReplayed):
		return api.Admission{}, fault.Coded(fault.Unauthenticated, fault.SignatureReplayed, "a request with this nonce was accepted before; sign every attempt anew, with a nonce of its own")
	case err != nil:
		return api.Admission{}, err
	case a.clash != nil:
		c.logClash(ctx, a.join.NodeID, a.clash)
		return api.Admission{}, errClash(a.join.NodeID, a.clash, a.knows)
	case a.fresh:
		c.log.InfoContext(ctx, "a machine joins", "node", a.join.NodeID, "state", string(a.join.State), "hostname", a.join.Hostname,
			"fingerprint", out.Fingerprint, "token", a.join.TokenID)
	}
	return out, nil
}

// answerJoin renders a join, with a new credential where it is admitted.
func (c *Control) answerJoin(tx *store.Tx, j *compute.NodeJoin) (api.Admission, error) {
	out := api.Admission{Status: api.Pending, Fingerprint: compute.KeyID(j.Key), NodeRole: j.NodeRole, NodeZone: j.NodeZone}
	if j.State != compute.JoinAdmitted {
		return out, nil
	}
	seed := make([]byte, 32)
	_, _ = rand.Read(seed)
	t := store.Token{KeyID: out.Fingerprint}
	t.Caller = iam.Caller{Name: "credential of node " + j.NodeID, Role: iam.Node, NodeID: j.NodeID, NodeRole: j.NodeRole, NodeZone: j.NodeZone}
	secret := c.mint(&t, seed, tx.Now)
	t.ExpiresAt = tx.Now.Add(compute.CredentialLife)
	out.Status, out.Token, out.ExpiresInSeconds = api.Admitted, c.withCA(secret), int64(compute.CredentialLife/time.Second)
	return out, tx.InsertCredential(&t)
}

// mint gives a token its secret, which follows from the seed and the server's key.
func (c *Control) mint(t *store.Token, seed []byte, now time.Time) (secret string) {
	secret = c.keys.secret(seed)
	mac := c.keys.MAC(secret)
	id := sha256.Sum256(mac[:])
	t.MAC, t.TokenID, t.CreatedAt = mac[:], "tok-"+hex.EncodeToString(id[:6]), now
	return secret
}

// withCA puts the fingerprint of the server's own CA to a secret.
func (c *Control) withCA(secret string) string {
	if c.keys.caFingerprint == "" {
		return secret
	}
	return secret + "." + c.keys.caFingerprint
}

// joinNode decides on a join with a token that is valid.
func joinNode(tx *store.Tx, token *store.Token, j *compute.NodeJoin) (*admission, error) {
	j.TokenID, j.NodeRole, j.NodeZone = token.TokenID, token.NodeRole, token.NodeZone
	knows := token.NodeID != ""
	before, err := tx.NodeJoin(j.NodeID)
	if err != nil && !errors.Is(err, store.ErrNotFound) {
		return nil, err
	}
	known := err == nil
	if known && before.Stands(tx.Now) {
		again := before.Key.Equal(j.Key)
		switch {
		case again && before.State == compute.JoinRefused && before.TokenID == token.TokenID:
			return nil, errJoinRefused()
		case again && before.State != compute.JoinRefused:
			return stillJoined(tx, &before, j, knows)
		case before.State != compute.JoinRefused:
			return disputed(tx, j, before.Claimant(), knows)
		}
	}
	if a, err := claimNode(tx, j, knows); a != nil || err != nil {
		return a, err
	}
	if known { // refused, or it waited for too long
		if err := tx.DropJoin(j.NodeID); err != nil {
			return nil, err
		}
	}
	if err := keyElsewhere(tx, j); err != nil {
		return nil, err
	}
	if err := tx.UseJoinToken(token.TokenID); err != nil {
		if errors.Is(err, store.ErrNotFound) {
			err = fault.Coded(fault.Forbidden, fault.JoinTokenUsed, "this join token has admitted all that it was made for; make another with: outcrop node join-token")
		}
		return nil, err
	}
	j.State = compute.JoinAdmitted
	if token.Approve {
		waiting, err := tx.CountPendingJoins()
		if err != nil {
			return nil, err
		}
		if waiting >= compute.MaxPendingJoins {
			return nil, fault.New(fault.Conflict, "%d machines wait for approval, and no more may; an operator lists them with: outcrop node joins", waiting)
		}
		j.State, j.ExpiresAt = compute.JoinPending, tx.Now.Add(compute.JoinWaits)
	}
	return &admission{join: j, fresh: true}, tx.InsertJoin(j)
}

func errJoinRefused() error {
	return fault.Coded(fault.Forbidden, fault.JoinRefused, "an operator has refused this machine; it may ask again with a new join token: outcrop node join-token")
}

// renew decides on a request that only the node's key stands for.
func renew(tx *store.Tx, j *compute.NodeJoin) (*admission, error) {
	before, err := tx.NodeJoin(j.NodeID)
	switch {
	case errors.Is(err, store.ErrNotFound) || err == nil && (!before.Key.Equal(j.Key) || !before.Stands(tx.Now)):
		return nil, errKeyUnknown(j.NodeID)
	case err != nil:
		return nil, err
	case before.State == compute.JoinRefused:
		return nil, errJoinRefused()
	}
	return stillJoined(tx, &before, j, true)
}

// stillJoined is a machine that is known by its key and asks again.
func stillJoined(tx *store.Tx, before, j *compute.NodeJoin, knows bool) (*admission, error) {
	if before.MachineID != "" && j.MachineID != "" && before.MachineID != j.MachineID {
		return disputed(tx, j, before.Claimant(), knows)
	}
	if before.State == compute.JoinAdmitted {
		if a, err := claimNode(tx, j, true); a != nil || err != nil {
			return a, err
		}
	}
	if before.MachineID == "" {
		before.MachineID = j.MachineID
	}
	before.Hostname, before.BootID, before.SeenAt = j.Hostname, j.BootID, tx.Now
	return &admission{join: before}, tx.UpdateJoin(before, before.State)
}

// claimNode holds a join against the node of that id, where one reports already:
// only with a token that an operator made for this very id may a machine take a key
// to a node that has none (contract N-21). Nil means that nothing speaks against it.
func claimNode(tx *store.Tx, j *compute.NodeJoin, forThisID bool) (*admission, error) {
	n, err := tx.NodeToChange(j.NodeID)
	if errors.Is(err, store.ErrNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	if forThisID && !n.Foreign(j.Claimant()) {
		return nil, nil
	}
	clash, changed := n.Dispute(j.Claimant(), tx.Now)
	if changed {
		err = tx.UpdateNode(&n)
	}
	return &admission{join: j, clash: clash, knows: forThisID}, err
}

// disputed answers a machine whose id another one holds by its key.
func disputed(tx *store.Tx, j *compute.NodeJoin, holder compute.Claimant, knows bool) (*admission, error) {
	a, err := claimNode(tx, j, false)
	if err != nil {
		return nil, err
	}
	if a == nil {
		a = &admission{join: j, clash: &compute.Clash{Holder: holder, Claimant: j.Claimant(), First: true}}
	}
	a.clash.Holder.Key, a.knows = holder.Key, knows
	return a, nil
}

// keyElsewhere refuses a key that another node has: two ids of one machine would
// report the same guests. A claim that came to nothing makes way.
func keyElsewhere(tx *store.Tx, j *compute.NodeJoin) error {
	other, err := tx.JoinOfKey(compute.KeyID(j.Key))
	switch {
	case errors.Is(err, store.ErrNotFound):
		return nil
	case err != nil:
		return err
	case other.State != compute.JoinAdmitted:
		return tx.DropJoin(other.NodeID)
	}
	return fault.Coded(fault.Conflict, fault.NodeIDConflict, "this machine's key is node %q's; give the agent that id, or a data folder of its own", other.NodeID)
}
