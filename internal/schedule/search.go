package schedule

import (
	"iter"
	"maps"
	"slices"

	"github.com/outcrop-cloud/outcrop/internal/compute"
)

// few nodes are better looked at one by one than come upon while walking through
// the fleet in order; and one in so many is rare enough to be looked up.
const few = 64

// Place decides as the function Place does for the nodes of the Index.
func (ix *Index) Place(r Request) Decision {
	d := ix.Pick(r)
	if d.NodeID == "" {
		return ix.explain(&r, d)
	}
	return d
}

// Pick is Place without the reasons when nothing fits, which cost a look at every
// node: for the next try of a request that has been told why it waits.
func (ix *Index) Pick(r Request) Decision {
	c, from := ix.census(r.Group), ix.node(r.fromID())
	for _, partition := range r.partitions(c) {
		q := newQuery(&r, c, partition, from)
		if e := ix.best(&q); e != nil {
			return Decision{NodeID: e.ID, Partition: partition, EverFits: true}
		}
	}
	return Decision{}
}

// Explain decides as the function Explain does for the nodes of the Index.
func (ix *Index) Explain(r Request) Decision {
	return ix.explain(&r, ix.Pick(r))
}

// Check is what the function Check says of the nodes of the Index.
func (ix *Index) Check(nodeID string, partition int64, r Request) []Shortfall {
	e := ix.nodes[nodeID]
	if e == nil {
		return []Shortfall{{Code: CodeGone}}
	}
	q := newQuery(&r, ix.census(r.Group), partition, ix.node(r.fromID()))
	q.staying = true
	return q.misses(&e.view, nil)
}

func (ix *Index) explain(r *Request, d Decision) Decision {
	return explain(r, d, ix.census(r.Group), ix.node(r.fromID()), func(yield func(*view) bool) {
		for _, e := range ix.nodes {
			if !yield(&e.view) {
				return
			}
		}
	})
}

func (ix *Index) node(id string) *Node {
	if e := ix.nodes[id]; e != nil {
		return e.Node
	}
	return nil
}

func (ix *Index) census(g *Group) census {
	if g == nil {
		return nil
	}
	if of := ix.groups[g.ID]; of != nil {
		return of[levelOf(g.Rule.Level)]
	}
	return nil
}

// search is the best node so far.
type search struct {
	*query
	tier     int64 // the cost to the group's rule that counts now
	best     *entry
	at       standing
	dividing []string // label keys
	tries    int      // nodes that a walk may still look at closely; negative when it gave up
}

func (ix *Index) best(q *query) *entry {
	s := search{query: q}
	if q.level < 0 {
		ix.look(&s, tier{all: true})
		return s.best
	}
	for t := range ix.tiers(q) {
		s.tier = t.cost
		if ix.look(&s, t); s.best != nil {
			break
		}
	}
	return s.best
}

// look finds the best node of a tier. Where lists hold all of its nodes that can
// fit, it walks no longer than reading the shortest of them would take: a walk
// ends early when many fit, a list is short when few can.
func (ix *Index) look(s *search, t tier) {
	lists, n := ix.narrow(s.Selectors)
	s.dividing = ix.labels.dividing
	if !t.all {
		if listed := ix.count(s.level, t.domains); listed < n {
			lists, n = nil, listed
			for _, d := range t.domains {
				lists = append(lists, slices.Values(ix.domains[s.level][d]))
			}
		}
	}
	if n > ix.few {
		if s.tries = n; ix.walk(s) {
			return
		}
	}
	s.tries = n
	for _, list := range lists {
		s.scan(list)
	}
}

func (s *search) fits(e *entry) bool {
	if s.tries--; s.tries < 0 {
		return true // to end the walk
	}
	if s.level >= 0 {
		if c, ok := s.ranks.cost(e.domains[s.level]); !ok || c != s.tier {
			return false
		}
	}
	return s.query.fits(&e.view)
}

// scan looks at every one of the entries.
func (s *search) scan(entries iter.Seq[*entry]) {
	for e := range entries {
		if s.roomIn(&e.room) && s.fits(e) {
			s.offer(e)
		}
	}
}

func (s *search) offer(e *entry) {
	if at := s.standing(&e.view); s.best == nil || at.before(s.at) {
		s.best, s.at = e, at
	}
}

// walk goes through the pools in order and takes the first of each that fits. It
// reports whether it came to the end.
func (ix *Index) walk(s *search) bool {
	for _, p := range ix.pools {
		if !s.worth(p) {
			continue
		}
		var e *entry
		if s.Strategy == Pack {
			if e = p.root.last(s.query, s.fits); e != nil {
				e = p.root.first(e.load, s.query, s.fits) // of equal ones the least id
			}
		} else {
			e = p.root.first(0, s.query, s.fits)
		}
		if s.tries < 0 {
			return false
		}
		if e != nil {
			s.offer(e)
		}
	}
	return true
}

// worth reports whether p may hold a node that fits and is better than the best.
// Pools of suspect nodes come last.
func (s *search) worth(p *pool) bool {
	if s.Region != "" && s.Region != p.region || s.Zone != "" && s.Zone != p.zone ||
		s.Architecture != "" && s.Architecture != p.architecture {
		return false
	}
	if s.level == zoneLevel {
		if c, ok := s.ranks.cost(p.zoneDomain); !ok || c != s.tier {
			return false
		}
	}
	for _, k := range s.keys {
		if _, ok := slices.BinarySearch(p.free, k); !ok {
			return false
		}
	}
	for i := range s.Selectors {
		// All nodes of the pool are alike in the labels that divide the pools.
		if c := &s.Selectors[i]; slices.Contains(s.dividing, c.Key) && !c.Matches(p.root.Labels) {
			return false
		}
	}
	return s.best == nil || p.suspect == s.at.suspect && stranded(p.free, s.keys) <= s.at.stranded
}

// tier is the nodes of the same cost to a group's rule: those of domains, or of all
// domains.
type tier struct {
	cost    int64
	domains []domain
	all     bool
}

// tiers are the costs to try, the least first.
func (ix *Index) tiers(q *query) iter.Seq[tier] {
	return func(yield func(tier) bool) {
		k := &q.ranks
		fresh, ok := k.fresh()
		// Nothing is better for a spread group than a domain without members.
		spread := ok && k.rule.Kind == compute.GroupSpread
		if spread && !yield(ix.freshTier(q, fresh)) || spread && k.rule.Strict {
			return
		}
		domains := make(map[int64][]domain)
		if ok && !spread {
			domains[fresh] = nil
		}
		add := func(d domain) {
			if c, allowed := k.cost(d); allowed && !(spread && c == fresh) {
				domains[c] = append(domains[c], d)
			}
		}
		for d := range k.census {
			add(d)
		}
		if k.census[domain{}] == nil {
			add(domain{})
		}
		for _, c := range slices.Sorted(maps.Keys(domains)) {
			t := tier{cost: c, domains: domains[c]}
			if ok && c == fresh {
				t = ix.freshTier(q, fresh)
			}
			if !yield(t) {
				return
			}
		}
	}
}

// freshTier is the tier of the domains without members and of all that cost the
// same. Where such domains are rare they are listed.
func (ix *Index) freshTier(q *query, cost int64) tier {
	all := ix.domains[q.level]
	t := tier{cost: cost}
	if t.all = (len(all)-len(q.ranks.census))*ix.few >= len(all); t.all {
		return t
	}
	for d := range all {
		if c, ok := q.ranks.cost(d); ok && c == cost {
			t.domains = append(t.domains, d)
		}
	}
	return t
}

// count is the number of nodes in domains.
func (ix *Index) count(level int, domains []domain) int {
	n := 0
	for _, d := range domains {
		n += len(ix.domains[level][d])
	}
	return n
}
