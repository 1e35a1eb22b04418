package schedule

import (
	"fmt"
	"testing"

	"github.com/outcrop-cloud/outcrop/internal/compute"
)

// A partition stays on its own racks as long as they have room, so that racks are
// left for the others.
func TestPartitionKeepsToItsRacks(t *testing.T) { // contract: U-14
	ix := NewIndex(fleet(24).Nodes) // 6 racks of 4 nodes
	r := small()
	r.Group = &Group{ID: "g", Rule: compute.GroupRule{Kind: compute.GroupPartition, Level: compute.LevelRack, Strict: true, Partitions: 3}}
	racks := map[int64]map[string]bool{1: {}, 2: {}, 3: {}}
	for range 30 {
		d := ix.Place(r)
		if d.NodeID == "" {
			t.Fatalf("no place: %+v", d)
		}
		racks[d.Partition][ix.nodes[d.NodeID].Labels[compute.LabelRack]] = true
		ix.Commit(r.Allocation(d))
	}
	for p, of := range racks {
		if len(of) != 1 {
			t.Errorf("partition %d stands on the racks %v", p, of)
		}
	}
}

func TestViolationsAndRebalance(t *testing.T) { // contract: U-14
	s := fleet(12) // n000 and n006 share a rack, n001 and n007 the next
	g := Group{ID: "g", Rule: compute.GroupRule{Kind: compute.GroupSpread, Level: compute.LevelRack, Strict: true}}
	seat := Seat{Group: "g"}
	var members []Member
	for i, id := range []string{"n000", "n006", "n001"} {
		r := small()
		a := Allocation{NodeID: id, Usage: r.Usage(), Seat: seat}
		r.From = &a
		members = append(members, Member{fmt.Sprintf("i-%d", i), r})
		n := s.node(id)
		n.Used, n.Members = r.Usage(), map[Seat]int64{seat: 1}
	}
	list := Violations(s, []Group{g})
	if len(list) != 1 || list[0].Domain != "rack0" || list[0].Zone != "z0" || list[0].Excess != 1 ||
		fmt.Sprint(list[0].NodeIDs) != "[n000 n006]" || list[0].Text != "2 members stand on one rack, where the rule wants 1" {
		t.Errorf("violations: %+v", list)
	}
	plan := Rebalance(s, g, members)
	if len(plan) != 1 || plan[0] != (Move{"i-0", "n000", "n002"}) {
		t.Errorf("plan: %+v", plan)
	}
	if members[0].Request.From.NodeID != "n000" {
		t.Error("planning changed the member")
	}
}

// Racks of the same name in two zones are two racks.
func TestRacksCountWithinTheirZone(t *testing.T) {
	s := fleet(2)
	s.Nodes[0].Labels[compute.LabelRack], s.Nodes[1].Labels[compute.LabelRack] = "a", "a"
	s.Nodes[0].Members = map[Seat]int64{{Group: "g"}: 1}
	r := small()
	r.Group = &Group{ID: "g", Rule: compute.GroupRule{Kind: compute.GroupSpread, Level: compute.LevelRack, Strict: true}}
	if d := Place(s, r); d.NodeID != "n001" {
		t.Errorf("got %+v", d)
	}
}
