package cli

import (
	"cmp"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/outcrop-cloud/outcrop/internal/api"
)

// gaugeWidth is how many characters a gauge has.
const gaugeWidth = 8

// gauge shows a part of a whole. Any part at all shows, and only what is full, or
// more than full, fills it.
func gauge(part, whole int64) string {
	n := 0
	switch {
	case part <= 0:
	case whole <= 0 || part >= whole:
		n = gaugeWidth
	default:
		n = min(max(1, int(float64(part)/float64(whole)*gaugeWidth+0.5)), gaugeWidth-1)
	}
	return "[" + strings.Repeat("#", n) + strings.Repeat(".", gaugeWidth-n) + "]"
}

func gaugeOf(part, whole int64, text func(int64) string) string {
	return gauge(part, whole) + " " + text(part) + "/" + text(whole)
}

func countText(n int64) string { return strconv.FormatInt(n, 10) }

// shortLabel is a countable label without the part that all have.
func shortLabel(key string) string { return strings.TrimPrefix(key, "capability.") }

// freeText lists free units of the countables that a node reports; those that it
// does not report are not there, which is not zero (contract N-14).
func freeText(n *node) string {
	var words []string
	for _, key := range slices.Sorted(maps.Keys(n.FreeCapabilities)) {
		words = append(words, fmt.Sprintf("%s %d/%s", shortLabel(key), n.FreeCapabilities[key], n.Capabilities[key]))
	}
	return strings.Join(words, ", ")
}

func codesText(findings []api.Finding) string {
	var words []string
	for _, f := range findings {
		words = append(words, f.Code)
	}
	return strings.Join(words, ", ")
}

func overridesText(list []api.LabelOverride) string {
	var words []string
	for _, o := range list {
		words = append(words, fmt.Sprintf("%s: %s is declared, %s was detected", o.Key, o.Declared, o.Detected))
	}
	return strings.Join(words, "; ")
}

func newCapacity(a *app) *cobra.Command {
	return command("capacity", text{"Show what the fleet can hold, by region, zone and role",
		`Sums up the nodes: what can be committed, what is, and what is free. Free counts only
nodes that take new instances: of a role that does, ready, and not unreachable.
Operators only.`,
		"  outcrop capacity\n  outcrop capacity -o json"}, nil, nil, func(cmd *cobra.Command, _ []string) error {
		var it item[api.Capacity]
		if err := a.do(cmd.Context(), http.MethodGet, "/v1/compute/capacity", nil, &it); err != nil {
			return err
		}
		if a.flags.output != "table" {
			return a.encode(a.stdout, it)
		}
		return a.printCapacity(&it.value)
	})
}

func (a *app) printCapacity(c *api.Capacity) error {
	rows := [][]string{{"REGION", "ZONE", "ROLE", "NODES", "OPEN", "VCPUS", "MEMORY", "DISK", "FREE VCPUS", "FREE MEMORY", "FREE UNITS"}}
	row := func(region, zone, role string, s *api.CapacitySum) {
		rows = append(rows, []string{region, zone, role, countText(s.Nodes), countText(s.Schedulable),
			gaugeOf(s.VCPUs.Committed, s.VCPUs.Committable, countText), gaugeOf(s.MemoryBytes.Committed, s.MemoryBytes.Committable, formatSize),
			gaugeOf(s.DiskBytes.Committed, s.DiskBytes.Committable, formatSize), countText(s.VCPUs.Free), formatSize(s.MemoryBytes.Free), orDash(sumsText(s.Countables))})
	}
	for i := range c.Groups {
		g := &c.Groups[i]
		row(g.Region, g.AvailabilityZone, g.Role, &g.CapacitySum)
	}
	row("all", "", "", &c.Total)
	if err := table(a.stdout, rows); err != nil {
		return err
	}
	if t := &c.Total; t.Unreachable+t.Suspect+t.NotReady > 0 {
		a.notef("%d unreachable, %d suspect, %d not ready; see: outcrop readiness", t.Unreachable, t.Suspect, t.NotReady)
	}
	return nil
}

func sumsText(sums map[string]api.CountableSum) string {
	var words []string
	for _, key := range slices.Sorted(maps.Keys(sums)) {
		words = append(words, fmt.Sprintf("%s %d/%d", shortLabel(key), sums[key].Free, sums[key].Total))
	}
	return strings.Join(words, ", ")
}

func newReadiness(a *app) *cobra.Command {
	var all bool
	c := command("readiness", text{"Show what is wrong with which node, and what to do",
		"Lists the findings of the nodes: what, since when, and the next step. Operators only.",
		"  outcrop readiness\n  outcrop readiness --all -o json"}, []string{"findings"}, nil, func(cmd *cobra.Command, _ []string) error {
		path := "/v1/compute/readiness"
		if all {
			path += "?all=true"
		}
		items, err := list[api.NodeReadiness](cmd.Context(), a, path)
		if err != nil {
			return err
		}
		if a.flags.output != "table" || a.flags.quiet {
			return printList(a, items, nil, func(r *api.NodeReadiness) string { return r.NodeID })
		}
		if len(items) == 0 {
			a.notef("no node has findings")
			return nil
		}
		now := a.now()
		rows := [][]string{{"NODE", "STATE", "LIVENESS", "TAKES NEW", "FINDING", "SINCE", "WHAT", "NEXT STEP"}}
		for i := range items {
			rows = append(rows, readinessRows(&items[i].value, now)...)
		}
		return table(a.stdout, rows)
	})
	c.Flags().BoolVar(&all, "all", false, "also nodes without findings")
	return c
}

func readinessRows(r *api.NodeReadiness, now time.Time) (rows [][]string) {
	takes := "no"
	if r.Schedulable {
		takes = "yes"
	}
	head := []string{r.NodeID, r.State, r.Liveness, takes}
	if len(r.Findings) == 0 {
		return [][]string{append(head, "-", "-", "-", "-")}
	}
	for i, f := range r.Findings {
		if i > 0 {
			head = []string{"", "", "", ""}
		}
		rows = append(rows, append(slices.Clone(head), f.Code, orDash(age(orZero(f.Since), now)), f.Message, orDash(f.NextStep)))
	}
	return rows
}

func newAudit(a *app) *cobra.Command {
	return command("audit", text{"Compare what is written down with what the nodes report",
		`Compares allocations, instances and the nodes' reports, both ways. The server does so by
itself every five minutes and mends what is certain; this looks now and mends
nothing. Operators only.`,
		"  outcrop audit\n  outcrop audit -o json"}, nil, nil, func(cmd *cobra.Command, _ []string) error {
		var it item[api.Audit]
		if err := a.do(cmd.Context(), http.MethodGet, "/v1/compute/audit", nil, &it); err != nil {
			return err
		}
		if a.flags.output != "table" {
			return a.encode(a.stdout, it)
		}
		v := &it.value
		a.notef("compared %d allocations, %d instances, %d nodes: %d findings", v.Compared.Allocations, v.Compared.Instances, v.Compared.Nodes, len(v.Findings))
		if len(v.Findings) == 0 {
			return nil
		}
		now := a.now()
		rows := [][]string{{"FINDING", "INSTANCE", "NODE", "SINCE", "REPAIR", "WHAT"}}
		for _, f := range v.Findings {
			rows = append(rows, []string{f.Code, orDash(f.InstanceID), orDash(f.NodeID), cmp.Or(age(orZero(f.Since), now), "now"), f.Repair, f.Message})
		}
		return table(a.stdout, rows)
	})
}
