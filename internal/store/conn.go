package store

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"io/fs"
	"time"
)

func subFS() (fs.FS, error) { return fs.Sub(migrations, "migrations") }

// pool lends connections. database/sql pools too, but a transaction of its own
// prepares every statement anew; a conn here keeps what it has prepared.
type pool struct {
	db   *sql.DB
	free chan *conn // nil entries stand for connections not yet made
}

func newPool(db *sql.DB, n int) *pool {
	p := &pool{db: db, free: make(chan *conn, n)}
	for range n {
		p.free <- nil
	}
	return p
}

func (p *pool) get(ctx context.Context) (*conn, error) {
	select {
	case c, open := <-p.free:
		if !open {
			return nil, ErrClosed
		}
		if c != nil {
			return c, nil
		}
		sc, err := p.db.Conn(ctx)
		if err != nil {
			p.free <- nil
			return nil, err
		}
		return &conn{c: sc, stmts: map[string]*sql.Stmt{}}, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (p *pool) put(c *conn) {
	if c.broken {
		c.close()
		c = nil
	}
	p.free <- c
}

func (p *pool) close() error {
	for range cap(p.free) {
		if c := <-p.free; c != nil {
			c.close()
		}
	}
	close(p.free) // all are back, so nobody puts one any more
	return p.db.Close()
}

// conn is one database connection with its prepared statements.
type conn struct {
	c      *sql.Conn
	stmts  map[string]*sql.Stmt
	broken bool // state unknown: make a new one
}

func (c *conn) close() {
	for _, s := range c.stmts {
		s.Close()
	}
	// A raw connection in an unknown state must not go back into database/sql's
	// own pool.
	_ = c.c.Raw(func(any) error { return errBroken(c.broken) })
	_ = c.c.Close()
}

func errBroken(broken bool) error {
	if broken {
		return driver.ErrBadConn
	}
	return nil
}

// control runs a statement that ends or begins a transaction; a failure leaves
// the connection in a state that nobody knows.
func (c *conn) control(ctx context.Context, q string) error {
	s, err := c.prepare(ctx, q)
	if err == nil {
		_, err = s.ExecContext(ctx)
	}
	if err != nil {
		c.broken = true
	}
	return err
}

func (c *conn) prepare(ctx context.Context, q string) (*sql.Stmt, error) {
	if s, ok := c.stmts[q]; ok {
		return s, nil
	}
	s, err := c.c.PrepareContext(ctx, q)
	if err != nil {
		return nil, err
	}
	c.stmts[q] = s
	return s, nil
}

// Tx is one transaction, or one function's part of a shared one.
type Tx struct {
	ctx context.Context
	c   *conn
	// Now is the moment of the transaction on the platform's clock.
	Now time.Time
	// placementSeq is the number that LockPlacement drew in this part; 0: none yet.
	placementSeq int64
	rows         int // of one statement with many rows; see dialect
}

func (tx *Tx) exec(q string, args ...any) (int64, error) {
	s, err := tx.c.prepare(tx.ctx, q)
	if err != nil {
		return 0, err
	}
	r, err := s.ExecContext(tx.ctx, args...)
	if err != nil {
		return 0, err
	}
	return r.RowsAffected()
}

// must is exec for a statement that has to touch exactly one row.
func (tx *Tx) must(none error, q string, args ...any) error {
	n, err := tx.exec(q, args...)
	if err == nil && n == 0 {
		return none
	}
	return err
}

func (tx *Tx) get(q string, args []any, dest ...any) error {
	s, err := tx.c.prepare(tx.ctx, q)
	if err != nil {
		return err
	}
	err = s.QueryRowContext(tx.ctx, args...).Scan(dest...)
	if errors.Is(err, sql.ErrNoRows) {
		return ErrNotFound
	}
	return err
}

// scanFunc is (*sql.Rows).Scan or (*sql.Row).Scan.
type scanFunc func(dest ...any) error

func (tx *Tx) each(q string, args []any, row func(scan scanFunc) error) error {
	s, err := tx.c.prepare(tx.ctx, q)
	if err != nil {
		return err
	}
	rows, err := s.QueryContext(tx.ctx, args...)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		if err := row(rows.Scan); err != nil {
			return err
		}
	}
	return rows.Err()
}

// list collects what one makes of each row.
func list[T any](tx *Tx, q string, args []any, one func(scanFunc) (T, error)) ([]T, error) {
	var out []T
	err := tx.each(q, args, func(scan scanFunc) error {
		v, err := one(scan)
		out = append(out, v)
		return err
	})
	return out, err
}

// one is list for a query of at most one row; ErrNotFound when there is none.
func one[T any](tx *Tx, q string, args []any, conv func(scanFunc) (T, error)) (T, error) {
	all, err := list(tx, q, args, conv)
	if err == nil && len(all) == 0 {
		err = ErrNotFound
	}
	if err != nil {
		var zero T
		return zero, err
	}
	return all[0], nil
}

// micros turns a moment into its column; the zero time is 0.
func micros(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixMicro()
}

func fromMicros(n int64) time.Time {
	if n == 0 {
		return time.Time{}
	}
	return time.UnixMicro(n).UTC()
}
