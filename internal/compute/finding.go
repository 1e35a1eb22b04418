package compute

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"
)

// Finding is something about a node that an operator should know.
type Finding struct {
	Code    string // stable, e.g. HostBinariesStale
	Message string // for a person
	Next    string // what to do about it
}

// Codes of the findings that follow from what a node says and what is wanted of it.
const (
	FindingBinariesStale   = "HostBinariesStale"
	FindingBinariesUnknown = "HostBinariesUnknown"
	FindingDevMode         = "DevModeOn"
	FindingMigrationDown   = "MigrationTransportDown"
	FindingReservation     = "ReservationAboveTotal"
	FindingOverCommitted   = "OverCommitted"
	FindingOverAllocated   = "CountableOverAllocated"
)

// Findings are those that follow from the node's own record alone, in a fixed
// order. What its agent finds and what its heartbeats show come beside.
func (n *Node) Findings() []Finding {
	labels, _ := n.Labels()
	var list []Finding
	add := func(code, message, next string) { list = append(list, Finding{code, message, next}) }
	n.cloneFindings(add)
	n.hostFindings(labels, add)
	if r, _ := n.Reservation(); r.VCPUs > n.Facts.Capacity.TotalVCPUs || r.MemoryBytes > n.Facts.Capacity.TotalMemoryBytes {
		add(FindingReservation, "the reservation is larger than the node, so nothing fits", "lower it: outcrop node update "+n.ID+" --reserved-memory auto --reserved-vcpus auto")
	}
	if room := n.Committable(); n.Used.VCPUs > room.VCPUs || n.Used.MemoryBytes > room.MemoryBytes || n.Used.DiskBytes > room.DiskBytes {
		add(FindingOverCommitted, "more is committed than may be; what runs goes on, nothing new is placed until it is less",
			"terminate or move instances, or raise the ratio: outcrop node update "+n.ID)
	}
	total := Countables(labels)
	for _, key := range slices.Sorted(maps.Keys(n.Held)) {
		if has, reported := total[key]; n.Held[key] > has {
			there := fmt.Sprintf("has %d", has)
			if !reported { // which is not zero (contract N-14)
				there = "does not report them"
			}
			add(FindingOverAllocated, fmt.Sprintf("%d units of %s are allocated, the node %s; guests keep what they hold, nothing new is placed", n.Held[key], key, there),
				"move guests that hold some, or declare what is there: outcrop node update "+n.ID+" --label "+key+"=N")
			break
		}
	}
	return list
}

// hostFindings read the operational labels (contract N-16). Where nothing checked
// there is no key, and thus no finding.
func (n *Node) hostFindings(labels map[string]string, add func(code, message, next string)) {
	if labels["capability.host.binaries_stale"] == "true" {
		next := "install the control plane's build on the node, then restart its agent"
		switch labels["capability.host.binaries_source"] {
		case "control-plane-image":
			next = "wait for the host helper's next pass, which installs the control plane's copies; if it stays, look at the helper"
		case "os-image":
			next = "upgrade the node's operating system image; nothing else changes the binaries"
		case "overlay":
			next = "upgrade the node; the next upgrade switches the binaries again"
		}
		add(FindingBinariesStale, fmt.Sprintf("the host's binaries are of commit %s, not of the build that the node should run", cmp.Or(labels["capability.host.binaries_commit"], "unknown")), next)
	}
	if unknown := labels["capability.host.binaries_unknown"]; unknown != "" {
		add(FindingBinariesUnknown, "these host binaries cannot say what they were built from: "+unknown, "replace them; binaries this old may lack commands that a runbook names")
	}
	if labels["capability.host.dev_mode"] == "true" {
		add(FindingDevMode, "the node's control plane runs in development mode, which shows more than a production one may", "turn it off in the node's configuration and restart the control plane there")
	}
	if labels["capability.migration.transport"] == "down" {
		add(FindingMigrationDown, "the node cannot receive a live migration", "look at libvirt's migration transport on the node")
	}
}

// Stand notes since when each finding stands: one that was there keeps its moment.
func (n *Node) Stand(now time.Time) {
	var standing map[string]time.Time
	for _, f := range n.Findings() {
		since, ok := n.Standing[f.Code]
		if !ok {
			since = now
		}
		if standing == nil {
			standing = make(map[string]time.Time)
		}
		standing[f.Code] = since
	}
	n.Standing = standing
}
