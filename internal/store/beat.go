package store

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"time"

	"github.com/outcrop-cloud/outcrop/internal/compute"
)

// Beat is one heartbeat on its way into the database.
type Beat struct {
	NodeID    string
	Facts     compute.NodeFacts
	SampledAt time.Time
	BootID    string
	// First is what a node that is not known yet starts with.
	First compute.NodeSpec

	// Node is the answer, set once the beat is committed. It is shared: read only.
	Node *compute.Node
	// SeenAt is the platform's moment of this beat.
	SeenAt time.Time
	// Registered: this beat made the node known.
	Registered bool
}

// Heartbeat writes a beat and returns after the commit. Beats that wait together
// share one statement: the small liveness row is written for each, the fat facts
// only where they changed.
func (db *DB) Heartbeat(ctx context.Context, b *Beat) error {
	return db.w.do(&write{ctx: ctx, beat: b, done: make(chan struct{})})
}

// nodeCache holds node records as last read by the writer, by node id. An entry
// counts only while its revision is the row's, which every beat's own statement
// returns; so another server on the same database is never a danger to it.
type nodeCache map[string]*compute.Node

func (c nodeCache) reset() { clear(c) }

func (w *writer) applyBeats(tx *Tx, ops []*write) error {
	var known []*write
	seen := make(map[string]bool, len(ops))
	flush := func() error {
		err := w.beatKnown(tx, known)
		known = known[:0]
		clear(seen)
		return err
	}
	for _, op := range ops {
		id := op.beat.NodeID
		if seen[id] { // one statement may not touch a row twice
			if err := flush(); err != nil {
				return err
			}
		}
		if w.nodes[id] == nil {
			if err := w.beatAlone(tx, op); err != nil {
				return err
			}
			continue
		}
		seen[id] = true
		known = append(known, op)
		if len(known) == w.db.dialect.beatChunk {
			if err := flush(); err != nil {
				return err
			}
		}
	}
	return flush()
}

// beatKnown writes the liveness rows of nodes in the cache with one statement.
// When it fails (a node was deleted meanwhile), each goes its own way.
func (w *writer) beatKnown(tx *Tx, ops []*write) error {
	if len(ops) == 0 {
		return nil
	}
	revisions := make(map[string]int64, len(ops))
	part, whole := tx.savepoint(func(tx *Tx) error {
		args := make([]any, 0, 4*len(ops))
		for _, op := range ops {
			args = append(args, op.beat.NodeID, micros(tx.Now), micros(op.beat.SampledAt), op.beat.BootID)
		}
		return tx.each(beatSQL(len(ops)), args, func(scan scanFunc) error {
			var id string
			var rev int64
			if err := scan(&id, &rev); err != nil {
				return err
			}
			revisions[id] = rev
			return nil
		})
	})
	if whole != nil {
		return whole
	}
	for _, op := range ops {
		b := op.beat
		n := w.nodes[b.NodeID]
		if part == nil && n.Revision == revisions[b.NodeID] && n.Facts.Equal(&b.Facts) {
			b.Node, b.SeenAt = n, tx.Now
			continue
		}
		if err := w.beatAlone(tx, op); err != nil {
			return err
		}
	}
	return nil
}

var beatStatements = map[int]string{}

// beatSQL is the upsert of n liveness rows. Only the writer's goroutine asks.
func beatSQL(n int) string {
	if s, ok := beatStatements[n]; ok {
		return s
	}
	var b strings.Builder
	b.WriteString("INSERT INTO node_liveness (node_id, seen_at, sampled_at, boot_id, revision, desired) VALUES ")
	for i := range n {
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteByte('(')
		for j := range 4 {
			b.WriteString("$" + strconv.Itoa(4*i+j+1) + ",")
		}
		b.WriteString("1,1)")
	}
	b.WriteString(" ON CONFLICT (node_id) DO UPDATE SET seen_at = excluded.seen_at, sampled_at = excluded.sampled_at, boot_id = excluded.boot_id RETURNING node_id, revision")
	beatStatements[n] = b.String()
	return b.String()
}

// beatAlone registers a node, or writes changed facts, and refreshes the cache.
func (w *writer) beatAlone(tx *Tx, op *write) error {
	var node *compute.Node
	registered := false
	part, whole := tx.savepoint(func(tx *Tx) (err error) {
		node, registered, err = tx.beat(op.beat)
		return err
	})
	if whole != nil {
		return whole
	}
	op.err = part
	if part != nil {
		delete(w.nodes, op.beat.NodeID)
		return nil
	}
	w.nodes[op.beat.NodeID] = node
	op.beat.Node, op.beat.SeenAt, op.beat.Registered = node, tx.Now, registered
	return nil
}

func (tx *Tx) beat(b *Beat) (node *compute.Node, registered bool, err error) {
	n, err := tx.Node(b.NodeID)
	switch {
	case errors.Is(err, ErrNotFound):
		n = compute.Node{ID: b.NodeID, Facts: b.Facts, Spec: b.First, State: compute.NodeReady, CreatedAt: tx.Now, Revision: 1}
		if err := tx.insertNode(&n); err != nil {
			return nil, false, err
		}
		registered = true
	case err != nil:
		return nil, false, err
	case !n.Facts.Equal(&b.Facts):
		n.Facts = b.Facts
		if err := tx.UpdateNode(&n); err != nil {
			return nil, false, err
		}
	}
	n.Liveness = compute.Liveness{SeenAt: tx.Now, SampledAt: b.SampledAt, BootID: b.BootID}
	_, err = tx.exec(`INSERT INTO node_liveness (node_id, seen_at, sampled_at, boot_id, revision, desired) VALUES ($1, $2, $3, $4, $5, 1)
		ON CONFLICT (node_id) DO UPDATE SET seen_at = excluded.seen_at, sampled_at = excluded.sampled_at, boot_id = excluded.boot_id`,
		n.ID, micros(tx.Now), micros(b.SampledAt), b.BootID, n.Revision)
	return &n, registered, err
}
