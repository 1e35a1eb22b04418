// Package store keeps everything that must survive in SQLite (embedded) or
// PostgreSQL, with one SQL text for both.
//
// Reads run side by side. Writes take one path: callers' functions are gathered
// into one transaction (group commit) and each is answered after the commit, so
// a hundred waiting writers pay for one fsync. Inside it every function has its
// own savepoint: one that fails takes nothing of the others with it.
package store

import (
	"context"
	"database/sql"
	"embed"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	_ "github.com/jackc/pgx/v5/stdlib" // database/sql driver "pgx"
	"github.com/pressly/goose/v3"
	"github.com/pressly/goose/v3/lock"
	_ "modernc.org/sqlite" // database/sql driver "sqlite"
)

//go:embed migrations/*.sql
var migrations embed.FS

// ErrNotFound: no row.
var ErrNotFound = errors.New("store: not found")

// ErrStale: the row was changed by somebody else since it was read.
var ErrStale = errors.New("store: row changed meanwhile")

// Options say where the database is.
type Options struct {
	Dir   string // folder of the embedded database
	URL   string // postgres://…; wins over Dir
	Now   func() time.Time
	Log   *slog.Logger
	Reads int // connections for reads; 0 means 8
}

// DB is an open database.
type DB struct {
	dialect dialect
	writes  *pool // one connection
	reads   *pool
	now     func() time.Time
	log     *slog.Logger
	w       *writer
	auth    *authGate
	close   func() error // once
}

// dialect is what differs between the two databases beside the SQL text.
type dialect struct {
	name      string
	driver    string
	goose     goose.Dialect
	begin     string
	beatChunk int // rows of one statement; see beat.go
	hostChunk int // likewise; see hostbeat.go
}

var (
	// SQLite's driver looks up each numbered parameter among all, so that long
	// statements cost their length squared.
	sqlite   = dialect{"sqlite", "sqlite", goose.DialectSQLite3, "BEGIN IMMEDIATE", 16, 4}
	postgres = dialect{"postgres", "pgx", goose.DialectPostgres, "BEGIN", 256, 64}
)

// Open opens the database, brings its schema up to this binary's and starts the
// write path. A database that a newer binary has migrated is refused.
func Open(ctx context.Context, o Options) (*DB, error) {
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Reads == 0 {
		o.Reads = 8
	}
	clock := o.Now
	// What is answered before it was stored must equal what is read later.
	o.Now = func() time.Time { return clock().UTC().Truncate(time.Microsecond) }
	d, writeDSN, readDSN, err := resolve(o)
	if err != nil {
		return nil, err
	}
	wdb, err := sql.Open(d.driver, writeDSN)
	if err != nil {
		return nil, fmt.Errorf("opening the database: %w", withoutDSN(err, o.URL))
	}
	if err := migrate(ctx, wdb, d); err != nil {
		wdb.Close()
		return nil, withoutDSN(err, o.URL)
	}
	rdb, err := sql.Open(d.driver, readDSN)
	if err != nil {
		wdb.Close()
		return nil, fmt.Errorf("opening the database: %w", withoutDSN(err, o.URL))
	}
	db := &DB{dialect: d, writes: newPool(wdb, 1), reads: newPool(rdb, o.Reads), now: o.Now, log: o.Log}
	db.w = newWriter(db)
	db.auth = newAuthGate(db)
	db.close = sync.OnceValue(db.closeAll)
	return db, nil
}

func resolve(o Options) (d dialect, write, read string, err error) {
	if o.URL != "" {
		u, err := url.Parse(o.URL)
		if err != nil || (u.Scheme != "postgres" && u.Scheme != "postgresql") {
			return d, "", "", errors.New("--database takes postgres://USER:PASSWORD@HOST:PORT/NAME; leave it out for the embedded database")
		}
		return postgres, o.URL, o.URL, nil
	}
	if err := os.MkdirAll(o.Dir, 0o700); err != nil {
		return d, "", "", err
	}
	file := filepath.Join(o.Dir, "outcrop.db")
	f, err := os.OpenFile(file, os.O_CREATE|os.O_RDWR, 0o600) // before SQLite makes it readable by all
	if err != nil {
		return d, "", "", err
	}
	f.Close()
	base := "file:" + (&url.URL{Path: file}).EscapedPath() +
		"?_pragma=busy_timeout(10000)&_pragma=journal_mode(WAL)&_pragma=synchronous(FULL)&_pragma=foreign_keys(1)&_pragma=cache_size(-65536)"
	return sqlite, base + "&_pragma=journal_size_limit(67108864)", base + "&_pragma=query_only(1)", nil
}

// withoutDSN keeps the password of a database address out of errors.
func withoutDSN(err error, dsn string) error {
	if u, perr := url.Parse(dsn); perr == nil && u.User != nil {
		if pw, ok := u.User.Password(); ok && pw != "" && strings.Contains(err.Error(), pw) {
			return errors.New(strings.ReplaceAll(err.Error(), pw, "…"))
		}
	}
	return err
}

func migrate(ctx context.Context, db *sql.DB, d dialect) error {
	var opts []goose.ProviderOption
	if d.name == "postgres" {
		l, err := lock.NewPostgresSessionLocker() // two servers may start at once
		if err != nil {
			return err
		}
		opts = append(opts, goose.WithSessionLocker(l))
	}
	fsys, err := subFS()
	if err != nil {
		return err
	}
	p, err := goose.NewProvider(d.goose, db, fsys, opts...)
	if err != nil {
		return err
	}
	have, err := p.GetDBVersion(ctx)
	if err != nil {
		return fmt.Errorf("reading the schema version: %w", err)
	}
	sources := p.ListSources()
	if want := sources[len(sources)-1].Version; have > want {
		return fmt.Errorf("the database has schema version %d, this binary knows up to %d: it was used by a newer outcrop; run that one, or restore the backup from before the upgrade", have, want)
	}
	if _, err := p.Up(ctx); err != nil {
		return fmt.Errorf("migrating the database: %w", err)
	}
	return nil
}

// Close lets running writes finish and closes the database.
func (db *DB) Close() error { return db.close() }

func (db *DB) closeAll() error {
	db.w.close()
	db.auth.close()
	return errors.Join(db.reads.close(), db.writes.close())
}

// Ping answers nil when the database takes both reads and writes.
func (db *DB) Ping(ctx context.Context) error {
	if err := db.Read(ctx, func(tx *Tx) error {
		_, err := tx.AuthGeneration()
		return err
	}); err != nil {
		return err
	}
	return db.Write(ctx, func(*Tx) error { return nil })
}

// Dialect is "sqlite" or "postgres".
func (db *DB) Dialect() string { return db.dialect.name }

// look runs fn outside of any transaction. One statement alone is a snapshot of
// its own, and begin and commit cost more than a small one.
func (db *DB) look(ctx context.Context, fn func(*Tx) error) error {
	c, err := db.reads.get(ctx)
	if err != nil {
		return err
	}
	defer db.reads.put(c)
	if err = fn(&Tx{ctx: ctx, c: c, Now: db.now()}); err != nil && !errors.Is(err, ErrNotFound) {
		c.broken = true // perhaps only the statement failed; a new connection is cheap
	}
	return err
}

// Read runs fn on one snapshot of the database.
func (db *DB) Read(ctx context.Context, fn func(*Tx) error) error {
	c, err := db.reads.get(ctx)
	if err != nil {
		return err
	}
	defer db.reads.put(c)
	tx := &Tx{ctx: ctx, c: c, Now: db.now()}
	begin := "BEGIN"
	if db.dialect.name == "postgres" {
		begin = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"
	}
	if err := c.control(ctx, begin); err != nil {
		return err
	}
	err = fn(tx)
	// The end must reach the connection even when the caller has gone.
	if cerr := c.control(context.WithoutCancel(ctx), "COMMIT"); cerr != nil && err == nil {
		err = cerr
	}
	return err
}
