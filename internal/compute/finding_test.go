package compute

import (
	"strings"
	"testing"
)

// What a node's own record shows: each finding with what brings it, and with what only
// looks like it. Absent is neither false nor zero.
// contract: N-04 N-14 N-16 N-17
func TestFindings(t *testing.T) {
	const sriov = "capability.net.sriov_vfs"
	labels := func(pairs ...string) func(*Node) {
		return func(n *Node) {
			for i := 0; i < len(pairs); i += 2 {
				n.Facts.Capabilities[pairs[i]] = pairs[i+1]
			}
		}
	}
	stale := func(source string) func(*Node) {
		return labels("capability.host.binaries_stale", "true", "capability.host.binaries_source", source, "capability.host.binaries_commit", "abc123")
	}
	for _, tt := range []struct {
		name   string
		change func(*Node)
		want   string // code; empty for none
		says   string // in the message
		next   string // in the next step
	}{
		{"as it should be", labels(), "", "", ""},
		{"stale, mutable", stale("control-plane-image"), FindingBinariesStale, "abc123", "next pass"},
		{"stale, of the image", stale("os-image"), FindingBinariesStale, "abc123", "operating system image"},
		{"stale, switched in", stale("overlay"), FindingBinariesStale, "abc123", "next upgrade"},
		{"stale, source not reported", labels("capability.host.binaries_stale", "true"), FindingBinariesStale, "unknown", "install"},
		{"of commits that differ", labels("capability.host.binaries_stale", "true", "capability.host.binaries_commit", "mixed"), FindingBinariesStale, "mixed", "install"},
		{"checked, and fresh", labels("capability.host.binaries_stale", "false", "capability.host.binaries_commit", "abc123"), "", "", ""},
		{"stale in no known word", labels("capability.host.binaries_stale", "yes"), "", "", ""},
		{"some are too old to say", labels("capability.host.binaries_unknown", "outcrop-helper"), FindingBinariesUnknown, "outcrop-helper", "replace"},
		{"development mode", labels("capability.host.dev_mode", "true"), FindingDevMode, "development", "turn it off"},
		{"no development mode", labels("capability.host.dev_mode", "false"), "", "", ""},
		{"cannot receive", labels("capability.migration.transport", "down"), FindingMigrationDown, "receive", "transport"},
		{"can receive", labels("capability.migration.transport", "listening"), "", "", ""},
		{"all of it reserved", func(n *Node) { n.Facts.Capacity.ReservedVCPUs = 4 }, "", "", ""},
		{"more vCPUs reserved than there are", func(n *Node) { n.Facts.Capacity.ReservedVCPUs = 5 }, FindingReservation, "larger", "--reserved-vcpus auto"},
		{"more memory reserved than there is", func(n *Node) { n.Facts.Capacity.ReservedMemoryBytes = 9 }, FindingReservation, "larger", "--reserved-memory auto"},
		{"full", func(n *Node) { n.Used = Usage{VCPUs: 4, MemoryBytes: 8, DiskBytes: 16} }, "", "", ""},
		{"too many vCPUs committed", func(n *Node) { n.Used.VCPUs = 5 }, FindingOverCommitted, "more is committed", "ratio"},
		{"too much memory committed", func(n *Node) { n.Used.MemoryBytes = 9 }, FindingOverCommitted, "more is committed", "ratio"},
		{"too much disk committed", func(n *Node) { n.Used.DiskBytes = 17 }, FindingOverCommitted, "more is committed", "ratio"},
		{"all units out", func(n *Node) { labels(sriov, "2")(n); n.Held = map[string]int64{sriov: 2} }, "", "", ""},
		{"more units out than there are", func(n *Node) { labels(sriov, "1")(n); n.Held = map[string]int64{sriov: 2} }, FindingOverAllocated, "the node has 1;", sriov + "=N"},
		{"units out, and none there", func(n *Node) { labels(sriov, "0")(n); n.Held = map[string]int64{sriov: 2} }, FindingOverAllocated, "the node has 0;", sriov + "=N"},
		{"units out, and not reported", func(n *Node) { n.Held = map[string]int64{sriov: 2} }, FindingOverAllocated, "the node does not report them", sriov + "=N"},
	} {
		n := Node{ID: "n1", Facts: NodeFacts{Capabilities: map[string]string{}, Capacity: Capacity{
			TotalVCPUs: 4, TotalMemoryBytes: 8, TotalDiskBytes: 16, VCPUOvercommitRatio: 1, MemoryOvercommitRatio: 1}}}
		tt.change(&n)
		got := n.Findings()
		if tt.want == "" {
			if len(got) != 0 {
				t.Errorf("%s: %+v", tt.name, got)
			}
			continue
		}
		if len(got) != 1 || got[0].Code != tt.want || !strings.Contains(got[0].Message, tt.says) || !strings.Contains(got[0].Next, tt.next) {
			t.Errorf("%s: %+v; want %s that says %q and %q", tt.name, got, tt.want, tt.says, tt.next)
		}
	}
}

// Since when a finding stands is kept while it does, and begins anew after it was gone.
// contract: N-23
func TestStand(t *testing.T) {
	n := Node{Facts: NodeFacts{Capabilities: map[string]string{"capability.host.dev_mode": "true"}}}
	n.Stand(t0)
	n.Facts.Capabilities["capability.migration.transport"] = "down"
	n.Stand(t0.Add(1))
	if n.Standing[FindingDevMode] != t0 || n.Standing[FindingMigrationDown] != t0.Add(1) || len(n.Standing) != 2 {
		t.Errorf("%v", n.Standing)
	}
	delete(n.Facts.Capabilities, "capability.host.dev_mode")
	n.Stand(t0.Add(2))
	n.Facts.Capabilities["capability.host.dev_mode"] = "true"
	n.Stand(t0.Add(3))
	if n.Standing[FindingDevMode] != t0.Add(3) || n.Standing[FindingMigrationDown] != t0.Add(1) {
		t.Errorf("after it was gone: %v", n.Standing)
	}
}
