package store

import (
	"context"
	"errors"
	"fmt"
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
	// First is what the very first node starts with, where that is anything; all later
	// ones start with nothing.
	First *compute.NodeSpec
	// Like, where set, is an earlier beat's Node with these very Facts.
	Like *compute.Node

	// Node is the answer, set once the beat is committed. It is shared: read only.
	Node *compute.Node
	// SeenAt is the platform's moment of this beat.
	SeenAt time.Time
	// Registered: this beat made the node known.
	Registered bool
	// Before is the record as it was, where this beat changed its facts.
	Before *compute.Node
	// Clash: another machine claims the node's id (contract N-21). Refused: it is the
	// sender of this beat, which then changed nothing of the node.
	Clash   *compute.Clash
	Refused bool
}

// Heartbeat writes a beat and returns after the commit. Beats that wait together
// share one statement: the small liveness row is written for each, the fat facts
// only where they changed.
func (db *DB) Heartbeat(ctx context.Context, b *Beat) error {
	return db.w.do(&write{ctx: ctx, beat: b, done: make(chan struct{})})
}

// nodeCache holds node records as last read by the writer, by node id. An entry
// counts only while its revision is the row's, which every beat's own statement
// checks; so another server on the same database is never a danger to it.
type nodeCache map[string]*compute.Node

func (c nodeCache) reset() { clear(c) }

func (w *writer) applyBeats(tx *Tx, ops []*write) error {
	if err := w.recall(tx, ops); err != nil {
		return err
	}
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
		if n := w.nodes[id]; n == nil || !n.Calm(op.beat.BootID) || n != op.beat.Like && !n.Facts.Equal(&op.beat.Facts) {
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

// recallChunk is how many nodes are read with one statement.
const recallChunk = 64

var recallSQL = func() string {
	var b strings.Builder
	b.WriteString(nodeSelect + "WHERE n.id IN ($1")
	for i := 2; i <= recallChunk; i++ {
		fmt.Fprintf(&b, ",$%d", i)
	}
	return b.String() + ")"
}()

// recall reads nodes into the cache that are not there: after a start of the
// server all of them beat within a minute.
func (w *writer) recall(tx *Tx, ops []*write) error {
	ids := make([]any, 0, recallChunk)
	flush := func() error {
		if len(ids) < 2 {
			return nil // beatAlone reads it
		}
		for len(ids) < recallChunk { // so that it is one statement for all numbers
			ids = append(ids, ids[0])
		}
		nodes, err := list(tx, recallSQL, ids, scanNode)
		for i := range nodes {
			w.nodes[nodes[i].ID] = &nodes[i]
		}
		ids = ids[:0]
		return err
	}
	for _, op := range ops {
		if w.nodes[op.beat.NodeID] != nil {
			continue
		}
		if ids = append(ids, op.beat.NodeID); len(ids) == recallChunk {
			if err := flush(); err != nil {
				return err
			}
		}
	}
	return flush()
}

// beatKnown writes the liveness rows of nodes that are as in the cache, with
// one statement that leaves rows of another revision alone. Where there was one,
// or a node was deleted meanwhile, the halves find out which.
func (w *writer) beatKnown(tx *Tx, ops []*write) error {
	if len(ops) == 0 {
		return nil
	}
	var touched int64
	part, whole := tx.savepoint(func(tx *Tx) (err error) {
		args := make([]any, 1, 1+4*len(ops))
		args[0] = micros(tx.Now)
		for _, op := range ops {
			b := op.beat
			args = append(args, b.NodeID, micros(b.SampledAt), b.BootID, w.nodes[b.NodeID].Revision)
		}
		touched, err = tx.exec(w.beatSQL(len(ops)), args...)
		return err
	})
	switch {
	case whole != nil:
		return whole
	case part == nil && touched == int64(len(ops)):
		for _, op := range ops {
			op.beat.Node, op.beat.SeenAt = w.nodes[op.beat.NodeID], tx.Now
		}
		return nil
	case len(ops) == 1:
		return w.beatAlone(tx, ops[0])
	}
	half := len(ops) / 2
	if err := w.beatKnown(tx, ops[:half]); err != nil {
		return err
	}
	return w.beatKnown(tx, ops[half:])
}

// beatSQL is the upsert of n liveness rows.
func (w *writer) beatSQL(n int) string {
	if s, ok := w.beats[n]; ok {
		return s
	}
	var b strings.Builder
	b.WriteString("INSERT INTO node_liveness (node_id, seen_at, sampled_at, boot_id, revision, desired) VALUES ")
	for i := range n {
		if i > 0 {
			b.WriteByte(',')
		}
		fmt.Fprintf(&b, "($%d,$1,$%d,$%d,$%d,1)", 4*i+2, 4*i+3, 4*i+4, 4*i+5)
	}
	b.WriteString(` ON CONFLICT (node_id) DO UPDATE SET seen_at = excluded.seen_at, sampled_at = excluded.sampled_at, boot_id = excluded.boot_id
		WHERE node_liveness.revision = excluded.revision`)
	w.beats[n] = b.String()
	return w.beats[n]
}

// firstSpec is first where no node is known yet, else nothing: what an operator chose
// for the machine of a single-node install is none of the others' (contract N-09).
func (tx *Tx) firstSpec(first *compute.NodeSpec) (s compute.NodeSpec, err error) {
	if first == nil {
		return s, nil
	}
	n, err := tx.CountNodes()
	if err != nil || n > 0 {
		return s, err
	}
	return *first, nil
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
	if node == nil {
		return nil // refused, and not known
	}
	w.nodes[op.beat.NodeID] = node
	op.beat.Node, op.beat.SeenAt, op.beat.Registered = node, tx.Now, registered
	return nil
}

// beat registers a node, or writes what its beat changes of the record: its facts,
// its boot, and what follows from that.
func (tx *Tx) beat(b *Beat) (node *compute.Node, registered bool, err error) {
	n, err := tx.NodeToChange(b.NodeID)
	b.Before = nil
	switch {
	case errors.Is(err, ErrNotFound):
		// Revisions begin with the clock, so that a node which was deleted and comes
		// again is never taken for what another server remembers of it.
		n = compute.Node{ID: b.NodeID, Facts: b.Facts, CreatedAt: tx.Now, Revision: micros(tx.Now)}
		if n.Spec, err = tx.firstSpec(b.First); err != nil {
			return nil, false, err
		}
		if err := tx.bindJoined(&n, b); err != nil || b.Refused {
			return nil, false, err
		}
		if err := tx.insertNode(&n); err != nil {
			return nil, false, err
		}
		registered = true
	case err != nil:
		return nil, false, err
	default:
		before := n
		var claimed bool
		if b.Clash, b.Refused, claimed = n.Claim(b.claimant(), tx.Now); b.Refused {
			if claimed {
				err = tx.UpdateNode(&n)
			}
			return &n, false, err
		}
		changed := n.Heard(b.BootID, tx.Now) || claimed
		if !n.Facts.Equal(&b.Facts) {
			b.Before, n.Facts, changed = &before, b.Facts, true
		}
		if changed {
			if err := tx.UpdateNode(&n); err != nil {
				return nil, false, err
			}
		}
		if n.Power != before.Power { // what the node is told of it has changed
			if err := tx.TouchNode(n.ID); err != nil {
				return nil, false, err
			}
			n.Revision++
		}
	}
	n.Liveness = compute.Liveness{SeenAt: tx.Now, SampledAt: b.SampledAt, BootID: b.BootID}
	_, err = tx.exec(`INSERT INTO node_liveness (node_id, seen_at, sampled_at, boot_id, revision, desired) VALUES ($1, $2, $3, $4, $5, 1)
		ON CONFLICT (node_id) DO UPDATE SET seen_at = excluded.seen_at, sampled_at = excluded.sampled_at, boot_id = excluded.boot_id`,
		n.ID, micros(tx.Now), micros(b.SampledAt), b.BootID, n.Revision)
	return &n, registered, err
}
