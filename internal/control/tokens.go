package control

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	"github.com/outcrop-cloud/outcrop/internal/api"
	"github.com/outcrop-cloud/outcrop/internal/bearer"
	"github.com/outcrop-cloud/outcrop/internal/compute"
	"github.com/outcrop-cloud/outcrop/internal/fault"
	"github.com/outcrop-cloud/outcrop/internal/iam"
	"github.com/outcrop-cloud/outcrop/internal/store"
)

// TokenKeyFile holds the key of the tokens' keyed hashes.
const TokenKeyFile = "token.key"

// tokenPrefix makes a token easy to find by secret scanners.
const tokenPrefix = "oct_"

// tokenKeys knows the tokens.
type tokenKeys struct {
	*bearer.Keyring[*store.Token]
	// caFingerprint goes into every new token where the server has its own CA.
	caFingerprint string
}

func loadTokenKeys(dir string) (*tokenKeys, error) {
	k, err := bearer.Open[*store.Token](filepath.Join(dir, TokenKeyFile), "tokens")
	return &tokenKeys{Keyring: k}, err
}

// secret is what a new token is: 32 bytes that nobody can tell who has not the
// seed and the key.
func (k *tokenKeys) secret(seed []byte) string {
	raw := k.MAC("token from seed\x00" + string(seed)) // no token reads like this
	return tokenPrefix + base64.RawURLEncoding.EncodeToString(raw[:])
}

// SetCA makes new tokens carry the fingerprint of the server's own CA.
func (c *Control) SetCA(fingerprint string) { c.keys.caFingerprint = fingerprint }

// errBadToken is one answer for an unknown, a revoked and an expired token.
func errBadToken() error {
	return fault.New(fault.Unauthenticated, "the token is not valid (unknown, revoked or expired); an operator makes a new one with: outcrop token create")
}

// Authenticate finds the caller that a bearer token stands for. A token that was
// revoked before the call, on whatever server, is refused.
func (c *Control) Authenticate(ctx context.Context, token string) (iam.Caller, error) {
	secret, _ := api.SplitToken(token)
	if len(secret) > 128 {
		return iam.Caller{}, errBadToken()
	}
	mac := c.keys.MAC(secret)
	gen, err := c.db.AuthGeneration(ctx)
	if err != nil {
		return iam.Caller{}, err
	}
	t, _, current := c.keys.Cached(mac, gen)
	if !current {
		if t, err = c.lookUp(ctx, mac, gen); err != nil {
			return iam.Caller{}, err
		}
	}
	now := c.now()
	if !t.ValidAt(now) {
		return iam.Caller{}, errBadToken()
	}
	c.keys.Used(t.TokenID, now)
	return t.Caller, nil
}

// lookUp reads a token and remembers it under the generation that was read
// before it, so that a change in between makes it be read again.
func (c *Control) lookUp(ctx context.Context, mac bearer.MAC, gen int64) (*store.Token, error) {
	token, err := c.db.TokenByMAC(ctx, mac[:])
	if errors.Is(err, store.ErrNotFound) {
		return nil, errBadToken() // not remembered: guesses must not fill memory
	}
	if err != nil {
		return nil, err
	}
	c.keys.Remember(mac, gen, &token)
	return &token, nil
}

// issued is a new token as the answer to its create is remembered: the secret
// follows from the seed and the server's key, so it stands nowhere.
type issued struct {
	Token api.Token
	Seed  []byte
}

// CreateToken makes a token and answers with its secret, the only time.
func (c *Control) CreateToken(ctx context.Context, who iam.Caller, in api.CreateToken) (api.NewToken, error) {
	return c.CreateTokenOnce(ctx, who, in, "")
}

// CreateTokenOnce is CreateToken with an Idempotency-Key: the same key is answered
// with the same token, secret and all.
func (c *Control) CreateTokenOnce(ctx context.Context, who iam.Caller, in api.CreateToken, key string) (api.NewToken, error) {
	if err := iam.Allow(who, iam.CreateToken, iam.Scope{}); err != nil {
		return api.NewToken{}, err
	}
	if err := CheckToken(in); err != nil {
		return api.NewToken{}, err
	}
	out, err := once(ctx, c, "tokens", key, in, func(tx *store.Tx) (issued, error) { return c.issue(tx, in) })
	if err != nil {
		return api.NewToken{}, err
	}
	return c.newToken(out), nil
}

// newToken is an issued token with its secret.
func (c *Control) newToken(t issued) api.NewToken {
	return api.NewToken{Token: t.Token, Secret: c.withCA(c.keys.secret(t.Seed))}
}

func (c *Control) issue(tx *store.Tx, in api.CreateToken) (issued, error) {
	seed := make([]byte, 32)
	_, _ = rand.Read(seed)
	t := store.Token{UsesLeft: in.Uses, Approve: in.Approve}
	t.Caller = iam.Caller{
		Name: in.Name, Role: iam.Role(in.Role),
		ProjectID: in.ProjectID, NodeID: in.NodeID, NodeRole: in.NodeRole, NodeZone: in.NodeZone,
	}
	c.mint(&t, seed, tx.Now)
	if t.Role == iam.Join {
		t.UsesLeft, t.ExpiresAt = max(in.Uses, 1), tx.Now.Add(compute.JoinTokenLife)
	}
	if t.Name == "" {
		t.Name = defaultTokenName(in)
	}
	if in.ProjectID != "" {
		if _, err := tx.Project(in.ProjectID); err != nil {
			return issued{}, notFound(err, "there is no project %q; make it with: outcrop project create %s", in.ProjectID, in.ProjectID)
		}
	}
	if in.ExpiresInSeconds > 0 {
		t.ExpiresAt = tx.Now.Add(time.Duration(in.ExpiresInSeconds) * time.Second)
	}
	return issued{tokenView(&t), seed}, tx.InsertToken(&t)
}

func defaultTokenName(in api.CreateToken) string {
	switch iam.Role(in.Role) {
	case iam.Node:
		return "node " + in.NodeID
	case iam.Member:
		return "project " + in.ProjectID
	case iam.Join:
		return strings.TrimSpace("join " + in.NodeID)
	}
	return in.Role
}

// maxTokenLife bounds an expiry to what a time.Duration can hold, with room.
const maxTokenLife = 100 * 365 * 24 * 3600

// CheckToken names every problem that a create has by itself.
func CheckToken(in api.CreateToken) error {
	var f []fault.Field
	add := func(path, msg string) { f = append(f, fault.Field{Path: path, Message: msg}) }
	role := iam.Role(in.Role)
	need := func(path, v string, with iam.Role) {
		switch {
		case role == with && v == "":
			add(path, "is needed with role "+string(with))
		case role != with && v != "":
			add(path, "goes with role "+string(with)+" only")
		}
	}
	need("projectId", in.ProjectID, iam.Member)
	if role != iam.Join {
		need("nodeId", in.NodeID, iam.Node)
		if in.Uses != 0 {
			add("uses", "goes with role join only")
		}
		if in.Approve {
			add("approve", "goes with role join only")
		}
	}
	if role != iam.Node && role != iam.Join && in.NodeRole != "" {
		add("nodeRole", "goes with role node and join only")
	}
	if role != iam.Node && role != iam.Join && in.NodeZone != "" {
		add("nodeZone", "goes with role node and join only")
	}
	if in.Uses < 0 || in.Uses > compute.MaxJoinUses {
		add("uses", fmt.Sprintf("is 1 to %d", compute.MaxJoinUses))
	} else if in.Uses > 1 && in.NodeID != "" {
		add("uses", "is 1 where the token is for one node id")
	}
	if role == iam.Join && in.ExpiresInSeconds > int64(compute.JoinTokenMost/time.Second) {
		add("expiresInSeconds", fmt.Sprintf("is at most %d (a day) with role join", compute.JoinTokenMost/time.Second))
	}
	if in.NodeID != "" && !compute.ValidNodeID(in.NodeID) {
		add("nodeId", nodeIDRule)
	}
	if in.ExpiresInSeconds > maxTokenLife {
		add("expiresInSeconds", fmt.Sprintf("is at most %d (100 years); leave it out for a token that does not expire", maxTokenLife))
	}
	return fault.InvalidFields(f)
}

// ListTokens answers a page of tokens, without their secrets.
func (c *Control) ListTokens(ctx context.Context, who iam.Caller, p Page) (api.List[api.Token], error) {
	if err := iam.Allow(who, iam.ListTokens, iam.Scope{}); err != nil {
		return api.List[api.Token]{}, err
	}
	return pageByAge(ctx, c, p, func(tx *store.Tx, after store.Cursor, limit int) ([]store.Token, error) {
		return tx.Tokens(after, limit)
	}, func(t *store.Token) (api.Token, store.Cursor) {
		return tokenView(t), store.After(t.CreatedAt, t.TokenID)
	})
}

// RevokeToken ends a token at once.
func (c *Control) RevokeToken(ctx context.Context, who iam.Caller, id string) error {
	if err := iam.Allow(who, iam.RevokeToken, iam.Scope{}); err != nil {
		return err
	}
	return c.db.Write(ctx, func(tx *store.Tx) error {
		return notFound(tx.RevokeToken(id), "there is no token %q; list them with: outcrop token list", id)
	})
}

// WhoAmI answers who the caller is.
func (c *Control) WhoAmI(_ context.Context, who iam.Caller) (api.Caller, error) {
	if err := iam.Allow(who, iam.WhoAmI, iam.Scope{}); err != nil {
		return api.Caller{}, err
	}
	return api.Caller{TokenID: who.TokenID, Name: who.Name, Role: string(who.Role), ProjectID: who.ProjectID, NodeID: who.NodeID}, nil
}

func tokenView(t *store.Token) api.Token {
	v := api.Token{
		ID: t.TokenID, Name: t.Name, Role: string(t.Role), ProjectID: t.ProjectID, NodeID: t.NodeID, NodeRole: t.NodeRole, NodeZone: t.NodeZone,
		CreatedAt: t.CreatedAt, ExpiresAt: optional(t.ExpiresAt), LastUsedAt: optional(t.LastUsedAt), RevokedAt: optional(t.RevokedAt),
		Approve: t.Approve, KeyID: t.KeyID,
	}
	if t.Role == iam.Join {
		v.UsesLeft = &t.UsesLeft
	}
	return v
}

func optional(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	return &t
}
