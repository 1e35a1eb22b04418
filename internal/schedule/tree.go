package schedule

import (
	"cmp"

	"github.com/outcrop-cloud/outcrop/internal/compute"
)

// entry is a node of an Index. Entries that may be placed on are linked into the
// tree of their pool: a treap ordered by load and id, in which every entry knows
// the most room of any kind below it, so that a search steps over branches
// without room.
type entry struct {
	view
	divided     string        // see postings.divide
	room        compute.Usage // committable less used; may be negative
	most        compute.Usage // of the entry and all below it, each resource by itself
	left, right *entry
	rank        uint64 // random; a parent's is never below its children's
	pool        *pool  // nil while the entry is not placed on
	at          [len(levels)]int
}

func (e *entry) compare(f *entry) int {
	return cmp.Or(cmp.Compare(e.load, f.load), cmp.Compare(e.ID, f.ID))
}

// settle brings most up to date with the children's.
func (e *entry) settle() *entry {
	e.most = e.room
	for _, c := range [...]*entry{e.left, e.right} {
		if c != nil {
			e.most.VCPUs = max(e.most.VCPUs, c.most.VCPUs)
			e.most.MemoryBytes = max(e.most.MemoryBytes, c.most.MemoryBytes)
			e.most.DiskBytes = max(e.most.DiskBytes, c.most.DiskBytes)
		}
	}
	return e
}

// split divides t into what is before e and what is behind it.
func split(t, e *entry) (before, behind *entry) {
	switch {
	case t == nil:
		return nil, nil
	case t.compare(e) < 0:
		t.right, behind = split(t.right, e)
		return t.settle(), behind
	default:
		before, t.left = split(t.left, e)
		return before, t.settle()
	}
}

// join is one tree of a and b, where all of a is before all of b.
func join(a, b *entry) *entry {
	switch {
	case a == nil:
		return b
	case b == nil:
		return a
	case a.rank >= b.rank:
		a.right = join(a.right, b)
		return a.settle()
	default:
		b.left = join(a, b.left)
		return b.settle()
	}
}

// insert is t with e, which is in no tree.
func insert(t, e *entry) *entry {
	switch {
	case t == nil || e.rank > t.rank:
		e.left, e.right = split(t, e)
		return e.settle()
	case e.compare(t) < 0:
		t.left = insert(t.left, e)
	default:
		t.right = insert(t.right, e)
	}
	return t.settle()
}

// remove is t without e, which is in it with the load that it had when inserted.
func remove(t, e *entry) *entry {
	switch c := e.compare(t); {
	case c == 0:
		t = join(e.left, e.right)
		e.left, e.right = nil, nil
		return t
	case c < 0:
		t.left = remove(t.left, e)
	default:
		t.right = remove(t.right, e)
	}
	return t.settle()
}

// first is the first entry from load on that is accepted.
func (e *entry) first(load float64, q *query, accept func(*entry) bool) *entry {
	for e != nil && q.roomIn(&e.most) {
		if e.load >= load {
			if f := e.left.first(load, q, accept); f != nil {
				return f
			}
			if q.roomIn(&e.room) && accept(e) {
				return e
			}
		}
		e = e.right
	}
	return nil
}

// last is the last entry that is accepted.
func (e *entry) last(q *query, accept func(*entry) bool) *entry {
	for e != nil && q.roomIn(&e.most) {
		if f := e.right.last(q, accept); f != nil {
			return f
		}
		if q.roomIn(&e.room) && accept(e) {
			return e
		}
		e = e.left
	}
	return nil
}

// roomIn reports whether the need is within room. What is not needed has room
// everywhere.
func (q *query) roomIn(room *compute.Usage) bool {
	return (q.need.VCPUs == 0 || q.need.VCPUs <= room.VCPUs) &&
		(q.need.MemoryBytes == 0 || q.need.MemoryBytes <= room.MemoryBytes) &&
		(q.need.DiskBytes == 0 || q.need.DiskBytes <= room.DiskBytes)
}
