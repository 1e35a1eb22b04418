package schedule

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/outcrop-cloud/outcrop/internal/compute"
)

const gib = int64(1) << 30

// fleet is n ready nodes n000, n001, … of 16 vCPUs, 64 GiB and 1,000 GiB of disk, in
// 3 zones and 6 racks.
func fleet(n int) *Snapshot {
	s := &Snapshot{}
	for i := range n {
		s.Nodes = append(s.Nodes, Node{
			ID: fmt.Sprintf("n%03d", i), Role: compute.RoleHypervisor, State: compute.NodeReady, Liveness: compute.LivenessOK,
			Region: "r", Zone: fmt.Sprintf("z%d", i%3), Architecture: "amd64",
			Labels:      map[string]string{compute.LabelRack: fmt.Sprintf("rack%d", i%6)},
			Committable: compute.Usage{VCPUs: 16, MemoryBytes: 64 * gib, DiskBytes: 1000 * gib},
		})
	}
	return s
}

func small() Request {
	return Request{Shape: compute.Shape{VCPUs: 2, MemoryBytes: 4 * gib}, DiskBytes: 8 * gib}
}

func selectors(t *testing.T, text string) []compute.Selector {
	t.Helper()
	s, err := compute.ParseSelectors(text)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// What decides between nodes that fit, the strongest first.
func TestPlacePrefers(t *testing.T) {
	spread := &Group{ID: "g", Rule: compute.GroupRule{Kind: compute.GroupSpread, Level: compute.LevelZone}}
	for _, tt := range []struct {
		name   string
		change func(s *Snapshot, r *Request)
		want   string
	}{
		{"equal ones by id", func(s *Snapshot, r *Request) { slices.Reverse(s.Nodes) }, "n000"}, // lesson 16
		{"the emptiest", func(s *Snapshot, r *Request) { s.Nodes[0].Used.VCPUs = 1 }, "n001"},
		{"the emptiest in its fullest resource", func(s *Snapshot, r *Request) {
			for i := range s.Nodes {
				s.Nodes[i].Used.MemoryBytes = 32 * gib
			}
			s.Nodes[1].Used = compute.Usage{VCPUs: 7, MemoryBytes: 28 * gib, DiskBytes: 400 * gib}
		}, "n001"},
		{"the fullest when packing", func(s *Snapshot, r *Request) {
			r.Strategy = Pack
			s.Nodes[2].Used.VCPUs = 14
			s.Nodes[3].Used.VCPUs = 15 // no room
		}, "n002"},
		{"no node with free GPUs for who needs none", func(s *Snapshot, r *Request) {
			s.Nodes[0].Countables = map[string]int64{gpu: 4}
			s.Nodes[1].Countables = map[string]int64{gpu: 4}
			s.Nodes[1].Held = map[string]int64{gpu: 4} // none left to block
			s.Nodes[1].Used.VCPUs = 1
			for i := range s.Nodes[2:] {
				s.Nodes[2+i].Used.VCPUs = 2
			}
		}, "n001"},
		{"one that is not suspect over one that is empty", func(s *Snapshot, r *Request) { // contract: N-23
			for i := range s.Nodes[:3] {
				s.Nodes[i].Liveness = compute.LivenessSuspect
			}
			s.Nodes[3].Used.VCPUs = 12
			s.Nodes[4].State, s.Nodes[5].State = compute.NodeMaintenance, compute.NodeOff
		}, "n003"},
		{"a suspect one over none", func(s *Snapshot, r *Request) {
			for i := range s.Nodes {
				s.Nodes[i].Liveness = compute.LivenessUnreachable
			}
			s.Nodes[5].Liveness = compute.LivenessSuspect
		}, "n005"},
		{"what the group wants over all else", func(s *Snapshot, r *Request) {
			r.Group = spread
			s.Nodes[0].Members = map[Seat]int64{{Group: "g"}: 1}
			s.Nodes[1].Members = map[Seat]int64{{Group: "g"}: 1}
			s.Nodes[2].State = compute.NodeDraining
			s.Nodes[5].Liveness, s.Nodes[5].Used.VCPUs = compute.LivenessSuspect, 14
		}, "n005"},
		{"room for what is not over-full", func(s *Snapshot, r *Request) { // lesson 13
			s.Nodes = s.Nodes[:1]
			s.Nodes[0].Used.DiskBytes = 2000 * gib
			r.DiskBytes = 0
		}, "n000"},
	} {
		s, r := fleet(6), small()
		tt.change(s, &r)
		if d := Place(s, r); d.NodeID != tt.want {
			t.Errorf("%s: got %q, want %s", tt.name, d.NodeID, tt.want)
		}
		if d := NewIndex(s.Nodes).Place(r); d.NodeID != tt.want {
			t.Errorf("%s: the index got %q, want %s", tt.name, d.NodeID, tt.want)
		}
	}
}

// Every constraint says its reason in counts, and what would make the node fit.
func TestReasons(t *testing.T) { // contract: N-03 N-14 N-23 U-14 // lesson 18
	group := func(rule compute.GroupRule) *Group { return &Group{ID: "g", Rule: rule} }
	for _, tt := range []struct {
		name      string
		change    func(n *Node, r *Request)
		code      Code
		text, fix string
		ever      bool
	}{
		{"role", func(n *Node, r *Request) { n.Role = compute.RoleStorage }, CodeRole,
			"1 node is of the role storage, which runs no instances", "give it a role that runs instances (hybrid or hypervisor)", false},
		{"state", func(n *Node, r *Request) { n.State = compute.NodeMaintenance }, CodeState,
			"1 node is in the state maintenance", "bring it back from maintenance to ready", true},
		{"unreachable", func(n *Node, r *Request) { n.Liveness = compute.LivenessUnreachable }, CodeUnreachable,
			"1 node is unreachable", "bring its agent back in touch", true},
		{"region", func(n *Node, r *Request) { r.Region = "far" }, CodeRegion,
			"1 node is not in the region far", "ask for another region than far, or for any", false},
		{"zone", func(n *Node, r *Request) { r.Zone = "z9" }, CodeZone,
			"1 node is not in the zone z9", "ask for another zone than z9, or for any", false},
		{"architecture", func(n *Node, r *Request) { r.Architecture = "arm64" }, CodeArchitecture,
			"1 node is of another architecture than arm64", "ask for another architecture than arm64, or for any", false},
		{"selector", func(n *Node, r *Request) { r.Selectors = selectors(t, "pool in (a, b)") }, CodeSelector,
			"1 node does not match pool in (a, b)", "drop the selector pool in (a, b), or label a node to match", false},
		{"vCPUs", func(n *Node, r *Request) { n.Used.VCPUs = 15 }, CodeVCPUs,
			"1 node has too few vCPUs free: 2 needed, at most 1 free", "vCPUs: free 1 more, or ask for at most 1", true},
		{"vCPUs ever", func(n *Node, r *Request) { r.Shape.VCPUs = 17 }, CodeVCPUs,
			"1 node has too few vCPUs free: 17 needed, at most 16 free", "vCPUs: ask for at most 16, all that it holds when empty", false},
		{"memory", func(n *Node, r *Request) { n.Used.MemoryBytes = 63*gib - 1 }, CodeMemory,
			"1 node has too little memory free: 4 GiB needed, at most 1073741825 bytes free",
			"memory: free 3221225471 bytes more, or ask for at most 1073741825 bytes", true},
		{"disk over-full", func(n *Node, r *Request) { n.Used.DiskBytes = 1001 * gib }, CodeDisk,
			"1 node has too little disk free: 8 GiB needed, at most 0 bytes free", "disk: free 9 GiB more", true},
		{"countable", func(n *Node, r *Request) {
			n.Countables, n.Held = map[string]int64{gpu: 2}, map[string]int64{gpu: 1}
			r.Countables = map[string]int64{gpu: 2}
		}, CodeCountable, "1 node has too few " + gpu + " free: 2 needed, at most 1 free", gpu + ": free 1 more, or ask for at most 1", true},
		{"countable is none", func(n *Node, r *Request) {
			n.Countables, r.Countables = map[string]int64{gpu: 0}, map[string]int64{gpu: 1}
		}, CodeCountable, "1 node has too few " + gpu + " free: 1 needed, at most 0 free", gpu + ": ask for at most 0, all that it holds when empty", false},
		{"countable not reported", func(n *Node, r *Request) { r.Countables = map[string]int64{gpu: 1} }, CodeNotReported,
			"1 node does not report " + gpu, "declare its " + gpu, false},
		{"group", func(n *Node, r *Request) {
			n.Members = map[Seat]int64{{Group: "g"}: 1}
			r.Group = group(compute.GroupRule{Kind: compute.GroupSpread, Level: compute.LevelRack, Strict: true})
		}, CodeGroup, "1 node is ruled out by the placement group, at the level of the rack",
			"add a node on a rack that the group's rule allows, or make the rule best effort", true},
		{"group of nodes", func(n *Node, r *Request) {
			n.Members = map[Seat]int64{{Group: "g"}: 1}
			r.Group = group(compute.GroupRule{Kind: compute.GroupSpread, Level: compute.LevelNode, Strict: true})
		}, CodeGroup, "1 node is ruled out by the placement group, at the level of the node",
			"add a node, or make the rule best effort", true},
		{"group level absent", func(n *Node, r *Request) { // contract: N-12
			r.Group = group(compute.GroupRule{Kind: compute.GroupCluster, Level: compute.LevelPower, Strict: true})
		}, CodeGroupLevel, "1 node has no declared power, which the placement group asks for",
			"declare its power", false},
		{"avoided", func(n *Node, r *Request) { r.Avoid = []string{"n000"} }, CodeAvoided,
			"1 node is to be avoided this time", "do not avoid it", true},
		{"current", func(n *Node, r *Request) { r.From = &Allocation{NodeID: "n000"} }, CodeCurrent,
			"1 node is where the instance is now", "leave the instance where it is", true},
	} {
		s, r := fleet(1), small()
		tt.change(&s.Nodes[0], &r)
		d := Place(s, r)
		if d.NodeID != "" || len(d.Reasons) != 1 || d.Nearest == nil || d.EverFits != tt.ever {
			t.Errorf("%s: got %+v", tt.name, d)
			continue
		}
		if got := d.Reasons[0]; got.Code != tt.code || got.Text != tt.text || got.Nodes != 1 || got.Alone != 1 {
			t.Errorf("%s: got %+v, want %s: %s", tt.name, got, tt.code, tt.text)
		}
		if d.Nearest.Fix != tt.fix {
			t.Errorf("%s: fix %q, want %q", tt.name, d.Nearest.Fix, tt.fix)
		}
	}
}

func TestReasonsCountAndName(t *testing.T) { // lesson 18
	s := fleet(240)
	for i := range s.Nodes {
		s.Nodes[i].Used.VCPUs = 16
		if i%2 == 0 {
			s.Nodes[i].State = compute.NodeMaintenance
		}
	}
	s.Nodes[77].Used.VCPUs = 15
	s.Nodes[11].Used.MemoryBytes = 64 * gib
	d := Place(s, small())
	var got []string
	for _, r := range d.Reasons {
		got = append(got, fmt.Sprintf("%s %d alone %d named %d", r.Code, r.Nodes, r.Alone, len(r.NodeIDs)))
	}
	want := []string{"VCPUS 240 alone 119 named 100", "STATE 120 alone 0 named 100", "MEMORY 1 alone 0 named 1"}
	if !slices.Equal(got, want) {
		t.Errorf("reasons %q, want %q", got, want)
	}
	if d.Reasons[0].Text != "240 nodes have too few vCPUs free: 2 needed, at most 1 free" || d.Nearest.NodeID != "n077" {
		t.Errorf("got %q, nearest %+v", d.Reasons[0].Text, d.Nearest)
	}
	if tenant := fmt.Sprintf("%+v %+v", d.ForTenant(), d.ForTenant().Nearest); strings.Contains(tenant, "n077") || strings.Contains(tenant, "n000") {
		t.Errorf("a tenant sees a node's name: %s", tenant)
	}
	if d.Nearest.NodeID != "n077" || d.Reasons[0].NodeIDs[0] != "n000" {
		t.Error("ForTenant changed the operator's decision")
	}
}

func TestExplainOfADecision(t *testing.T) {
	s := fleet(3)
	s.Nodes[0].State = compute.NodeOff
	d := Explain(s, small())
	if d.NodeID != "n001" || len(d.Reasons) != 1 || d.Nodes != 3 || !d.EverFits {
		t.Errorf("got %+v", d)
	}
	if d := Explain(&Snapshot{}, small()); d.NodeID != "" || d.EverFits || d.Nearest != nil || len(d.Reasons) != 0 {
		t.Errorf("of no nodes: %+v", d)
	}
}

// A resize claims only the difference, on a node that may be over-full in what
// does not grow.
func TestCheckResize(t *testing.T) { // lesson 13 14
	s := fleet(1)
	n := &s.Nodes[0]
	n.Used = compute.Usage{VCPUs: 14, MemoryBytes: 70 * gib, DiskBytes: 8 * gib} // memory was shrunk under it
	n.Countables, n.Held = map[string]int64{gpu: 1}, map[string]int64{gpu: 2}
	n.Members = map[Seat]int64{{Group: "g"}: 1}
	r := small()
	r.Countables = map[string]int64{gpu: 2}
	r.Group = &Group{ID: "g", Rule: compute.GroupRule{Kind: compute.GroupSpread, Level: compute.LevelNode, Strict: true}}
	from := r.Allocation(Decision{NodeID: "n000"})
	r.From = &from
	for _, tt := range []struct {
		name   string
		vcpus  int64
		memory int64
		gpus   int64
		want   []Code
	}{
		{"no change", 2, 4 * gib, 2, nil},
		{"smaller", 1, 1 * gib, 1, nil},
		{"more vCPUs, all that are left", 4, 4 * gib, 2, nil},
		{"one vCPU too many", 5, 4 * gib, 2, []Code{CodeVCPUs}},
		{"more of what is over-full", 2, 5 * gib, 2, []Code{CodeMemory}},
		{"more units of what is over-full", 2, 4 * gib, 3, []Code{CodeCountable}},
	} {
		r.Shape = compute.Shape{VCPUs: tt.vcpus, MemoryBytes: tt.memory}
		r.Countables = map[string]int64{gpu: tt.gpus}
		var got []Code
		for _, m := range Check(s, "n000", 0, r) {
			got = append(got, m.Code)
		}
		if !slices.Equal(got, tt.want) {
			t.Errorf("%s: got %v, want %v", tt.name, got, tt.want)
		}
	}
	if got := Check(s, "gone", 0, r); len(got) != 1 || got[0].Code != CodeGone {
		t.Errorf("a node that is gone: %v", got)
	}
	if got := NewIndex(s.Nodes).Check("gone", 0, r); len(got) != 1 || got[0].Code != CodeGone {
		t.Errorf("a node that is gone from the index: %v", got)
	}
}

func TestIntegerEdges(t *testing.T) { // lesson 14
	const most = math.MaxInt64
	s := fleet(1)
	n := &s.Nodes[0]
	n.Committable = compute.Usage{VCPUs: most, MemoryBytes: most, DiskBytes: 0}
	n.Used = compute.Usage{VCPUs: most - 2, MemoryBytes: -5, DiskBytes: most}
	r := Request{Shape: compute.Shape{VCPUs: 2, MemoryBytes: most}, DiskBytes: -1}
	if d := Place(s, r); d.NodeID == "" {
		t.Errorf("the last two vCPUs are there: %+v", d)
	}
	if u := r.Usage(); u.DiskBytes != 0 {
		t.Errorf("a negative need is taken as %d", u.DiskBytes)
	}
	r.Shape.VCPUs = 3
	if d := Place(s, r); d.NodeID != "" {
		t.Error("three vCPUs fit where two are left")
	}
	r.Shape.VCPUs, r.DiskBytes = 0, most
	d := Place(s, r)
	if d.NodeID != "" || d.Nearest.Misses[0].Free != -most {
		t.Errorf("got %+v", d)
	}
}

func TestNodeOf(t *testing.T) { // contract: N-11 N-17
	n := compute.Node{
		ID: "a", Used: compute.Usage{VCPUs: 3},
		Facts: compute.NodeFacts{
			Role: compute.RoleHybrid, Region: "r", AvailabilityZone: "z", Architecture: "arm64",
			Capacity:     compute.Capacity{TotalVCPUs: 100, ReservedVCPUs: 0, VCPUOvercommitRatio: 2.3, MemoryOvercommitRatio: 1, TotalMemoryBytes: 5},
			Capabilities: map[string]string{gpu: "4", vfs: "many"},
		},
	}
	got := NodeOf(&n, compute.LivenessSuspect, map[string]int64{gpu: 1}, map[Seat]int64{{Group: "g"}: 1})
	if got.Committable.VCPUs != 230 || got.Zone != "z" || got.Labels[compute.LabelZone] != "z" || got.Used.VCPUs != 3 ||
		got.Liveness != compute.LivenessSuspect || !maps.Equal(got.Countables, map[string]int64{gpu: 4}) || got.Held[gpu] != 1 {
		t.Errorf("got %+v", got)
	}
}
