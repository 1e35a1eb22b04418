// Package schedule decides on which node an instance goes, and says why it goes
// nowhere. A snapshot of the fleet and a request go in, a decision comes out;
// nothing is read or written beside that, and the same input gives the same
// answer.
//
// A decision is advice: whoever commits it checks again, with Check, under the
// lock that serialises commits, so that parallel requests never break a group's
// rule or run over a node's room (lesson 16).
//
// Place looks at every node and is the definition of a right answer. Index keeps
// the fleet ordered between decisions and gives the same answers without looking
// at every node.
package schedule

import (
	"math"
	"slices"

	"github.com/outcrop-cloud/outcrop/internal/compute"
)

// Node is what placement knows of a node. Nothing in it is changed by this package
// but by Index.Commit and Index.Release, which change their own copy.
type Node struct {
	ID           string
	Role         compute.Role
	State        compute.NodeState
	Liveness     compute.LivenessStatus
	Region       string
	Zone         string
	Architecture string
	Labels       map[string]string // in effect: declared over detected
	Committable  compute.Usage
	Used         compute.Usage // sum of the allocations; may exceed Committable
	// Countables are the units that the node has, by label key. An absent key is
	// not reported, which is not zero.
	Countables map[string]int64
	Held       map[string]int64 // units allocated; may exceed Countables
	Members    map[Seat]int64   // members of placement groups on the node
}

// Seat is a place in a placement group. Partition counts from 1 in a partition
// group and is 0 elsewhere.
type Seat struct {
	Group     string
	Partition int64
}

// NodeOf is n as placement sees it. held and members are sums of its allocations.
func NodeOf(n *compute.Node, live compute.LivenessStatus, held map[string]int64, members map[Seat]int64) Node {
	labels, _ := n.Labels()
	return Node{
		ID: n.ID, Role: n.Facts.Role, State: n.State(), Liveness: live,
		Region: n.Facts.Region, Zone: n.Facts.AvailabilityZone, Architecture: n.Facts.Architecture,
		Labels: labels, Committable: n.Committable(), Used: n.Used,
		Countables: compute.Countables(labels), Held: held, Members: members,
	}
}

// Snapshot is the fleet at one moment.
type Snapshot struct{ Nodes []Node }

// Strategy orders the nodes that fit.
type Strategy string

const (
	Spread Strategy = "spread" // the emptiest node; the default
	Pack   Strategy = "pack"   // the fullest node that still has room
)

// Request is what an instance needs. The durable intent of an instance fills all
// but Avoid and From, which live as long as one operation (lesson 17).
type Request struct {
	Shape        compute.Shape
	DiskBytes    int64
	Countables   map[string]int64 // units by label key
	Region       string           // empty for any; so Zone and Architecture
	Zone         string
	Architecture string
	Selectors    []compute.Selector
	Group        *Group
	Strategy     Strategy
	Avoid        []string // node ids
	// From is what the instance holds now. Place finds another node for it, and
	// its seat there counts as given up. Check of the same node asks only for
	// what is added (lesson 14).
	From *Allocation
}

// Group is the placement group that an instance belongs to.
type Group struct {
	ID        string
	Rule      compute.GroupRule
	Partition int64 // of a partition group; 0 lets Place choose
}

// Allocation is what one instance holds on a node.
type Allocation struct {
	NodeID     string
	Usage      compute.Usage
	Countables map[string]int64
	Seat       Seat // zero outside placement groups
}

// Usage is what the request takes of a node, never negative.
func (r *Request) Usage() compute.Usage {
	return compute.Usage{
		VCPUs:       max(0, r.Shape.VCPUs),
		MemoryBytes: max(0, r.Shape.MemoryBytes),
		DiskBytes:   max(0, r.DiskBytes),
	}
}

// Allocation is what committing d for r writes down.
func (r *Request) Allocation(d Decision) Allocation {
	a := Allocation{NodeID: d.NodeID, Usage: r.Usage(), Countables: r.Countables}
	if r.Group != nil {
		a.Seat = Seat{r.Group.ID, d.Partition}
	}
	return a
}

// Place decides by looking at every node. The best node is that with the least
// cost to its group's rule, then one that is not suspect, then one where the
// fewest kinds of free countables that were not asked for are blocked, then the
// emptiest (or fullest) one; equal ones are told apart by id, never by chance
// (lesson 16).
func Place(s *Snapshot, r Request) Decision {
	c, from := s.census(r.Group), s.node(r.fromID())
	for _, partition := range r.partitions(c) {
		q := newQuery(&r, c, partition, from)
		var best standing
		for v := range s.views {
			if !q.fits(v) {
				continue
			}
			if at := q.standing(v); best.id == "" || at.before(best) {
				best = at
			}
		}
		if best.id != "" {
			return Decision{NodeID: best.id, Partition: partition, EverFits: true}
		}
	}
	return explain(&r, Decision{}, c, from, s.views)
}

func (r *Request) fromID() string {
	if r.From == nil {
		return ""
	}
	return r.From.NodeID
}

func (s *Snapshot) node(id string) *Node {
	for i := range s.Nodes {
		if s.Nodes[i].ID == id {
			return &s.Nodes[i]
		}
	}
	return nil
}

func (s *Snapshot) views(yield func(*view) bool) {
	for i := range s.Nodes {
		if v := viewOf(&s.Nodes[i]); !yield(&v) {
			return
		}
	}
}

// view is a node with what is derived from it once and asked for often.
type view struct {
	*Node
	domains [len(levels)]domain
	load    float64
	free    []string // countable keys with free units, sorted
}

func viewOf(n *Node) view {
	v := view{Node: n, load: load(n), free: freeKeys(n)}
	for i, l := range levels {
		v.domains[i] = domainOf(n, l)
	}
	return v
}

func freeKeys(n *Node) []string {
	var free []string
	for k, total := range n.Countables {
		if total > n.Held[k] {
			free = append(free, k)
		}
	}
	slices.Sort(free)
	return free
}

// standing is the order of nodes that fit; the least is the best.
type standing struct {
	cost     int64 // to the group's rule
	suspect  bool
	stranded int
	load     float64 // negated when packing
	id       string
}

func (a standing) before(b standing) bool {
	switch {
	case a.cost != b.cost:
		return a.cost < b.cost
	case a.suspect != b.suspect:
		return b.suspect
	case a.stranded != b.stranded:
		return a.stranded < b.stranded
	case a.load != b.load:
		return a.load < b.load
	}
	return a.id < b.id
}

// load is how full the fullest resource of a node is; 1 is full. One division of
// whole numbers gives the same float64 on every machine.
func load(n *Node) float64 {
	part := func(used, of int64) float64 {
		switch {
		case used <= 0:
			return 0
		case of <= 0:
			return math.MaxFloat64
		}
		return float64(used) / float64(of)
	}
	return max(part(n.Used.VCPUs, n.Committable.VCPUs),
		part(n.Used.MemoryBytes, n.Committable.MemoryBytes),
		part(n.Used.DiskBytes, n.Committable.DiskBytes))
}
