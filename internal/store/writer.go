package store

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"sync"

	"github.com/jackc/pgx/v5/pgconn"
)

// maxBatch bounds one shared transaction, so that its first caller does not wait
// for ever behind later ones.
const maxBatch = 2048

// ErrClosed: the database is closing and takes no more writes.
var ErrClosed = errors.New("store: closed")

// maxTries is how often a batch is tried that another server's writes cross.
const maxTries = 5

// errCrossed says that another server wrote the same row meanwhile.
var errCrossed = errors.New("store: another server wrote the same meanwhile")

// crossed reports whether another server's transaction was in the way of one, or
// PostgreSQL ended it because the two waited for each other. Tried again it goes through.
func crossed(err error) bool {
	if errors.Is(err, errCrossed) {
		return true
	}
	pg, ok := errors.AsType[*pgconn.PgError](err)
	return ok && (pg.Code == sqlDeadlock || pg.Code == sqlSerialization)
}

// SQLSTATE codes of PostgreSQL.
const (
	sqlDeadlock      = "40P01"
	sqlSerialization = "40001"
)

// write is one caller's part of a shared transaction: a function or a beat.
type write struct {
	ctx  context.Context
	fn   func(*Tx) error
	beat *Beat
	host *HostBeat
	err  error
	done chan struct{}
}

// writer is the one write path. Whatever has queued up while the last
// transaction was committing becomes the next one, so batches grow with load and
// an idle database answers at once.
type writer struct {
	db      *DB
	queue   chan *write
	stop    chan struct{}
	stopped chan struct{}
	closing sync.RWMutex // held for reading while a write is being queued
	closed  bool
	nodes   nodeCache
	beats   map[int]string // statements by their number of rows; see beatSQL
}

func newWriter(db *DB) *writer {
	w := &writer{db: db, queue: make(chan *write, maxBatch), stop: make(chan struct{}), stopped: make(chan struct{}), nodes: nodeCache{}, beats: map[int]string{}}
	go w.run()
	return w
}

// Write runs fn inside a shared transaction and returns after its commit. An
// error of fn undoes what fn did and nothing else. fn may run again after the
// connection was lost, so it must not have effects outside of tx.
func (db *DB) Write(ctx context.Context, fn func(*Tx) error) error {
	return db.w.do(&write{ctx: ctx, fn: fn, done: make(chan struct{})})
}

func (w *writer) do(op *write) error {
	w.closing.RLock()
	if w.closed {
		w.closing.RUnlock()
		return ErrClosed
	}
	select {
	case w.queue <- op:
		w.closing.RUnlock()
	case <-op.ctx.Done():
		w.closing.RUnlock()
		return op.ctx.Err()
	}
	// Once queued, the caller waits for the truth: giving up here would leave it
	// not knowing whether the write happened.
	<-op.done
	return op.err
}

func (w *writer) close() {
	w.closing.Lock()
	if !w.closed {
		w.closed = true
		close(w.stop)
	}
	w.closing.Unlock()
	<-w.stopped
}

func (w *writer) run() {
	defer close(w.stopped)
	for {
		select {
		case op := <-w.queue:
			w.commit(w.gather(op))
		case <-w.stop:
			for { // what was queued before the close is still done
				select {
				case op := <-w.queue:
					w.commit(w.gather(op))
				default:
					return
				}
			}
		}
	}
}

func (w *writer) gather(first *write) []*write {
	batch := []*write{first}
	for len(batch) < maxBatch {
		select {
		case op := <-w.queue:
			batch = append(batch, op)
		default:
			return batch
		}
	}
	return batch
}

// commit runs the batch in one transaction and answers every caller. When the
// transaction itself fails, nothing of it happened and every caller is told so.
func (w *writer) commit(batch []*write) {
	live := batch[:0:0]
	for _, op := range batch {
		if op.err = op.ctx.Err(); op.err == nil {
			live = append(live, op)
		}
	}
	if len(live) > 0 {
		err := w.transact(live)
		for try := 1; try < maxTries && crossed(err); try++ {
			w.nodes.reset()
			err = w.transact(live)
		}
		if err != nil {
			w.nodes.reset()
			for _, op := range live {
				if op.err == nil {
					op.err = fmt.Errorf("store: the transaction failed: %w", err)
				}
			}
		}
	}
	for _, op := range batch {
		close(op.done)
	}
}

func (w *writer) transact(batch []*write) error {
	// The shared transaction belongs to no single caller.
	ctx := context.Background()
	c, err := w.db.writes.get(ctx)
	if err != nil {
		return err
	}
	defer w.db.writes.put(c)
	if err := c.control(ctx, w.db.dialect.begin); err != nil {
		return err
	}
	tx := &Tx{ctx: ctx, c: c, Now: w.db.now(), rows: w.db.dialect.beatChunk}
	if err := w.apply(tx, batch); err != nil {
		c.broken = true // the connection goes, and the transaction with it
		return err
	}
	return c.control(ctx, "COMMIT")
}

// apply runs every part under its own savepoint. The error it returns is one of
// the transaction, not of a part.
func (w *writer) apply(tx *Tx, batch []*write) error {
	var beats, hosts []*write
	for _, op := range batch {
		if op.beat != nil {
			beats = append(beats, op)
			continue
		}
		if op.host != nil {
			hosts = append(hosts, op)
			continue
		}
		perr, err := tx.savepoint(op.fn)
		if err != nil {
			return err
		}
		op.err = perr
	}
	if err := w.applyBeats(tx, beats); err != nil {
		return err
	}
	return w.applyHostBeats(tx, hosts)
}

// savepoint runs fn so that its failure undoes only its own work. One that another
// server's transaction was in the way of is the whole transaction's: it is tried again.
func (tx *Tx) savepoint(fn func(*Tx) error) (part, whole error) {
	tx.placementSeq = 0 // a part that is undone takes its number with it
	if err := tx.c.control(tx.ctx, "SAVEPOINT part"); err != nil {
		return nil, err
	}
	part = protect(tx, fn)
	if crossed(part) {
		return nil, part
	}
	if part != nil {
		if err := tx.c.control(tx.ctx, "ROLLBACK TO SAVEPOINT part"); err != nil {
			return part, fmt.Errorf("%w (after: %w)", err, part)
		}
	}
	return part, tx.c.control(tx.ctx, "RELEASE SAVEPOINT part")
}

// protect turns a panic of one caller's function into that caller's error.
func protect(tx *Tx, fn func(*Tx) error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("store: panic in a write: %v\n%s", p, debug.Stack())
		}
	}()
	return fn(tx)
}
