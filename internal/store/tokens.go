package store

import (
	"context"
	"errors"
	"runtime"
	"sync"
	"time"

	"github.com/outcrop-cloud/outcrop/internal/iam"
)

// ErrExists: a row with that key is there already.
var ErrExists = errors.New("store: exists")

// Token is a bearer token. Only a keyed hash of its secret is stored.
type Token struct {
	iam.Caller
	MAC        []byte
	CreatedAt  time.Time
	ExpiresAt  time.Time // zero: never
	LastUsedAt time.Time
	RevokedAt  time.Time
	// UsesLeft is how many more machines a join token admits; with Approve an operator
	// has to approve each.
	UsesLeft int64
	Approve  bool
	// KeyID is the fingerprint of the key that a node's credential was given to; empty
	// for a token that somebody made.
	KeyID string
}

// ValidAt reports whether the token may be used.
func (t *Token) ValidAt(now time.Time) bool {
	return t.RevokedAt.IsZero() && (t.ExpiresAt.IsZero() || now.Before(t.ExpiresAt))
}

const tokenSelect = `SELECT id, mac, name, role, project_id, node_id, node_role, node_zone, created_at, expires_at, last_used_at, revoked_at, uses_left, approve, key_id FROM tokens `

func scanToken(scan scanFunc) (t Token, err error) {
	var created, expires, used, revoked, approve int64
	err = scan(&t.TokenID, &t.MAC, &t.Name, &t.Role, &t.ProjectID, &t.NodeID, &t.NodeRole, &t.NodeZone, &created, &expires, &used, &revoked, &t.UsesLeft, &approve, &t.KeyID)
	t.Approve = approve != 0
	t.CreatedAt, t.ExpiresAt, t.LastUsedAt, t.RevokedAt = fromMicros(created), fromMicros(expires), fromMicros(used), fromMicros(revoked)
	return t, err
}

// TokenByMAC reads the token whose secret has the keyed hash; ErrNotFound.
func (db *DB) TokenByMAC(ctx context.Context, mac []byte) (t Token, err error) {
	err = db.look(ctx, func(tx *Tx) (err error) {
		t, err = one(tx, tokenSelect+`WHERE mac = $1`, []any{mac}, scanToken)
		return err
	})
	return t, err
}

// Token reads one token by its id; ErrNotFound.
func (tx *Tx) Token(id string) (Token, error) {
	return one(tx, tokenSelect+`WHERE id = $1`, []any{id}, scanToken)
}

// Tokens reads a page of tokens, oldest first.
func (tx *Tx) Tokens(after Cursor, limit int) ([]Token, error) {
	return list(tx, tokenSelect+`WHERE (created_at, id) > ($1, $2) ORDER BY created_at, id LIMIT $3`, []any{after.At, after.ID, limit}, scanToken)
}

// InsertToken writes a new token.
func (tx *Tx) InsertToken(t *Token) error {
	if err := tx.insertToken(t); err != nil {
		return err
	}
	return tx.bumpAuth()
}

func (tx *Tx) insertToken(t *Token) error {
	approve := 0
	if t.Approve {
		approve = 1
	}
	_, err := tx.exec(`INSERT INTO tokens (id, mac, name, role, project_id, node_id, node_role, node_zone, created_at, expires_at, last_used_at, revoked_at, uses_left, approve, key_id)
		VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, 0, 0, $11, $12, $13)`,
		t.TokenID, t.MAC, t.Name, string(t.Role), t.ProjectID, t.NodeID, t.NodeRole, t.NodeZone, micros(t.CreatedAt), micros(t.ExpiresAt), t.UsesLeft, approve, t.KeyID)
	return err
}

// RevokeToken ends a token from this moment on; revoking twice keeps the first moment.
func (tx *Tx) RevokeToken(id string) error {
	if err := tx.must(ErrNotFound, `UPDATE tokens SET revoked_at = CASE WHEN revoked_at = 0 THEN $2 ELSE revoked_at END WHERE id = $1`, id, micros(tx.Now)); err != nil {
		return err
	}
	return tx.bumpAuth()
}

// RevokeNodeTokens ends all tokens of a node.
func (tx *Tx) RevokeNodeTokens(nodeID string) error { return tx.revokeBy("node_id", nodeID) }

// RevokeProjectTokens ends all tokens of a project.
func (tx *Tx) RevokeProjectTokens(projectID string) error {
	return tx.revokeBy("project_id", projectID)
}

func (tx *Tx) revokeBy(column, value string) error {
	if _, err := tx.exec(`UPDATE tokens SET revoked_at = $2 WHERE `+column+` = $1 AND revoked_at = 0`, value, micros(tx.Now)); err != nil {
		return err
	}
	return tx.bumpAuth()
}

// TouchTokens writes when tokens were last used.
func (tx *Tx) TouchTokens(used map[string]time.Time) error {
	for id, at := range used {
		if _, err := tx.exec(`UPDATE tokens SET last_used_at = $2 WHERE id = $1 AND last_used_at < $2`, id, micros(at)); err != nil {
			return err
		}
	}
	return nil
}

func (tx *Tx) bumpAuth() error {
	_, err := tx.exec(`UPDATE settings SET value = value + 1 WHERE name = 'auth_generation'`)
	return err
}

// AuthGeneration changes with every change of a token.
func (tx *Tx) AuthGeneration() (n int64, err error) {
	return n, tx.get(`SELECT value FROM settings WHERE name = 'auth_generation'`, nil, &n)
}

// AuthGeneration reads the generation, beginning after the call began, so that a
// token revoked before the call (by whatever server or command) is seen. Callers
// that wait together share one read.
func (db *DB) AuthGeneration(ctx context.Context) (int64, error) { return db.auth.read(ctx) }

// authGate is the shared read: while one runs, all newcomers wait for the next.
type authGate struct {
	db   *DB
	mu   sync.Mutex
	next *authRead
	kick chan struct{}
	quit chan struct{}
	done chan struct{}
}

type authRead struct {
	done chan struct{}
	gen  int64
	err  error
}

func newAuthGate(db *DB) *authGate {
	g := &authGate{db: db, kick: make(chan struct{}, 1), quit: make(chan struct{}), done: make(chan struct{})}
	go g.run()
	return g
}

func (g *authGate) read(ctx context.Context) (int64, error) {
	g.mu.Lock()
	r := g.next
	if r == nil {
		r = &authRead{done: make(chan struct{})}
		g.next = r
		g.kick <- struct{}{} // room for one; only the first waiter kicks
	}
	g.mu.Unlock()
	select {
	case <-r.done:
		return r.gen, r.err
	case <-ctx.Done():
		return 0, ctx.Err()
	case <-g.done:
		return 0, ErrClosed
	}
}

func (g *authGate) run() {
	defer close(g.done)
	for {
		select {
		case <-g.kick:
		case <-g.quit:
			return
		}
		runtime.Gosched() // whoever is about to ask joins
		g.mu.Lock()
		r := g.next
		g.next = nil
		g.mu.Unlock()
		r.err = g.db.look(context.Background(), func(tx *Tx) (err error) {
			r.gen, err = tx.AuthGeneration()
			return err
		})
		close(r.done)
	}
}

func (g *authGate) close() {
	select {
	case <-g.quit:
	default:
		close(g.quit)
	}
	<-g.done
}
