package schedule

import (
	"fmt"
	"maps"
	"math"
	"reflect"
	"slices"
	"testing"

	"github.com/outcrop-cloud/outcrop/internal/compute"
	"pgregory.net/rapid"
)

const gpu, vfs = "capability.gpu.nvidia-l40s", "capability.net.sriov_vfs"

func drawNode(t *rapid.T, id string) Node {
	n := Node{
		ID:           id,
		Role:         rapid.SampledFrom([]compute.Role{compute.RoleHybrid, compute.RoleHypervisor, compute.RoleHypervisor, compute.RoleStorage}).Draw(t, "role"),
		State:        rapid.SampledFrom([]compute.NodeState{compute.NodeReady, compute.NodeReady, compute.NodeReady, compute.NodeDraining}).Draw(t, "state"),
		Liveness:     drawLiveness(t),
		Region:       "r",
		Zone:         rapid.SampledFrom([]string{"a", "b", "b", ""}).Draw(t, "zone"),
		Architecture: rapid.SampledFrom([]string{"amd64", "amd64", "arm64"}).Draw(t, "arch"),
		Labels:       map[string]string{},
		Countables:   map[string]int64{},
	}
	for k, values := range map[string][]string{
		compute.LabelRack: {"", "r1", "r2", "r3"}, compute.LabelPower: {"", "p1", "p2"}, "pool": {"", "web", "batch"},
	} {
		if v := rapid.SampledFrom(values).Draw(t, k); v != "" {
			n.Labels[k] = v
		}
	}
	for _, k := range []string{gpu, vfs} {
		if units := rapid.Int64Range(-2, 3).Draw(t, k); units >= 0 { // below 0: not reported
			n.Countables[k] = units
			n.Labels[k] = fmt.Sprint(units)
		}
	}
	if rapid.IntRange(0, 9).Draw(t, "huge") == 0 {
		n.Committable = compute.Usage{VCPUs: math.MaxInt64, MemoryBytes: math.MaxInt64, DiskBytes: math.MaxInt64}
	} else {
		n.Committable = compute.Usage{
			VCPUs:       rapid.Int64Range(0, 6).Draw(t, "vcpus"),
			MemoryBytes: rapid.Int64Range(0, 6).Draw(t, "memory"),
			DiskBytes:   rapid.Int64Range(0, 6).Draw(t, "disk"),
		}
	}
	return n
}

func drawLiveness(t *rapid.T) compute.LivenessStatus {
	return rapid.SampledFrom([]compute.LivenessStatus{compute.LivenessOK, compute.LivenessOK, compute.LivenessSuspect, compute.LivenessUnreachable}).Draw(t, "liveness")
}

var groupRules = map[string]compute.GroupRule{
	"g0": {Kind: compute.GroupSpread, Level: compute.LevelNode, Strict: true},
	"g1": {Kind: compute.GroupSpread, Level: compute.LevelRack, Strict: true},
	"g2": {Kind: compute.GroupSpread, Level: compute.LevelZone},
	"g3": {Kind: compute.GroupSpread, Level: compute.LevelRack},
	"g4": {Kind: compute.GroupCluster, Level: compute.LevelRack, Strict: true},
	"g5": {Kind: compute.GroupCluster, Level: compute.LevelPower},
	"g6": {Kind: compute.GroupPartition, Level: compute.LevelRack, Strict: true, Partitions: 3},
	"g7": {Kind: compute.GroupPartition, Level: compute.LevelNode, Strict: true, Partitions: 2},
	"g8": {Kind: compute.GroupSpread, Level: compute.LevelZone, Strict: true},
	"g9": {Kind: compute.GroupCluster, Level: compute.LevelZone, Strict: true},
}

var someSelectors = []string{"pool=web", "pool!=web", "pool", "!pool", "pool in (web, batch)", "pool not in (batch)", gpu + ">=2", "topology.rack=r1", "nothing=here"}

func drawRequest(t *rapid.T, groups []string) Request {
	r := Request{
		Shape:     compute.Shape{VCPUs: rapid.Int64Range(0, 3).Draw(t, "needVCPUs"), MemoryBytes: rapid.Int64Range(0, 3).Draw(t, "needMemory")},
		DiskBytes: rapid.Int64Range(0, 2).Draw(t, "needDisk"),
		Zone:      rapid.SampledFrom([]string{"", "", "", "a", "b"}).Draw(t, "inZone"),
		Strategy:  rapid.SampledFrom([]Strategy{"", Spread, Pack}).Draw(t, "strategy"),
	}
	r.Architecture = rapid.SampledFrom([]string{"", "", "amd64"}).Draw(t, "ofArch")
	if n := rapid.Int64Range(-3, 2).Draw(t, "gpus"); n > 0 {
		r.Countables = map[string]int64{gpu: n}
	}
	for range max(0, rapid.IntRange(-3, 2).Draw(t, "selectors")) {
		s, err := compute.ParseSelectors(rapid.SampledFrom(someSelectors).Draw(t, "selector"))
		if err != nil {
			t.Fatal(err)
		}
		r.Selectors = append(r.Selectors, s...)
	}
	if g := rapid.SampledFrom(groups).Draw(t, "group"); g != "" {
		r.Group = &Group{ID: g, Rule: groupRules[g]}
		if rapid.Bool().Draw(t, "partitionGiven") {
			r.Group.Partition = rapid.Int64Range(0, r.Group.Rule.Partitions).Draw(t, "partition")
		}
	}
	return r
}

// dumb is the obvious second implementation: plain loops over plain slices.
type dumb struct {
	nodes  []Node
	placed []Allocation
}

func (m *dumb) snapshot() *Snapshot {
	s := &Snapshot{}
	for _, n := range m.nodes {
		n.Held, n.Members = map[string]int64{}, map[Seat]int64{}
		for _, a := range m.placed {
			if a.NodeID != n.ID {
				continue
			}
			n.Used.VCPUs += a.Usage.VCPUs
			n.Used.MemoryBytes += a.Usage.MemoryBytes
			n.Used.DiskBytes += a.Usage.DiskBytes
			for k, units := range a.Countables {
				n.Held[k] += units
			}
			if a.Seat.Group != "" {
				n.Members[a.Seat]++
			}
		}
		s.Nodes = append(s.Nodes, n)
	}
	return s
}

func (m *dumb) node(id string) *Node {
	for i := range m.nodes {
		if m.nodes[i].ID == id {
			return &m.nodes[i]
		}
	}
	return nil
}

// where says at which place of the level a node stands.
func where(n *Node, l compute.Level) string {
	switch l {
	case compute.LevelNode:
		return n.ID
	case compute.LevelZone:
		return n.Zone
	case compute.LevelRack:
		if n.Labels[compute.LabelRack] != "" {
			return n.Zone + "/" + n.Labels[compute.LabelRack]
		}
	case compute.LevelPower:
		if n.Labels[compute.LabelPower] != "" {
			return n.Zone + "/" + n.Labels[compute.LabelPower]
		}
	}
	return ""
}

// allowed says whether a strict rule lets one more member of partition p onto n.
func (m *dumb) allowed(g *Group, p int64, n *Node, from *Allocation) bool {
	if !g.Rule.Strict {
		return true
	}
	at := where(n, g.Rule.Level)
	if at == "" {
		return false
	}
	members := map[string]int{}
	others := 0
	total, gave := 0, false
	for i := range m.placed {
		a := &m.placed[i]
		if a.Seat.Group != g.ID || m.node(a.NodeID) == nil {
			continue
		}
		if from != nil && !gave && reflect.DeepEqual(*a, *from) {
			gave = true
			continue
		}
		total++
		w := where(m.node(a.NodeID), g.Rule.Level)
		members[w]++
		if w == at && a.Seat.Partition != p {
			others++
		}
	}
	switch g.Rule.Kind {
	case compute.GroupSpread:
		return members[at] == 0
	case compute.GroupPartition:
		return others == 0
	}
	if total == 0 {
		return true
	}
	best := 0
	for w, n := range members {
		if w != "" {
			best = max(best, n)
		}
	}
	return best > 0 && members[at] == best // several equal homes: any is as good
}

func (m *dumb) fits(r *Request, p int64, n *Node) bool {
	var used compute.Usage
	held := map[string]int64{}
	for _, a := range m.placed {
		if a.NodeID == n.ID {
			used.VCPUs += a.Usage.VCPUs
			used.MemoryBytes += a.Usage.MemoryBytes
			used.DiskBytes += a.Usage.DiskBytes
			for k, units := range a.Countables {
				held[k] += units
			}
		}
	}
	room := func(need, used, of int64) bool { return need == 0 || used <= of && need <= of-used }
	ok := (n.Role == compute.RoleHybrid || n.Role == compute.RoleHypervisor) && n.State == compute.NodeReady &&
		n.Liveness != compute.LivenessUnreachable &&
		(r.Zone == "" || r.Zone == n.Zone) && (r.Architecture == "" || r.Architecture == n.Architecture) &&
		room(r.Shape.VCPUs, used.VCPUs, n.Committable.VCPUs) &&
		room(r.Shape.MemoryBytes, used.MemoryBytes, n.Committable.MemoryBytes) &&
		room(r.DiskBytes, used.DiskBytes, n.Committable.DiskBytes) &&
		!slices.Contains(r.Avoid, n.ID) && (r.From == nil || r.From.NodeID != n.ID)
	for k, need := range r.Countables {
		total, reported := n.Countables[k]
		ok = ok && reported && room(need, held[k], total)
	}
	for _, s := range r.Selectors {
		ok = ok && s.Matches(n.Labels)
	}
	return ok && (r.Group == nil || m.allowed(r.Group, p, n, r.From))
}

// judge checks a decision against the dumb model.
func (m *dumb) judge(t *rapid.T, r *Request, d Decision) {
	partitions := []int64{0}
	if r.Group != nil && r.Group.Rule.Kind == compute.GroupPartition {
		if partitions[0] = r.Group.Partition; partitions[0] == 0 {
			partitions = nil
			for p := range r.Group.Rule.Partitions {
				partitions = append(partitions, p+1)
			}
		}
	}
	if d.NodeID != "" {
		if n := m.node(d.NodeID); n == nil || !m.fits(r, d.Partition, n) || !slices.Contains(partitions, d.Partition) {
			t.Fatalf("%+v: chose %s, partition %d, which does not fit", *r, d.NodeID, d.Partition)
		}
		return
	}
	tied := r.Group != nil && r.Group.Rule.Kind == compute.GroupCluster // of equal homes one was taken
	for i := range m.nodes {
		for _, p := range partitions {
			if !tied && m.fits(r, p, &m.nodes[i]) {
				t.Fatalf("%+v: chose none, but %s fits in partition %d", *r, m.nodes[i].ID, p)
			}
		}
	}
	refused := 0
	for _, reason := range d.Reasons {
		refused = max(refused, reason.Nodes)
		if reason.Text == "" || len(reason.NodeIDs) != min(reason.Nodes, MaxNamed) {
			t.Fatalf("reason %+v", reason)
		}
	}
	if d.Nodes != len(m.nodes) || (refused > 0) != (len(m.nodes) > 0) || (d.Nearest != nil) != (len(m.nodes) > 0) {
		t.Fatalf("of %d nodes the reasons are %+v", len(m.nodes), d)
	}
}

// Random histories: the index answers as a look at every node does, and both as
// the dumb model allows. Never over-committed, no strict group broken, a place
// found whenever there is one, over-full nodes refuse only growth.
func TestPlaceAgainstDumbModel(t *testing.T) { // contract: N-03 N-12 N-14 N-17 N-23 U-14 // lesson 13 16 18
	rapid.Check(t, func(t *rapid.T) {
		m := &dumb{}
		ix := NewIndex(nil)
		ix.few = rapid.SampledFrom([]int{0, 1, 2, few}).Draw(t, "few")
		ix.maxValues = rapid.SampledFrom([]int{0, 2, maxValues}).Draw(t, "maxValues")
		// Few groups a history, so that they grow.
		groups := append([]string{""}, rapid.SliceOfN(rapid.SampledFrom(slices.Sorted(maps.Keys(groupRules))), 1, 2).Draw(t, "groups")...)
		number := 0
		upsert := func(n Node) {
			m.nodes = append(slices.DeleteFunc(m.nodes, func(o Node) bool { return o.ID == n.ID }), n)
			s := m.snapshot()
			ix.Upsert(*s.node(n.ID))
		}
		for range rapid.IntRange(0, 10).Draw(t, "nodes") {
			upsert(drawNode(t, fmt.Sprintf("n%d", number)))
			number++
		}
		pick := func(t *rapid.T) string {
			if len(m.nodes) == 0 {
				t.Skip("no nodes")
			}
			return m.nodes[rapid.IntRange(0, len(m.nodes)-1).Draw(t, "which")].ID
		}
		t.Repeat(map[string]func(*rapid.T){
			"rebalance": func(t *rapid.T) { m.rebalance(t, rapid.SampledFrom(groups[1:]).Draw(t, "whose")) },
			"place": func(t *rapid.T) {
				r := drawRequest(t, groups)
				if len(m.placed) > 0 && rapid.IntRange(0, 3).Draw(t, "move") == 0 {
					from := m.placed[rapid.IntRange(0, len(m.placed)-1).Draw(t, "from")]
					r.From = &from
				}
				if rapid.IntRange(0, 5).Draw(t, "avoids") == 0 {
					r.Avoid = []string{pick(t)}
				}
				s := m.snapshot()
				want := Place(s, r)
				m.judge(t, &r, want)
				slices.Reverse(s.Nodes)
				if again := Place(s, r); !reflect.DeepEqual(again, want) {
					t.Fatalf("%+v: the order of nodes changes the answer\n%+v\n%+v", r, want, again)
				}
				if got := ix.Place(r); !reflect.DeepEqual(got, want) {
					t.Fatalf("%+v: the index says\n%+v, not\n%+v", r, got, want)
				}
				if got := Place(ix.Snapshot(), r); !reflect.DeepEqual(got, want) {
					t.Fatalf("%+v: a snapshot of the index says\n%+v, not\n%+v", r, got, want)
				}
				if got, want := ix.Explain(r), Explain(s, r); !reflect.DeepEqual(got, want) {
					t.Fatalf("%+v: the index explains\n%+v, not\n%+v", r, got, want)
				}
				for _, n := range s.Nodes {
					got := ix.Check(n.ID, want.Partition, r)
					if !reflect.DeepEqual(got, Check(s, n.ID, want.Partition, r)) {
						t.Fatalf("%+v: %s: checks differ", r, n.ID)
					}
					if n.ID == want.NodeID && got != nil {
						t.Fatalf("%+v: the chosen %s does not pass: %+v", r, n.ID, got)
					}
				}
				if want.NodeID == "" {
					return
				}
				a := r.Allocation(want)
				ix.Commit(a)
				m.placed = append(m.placed, a)
				if r.From != nil {
					ix.Release(*r.From)
					i := slices.IndexFunc(m.placed, func(a Allocation) bool { return reflect.DeepEqual(a, *r.From) })
					m.placed = slices.Delete(m.placed, i, i+1)
				}
			},
			"release": func(t *rapid.T) {
				if len(m.placed) == 0 {
					t.Skip("nothing placed")
				}
				i := rapid.IntRange(0, len(m.placed)-1).Draw(t, "which")
				ix.Release(m.placed[i])
				m.placed = slices.Delete(m.placed, i, i+1)
			},
			"change": func(t *rapid.T) { upsert(drawNode(t, pick(t))) },
			"add": func(t *rapid.T) {
				upsert(drawNode(t, fmt.Sprintf("n%d", number)))
				number++
			},
			"remove": func(t *rapid.T) {
				id := pick(t)
				ix.Remove(id)
				m.nodes = slices.DeleteFunc(m.nodes, func(n Node) bool { return n.ID == id })
				m.placed = slices.DeleteFunc(m.placed, func(a Allocation) bool { return a.NodeID == id })
			},
			"liveness": func(t *rapid.T) {
				id, to := pick(t), drawLiveness(t)
				ix.SetLiveness(id, to)
				m.node(id).Liveness = to
			},
		})
	})
}

// rebalance checks that every move of the plan fits and helps, and that no single
// move is left that would.
func (m *dumb) rebalance(t *rapid.T, id string) {
	g := Group{ID: id, Rule: groupRules[id]}
	after := dumb{nodes: m.nodes, placed: slices.Clone(m.placed)}
	var members []Member
	number := map[string]int{} // index into placed
	for i, a := range m.placed {
		if a.Seat.Group == id {
			name := fmt.Sprintf("i-%d", i)
			number[name] = i
			members = append(members, Member{name, Request{
				Shape: compute.Shape{VCPUs: a.Usage.VCPUs, MemoryBytes: a.Usage.MemoryBytes}, DiskBytes: a.Usage.DiskBytes,
				Countables: a.Countables, From: &a,
			}})
		}
	}
	for _, move := range Rebalance(m.snapshot(), g, members) {
		i := number[move.InstanceID]
		was := after.excess(&g)
		a := after.placed[i]
		if a.NodeID != move.From || !after.mayMove(&g, a, move.To) {
			t.Fatalf("the move %+v does not fit", move)
		}
		after.placed[i].NodeID = move.To
		if after.excess(&g) >= was {
			t.Fatalf("the move %+v does not help", move)
		}
	}
	was := after.excess(&g)
	if total := 0; was > 0 || len(Violations(after.snapshot(), []Group{g})) > 0 {
		for _, v := range Violations(after.snapshot(), []Group{g}) {
			total += int(v.Excess)
			if v.Text == "" || len(v.NodeIDs) == 0 || v.Members < v.Excess {
				t.Fatalf("violation %+v", v)
			}
		}
		if total != was {
			t.Fatalf("%d members stand against the rule, not %d", was, total)
		}
	}
	for i := range after.placed {
		a := after.placed[i]
		if a.Seat.Group != id {
			continue
		}
		for _, n := range after.nodes {
			if n.ID == a.NodeID || !after.mayMove(&g, a, n.ID) {
				continue
			}
			after.placed[i].NodeID = n.ID
			if after.excess(&g) < was {
				t.Fatalf("%+v could still move to %s", a, n.ID)
			}
			after.placed[i].NodeID = a.NodeID
		}
	}
}

func (m *dumb) mayMove(g *Group, a Allocation, to string) bool {
	r := Request{
		Shape: compute.Shape{VCPUs: a.Usage.VCPUs, MemoryBytes: a.Usage.MemoryBytes}, DiskBytes: a.Usage.DiskBytes,
		Countables: a.Countables, Group: g, From: &a,
	}
	return m.fits(&r, a.Seat.Partition, m.node(to))
}

// excess counts the members that stand against the rule.
func (m *dumb) excess(g *Group) int {
	at := map[string][]int64{} // partitions of the members in each place
	for _, a := range m.placed {
		if a.Seat.Group == g.ID {
			w := where(m.node(a.NodeID), g.Rule.Level)
			at[w] = append(at[w], a.Seat.Partition)
		}
	}
	sum, home := 0, 0
	for w, members := range at {
		switch {
		case w == "" && g.Rule.Strict, g.Rule.Kind == compute.GroupCluster:
			sum += len(members)
		case g.Rule.Kind == compute.GroupSpread:
			sum += len(members) - 1
		default:
			most := 0
			for _, p := range members {
				same := 0
				for _, q := range members {
					same += int(oneIf(p == q))
				}
				most = max(most, same)
			}
			sum += len(members) - most
		}
		if w != "" {
			home = max(home, len(members))
		}
	}
	if g.Rule.Kind == compute.GroupCluster {
		sum -= home
	}
	return sum
}
