package schedule

import (
	"cmp"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"

	"github.com/outcrop-cloud/outcrop/internal/compute"
)

// Index is a fleet kept in order between decisions. It answers as Place does for
// a snapshot of the same nodes, in time that hardly grows with the fleet while
// there is room. An Index is not safe for concurrent use: the one who serialises
// commits owns it.
type Index struct {
	nodes  map[string]*entry
	pools  []*pool // in the order of pool.compare
	placed int     // entries in pools
	// domains are the entries in pools, by domain of each level.
	domains [len(levels)]map[domain][]*entry
	groups  map[string]*[len(levels)]census
	labels  postings
	// The constants of these names; tests make them small.
	few, maxValues int
}

// pool holds nodes that differ in nothing that nearly every request asks for.
type pool struct {
	poolKey
	free       []string // countable keys with free units
	zoneDomain domain
	root       *entry
}

type poolKey struct {
	suspect      bool
	keys         int    // number of free countable keys
	free         string // the keys
	divided      string // values of the labels that divide the pools
	region, zone string
	architecture string
}

// compare puts those first that most requests prefer.
func (a poolKey) compare(b poolKey) int {
	if a.suspect != b.suspect {
		return cmp.Compare(oneIf(a.suspect), oneIf(b.suspect))
	}
	return cmp.Or(cmp.Compare(a.keys, b.keys), cmp.Compare(a.free, b.free), cmp.Compare(a.divided, b.divided), cmp.Compare(a.region, b.region),
		cmp.Compare(a.zone, b.zone), cmp.Compare(a.architecture, b.architecture))
}

// NewIndex makes an Index of nodes.
func NewIndex(nodes []Node) *Index {
	ix := &Index{nodes: make(map[string]*entry, len(nodes)), groups: make(map[string]*[len(levels)]census), labels: newPostings(), few: few, maxValues: maxValues}
	for i := range ix.domains {
		ix.domains[i] = make(map[domain][]*entry)
	}
	for i := range nodes {
		ix.Upsert(nodes[i])
	}
	return ix
}

// Upsert adds a node or replaces all that is known of it, its use included.
func (ix *Index) Upsert(n Node) {
	ix.Remove(n.ID)
	n.Held, n.Members = maps.Clone(n.Held), maps.Clone(n.Members)
	e := &entry{view: viewOf(&n), rank: rand.Uint64()}
	ix.nodes[n.ID] = e
	for seat, members := range n.Members {
		ix.seat(e, seat, members)
	}
	ix.labels.add(e)
	ix.link(e)
}

// Remove forgets a node. One that is not there stays away.
func (ix *Index) Remove(nodeID string) {
	e := ix.nodes[nodeID]
	if e == nil {
		return
	}
	ix.unlink(e)
	ix.labels.remove(e)
	for seat, members := range e.Members {
		ix.seat(e, seat, -members)
	}
	delete(ix.nodes, nodeID)
}

// Snapshot is the fleet as it is now, ordered by id. It does not change with the
// Index; it shares the maps that an Index does not change.
func (ix *Index) Snapshot() *Snapshot {
	s := &Snapshot{Nodes: make([]Node, 0, len(ix.nodes))}
	for _, e := range ix.nodes {
		n := *e.Node
		n.Held, n.Members = maps.Clone(n.Held), maps.Clone(n.Members)
		s.Nodes = append(s.Nodes, n)
	}
	slices.SortFunc(s.Nodes, func(a, b Node) int { return cmp.Compare(a.ID, b.ID) })
	return s
}

// Each goes through the nodes in no order. They are the Index's own: read only,
// and only until its next change.
func (ix *Index) Each(yield func(*Node) bool) {
	for _, e := range ix.nodes {
		if !yield(e.Node) {
			return
		}
	}
}

// SetLiveness says what a node's heartbeats make of it by now.
func (ix *Index) SetLiveness(nodeID string, status compute.LivenessStatus) {
	if e := ix.nodes[nodeID]; e != nil && e.Liveness != status {
		ix.unlink(e)
		e.Liveness = status
		ix.link(e)
	}
}

// Commit adds what an instance holds now. It does not ask whether there is room:
// the caller did, with Check, and what is written down counts.
func (ix *Index) Commit(a Allocation) { ix.allocate(a, 1) }

// Release takes back what Commit added.
func (ix *Index) Release(a Allocation) { ix.allocate(a, -1) }

// SetUse replaces all that is known of what is held on a node.
func (ix *Index) SetUse(nodeID string, used compute.Usage, held map[string]int64, members map[Seat]int64) {
	e := ix.nodes[nodeID]
	if e == nil {
		return
	}
	pooled := ix.leavePool(e)
	for seat, n := range e.Members {
		ix.seat(e, seat, -n)
	}
	e.Used, e.Held, e.Members = used, maps.Clone(held), maps.Clone(members)
	for seat, n := range e.Members {
		ix.seat(e, seat, n)
	}
	e.load, e.free = load(e.Node), freeKeys(e.Node)
	if pooled {
		ix.joinPool(e)
	}
}

func (ix *Index) allocate(a Allocation, sign int64) {
	e := ix.nodes[a.NodeID]
	if e == nil {
		return
	}
	pooled := ix.leavePool(e)
	e.Used.VCPUs += sign * a.Usage.VCPUs
	e.Used.MemoryBytes += sign * a.Usage.MemoryBytes
	e.Used.DiskBytes += sign * a.Usage.DiskBytes
	for k, n := range a.Countables {
		addTo(&e.Held, k, sign*n)
	}
	if a.Seat.Group != "" {
		addTo(&e.Members, a.Seat, sign)
		ix.seat(e, a.Seat, sign)
	}
	e.load, e.free = load(e.Node), freeKeys(e.Node)
	if pooled {
		ix.joinPool(e)
	}
}

func addTo[K comparable](m *map[K]int64, k K, n int64) {
	if *m == nil {
		*m = make(map[K]int64)
	}
	if (*m)[k] += n; (*m)[k] == 0 {
		delete(*m, k)
	}
}

// seat keeps the census of the seat's group at every level.
func (ix *Index) seat(e *entry, at Seat, members int64) {
	g := ix.groups[at.Group]
	if g == nil {
		g = new([len(levels)]census)
		for i := range g {
			g[i] = make(census)
		}
		ix.groups[at.Group] = g
	}
	for i := range g {
		g[i].add(e.domains[i], at.Partition, members)
	}
	if len(g[0]) == 0 {
		delete(ix.groups, at.Group)
	}
}

// link puts a node that may be placed on where searches look.
func (ix *Index) link(e *entry) {
	if !e.Role.RunsInstances() || e.State != compute.NodeReady || e.Liveness == compute.LivenessUnreachable {
		return
	}
	for i, d := range e.domains {
		list := ix.domains[i][d]
		e.at[i] = len(list)
		ix.domains[i][d] = append(list, e)
	}
	ix.placed++
	ix.joinPool(e)
}

func (ix *Index) unlink(e *entry) {
	if !ix.leavePool(e) {
		return
	}
	ix.placed--
	for i, d := range e.domains {
		list := ix.domains[i][d]
		end := len(list) - 1
		list[e.at[i]] = list[end]
		list[e.at[i]].at[i] = e.at[i]
		list[end] = nil
		if ix.domains[i][d] = list[:end]; end == 0 {
			delete(ix.domains[i], d)
		}
	}
}

// joinPool puts e into the pool of its kind, where its load belongs.
func (ix *Index) joinPool(e *entry) {
	k := poolKey{e.Liveness == compute.LivenessSuspect, len(e.free), strings.Join(e.free, "\x00"), e.divided, e.Region, e.Zone, e.Architecture}
	i, ok := slices.BinarySearchFunc(ix.pools, k, comparePool)
	if !ok {
		ix.pools = slices.Insert(ix.pools, i, &pool{poolKey: k, free: e.free, zoneDomain: e.domains[zoneLevel]})
	}
	e.pool = ix.pools[i]
	e.room = compute.Usage{
		VCPUs:       less(e.Committable.VCPUs, max(0, e.Used.VCPUs)),
		MemoryBytes: less(e.Committable.MemoryBytes, max(0, e.Used.MemoryBytes)),
		DiskBytes:   less(e.Committable.DiskBytes, max(0, e.Used.DiskBytes)),
	}
	e.pool.root = insert(e.pool.root, e)
}

// leavePool takes e out of its pool, and reports whether it was in one.
func (ix *Index) leavePool(e *entry) bool {
	p := e.pool
	if p == nil {
		return false
	}
	e.pool = nil
	if p.root = remove(p.root, e); p.root == nil {
		i, _ := slices.BinarySearchFunc(ix.pools, p.poolKey, comparePool)
		ix.pools = slices.Delete(ix.pools, i, i+1)
	}
	return true
}

func comparePool(p *pool, k poolKey) int { return p.compare(k) }
