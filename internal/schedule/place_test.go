package schedule

import (
	"testing"

	"github.com/outcrop-cloud/outcrop/internal/compute"
)

const gib = int64(1) << 30

// fleet is n ready nodes of 16 vCPUs, 64 GiB and 1,000 GiB of disk, node i in zone
// i%3 and rack i%6.
func fleet(n int) *Snapshot {
	s := &Snapshot{}
	for i := range n {
		id := "n" + string(rune('0'+i/100%10)) + string(rune('0'+i/10%10)) + string(rune('0'+i%10))
		s.Nodes = append(s.Nodes, Node{
			ID: id, Role: compute.RoleHypervisor, State: compute.NodeReady, Liveness: compute.LivenessOK,
			Region: "r", Zone: "z" + string(rune('0'+i%3)), Architecture: "amd64",
			Labels:      map[string]string{compute.LabelRack: "rack" + string(rune('0'+i%6))},
			Committable: compute.Usage{VCPUs: 16, MemoryBytes: 64 * gib, DiskBytes: 1000 * gib},
		})
	}
	return s
}

func small() Request {
	return Request{Shape: compute.Shape{VCPUs: 2, MemoryBytes: 4 * gib}, DiskBytes: 8 * gib}
}

func TestPlaceTiesByID(t *testing.T) { // lesson 16
	s := fleet(4)
	s.Nodes[0], s.Nodes[3] = s.Nodes[3], s.Nodes[0]
	if d := Place(s, small()); d.NodeID != "n000" {
		t.Errorf("of equal nodes got %q, want the least id", d.NodeID)
	}
}

func TestPlaceSaysWhyNot(t *testing.T) { // lesson 18
	s := fleet(3)
	s.Nodes[0].State = compute.NodeMaintenance
	s.Nodes[1].Role = compute.RoleStorage // contract: N-03
	s.Nodes[2].Used.VCPUs = 15
	d := Place(s, small())
	if d.NodeID != "" || len(d.Reasons) != 3 || !d.EverFits || d.Nodes != 3 {
		t.Fatalf("got %+v", d)
	}
	if d.Nearest == nil || d.Nearest.NodeID != "n002" || d.Nearest.Fix != "free 1 more of vCPUs, or ask for at most 1" {
		t.Errorf("nearest miss: %+v", d.Nearest)
	}
}
