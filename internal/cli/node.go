package cli

import (
	"context"
	"fmt"
	"math"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/outcrop-cloud/outcrop/internal/api"
)

type node = api.Node

var nodes = &noun[node]{
	one: "node", command: "node",
	path: func(_ *app, id string) string { return api.NodePath(id) },
	id:   func(n *node) string { return n.ID },
	columns: []field[node]{
		{"ID", func(n *node, _ time.Time) string { return n.ID }},
		{"NAME", func(n *node, _ time.Time) string { return n.DisplayName }},
		{"ROLE", func(n *node, _ time.Time) string { return n.Role }},
		{"ZONE", func(n *node, _ time.Time) string { return n.AvailabilityZone }},
		{"STATE", func(n *node, _ time.Time) string { return n.State }},
		{"LIVENESS", func(n *node, _ time.Time) string { return n.Liveness.Status }},
		{"VCPUS", func(n *node, _ time.Time) string { return gaugeOf(n.CommittedVCPUs, n.CommittableVCPUs, countText) }},
		{"MEMORY", func(n *node, _ time.Time) string {
			return gaugeOf(n.CommittedMemoryBytes, n.CommittableMemoryBytes, formatSize)
		}},
		{"DISK", func(n *node, _ time.Time) string {
			return gaugeOf(n.CommittedDiskBytes, n.Capacity.TotalDiskBytes, formatSize)
		}},
		{"FREE UNITS", func(n *node, _ time.Time) string { return freeText(n) }},
		{"SEEN", func(n *node, now time.Time) string { return age(n.LastSeenAt, now) }},
		{"FINDINGS", func(n *node, _ time.Time) string { return codesText(n.Findings) }},
	},
	details: []field[node]{
		{"Id", func(n *node, _ time.Time) string { return n.ID }},
		{"Name", func(n *node, _ time.Time) string { return n.DisplayName }},
		{"Hostname", func(n *node, _ time.Time) string { return n.Hostname }},
		{"Role", func(n *node, _ time.Time) string { return n.Role }},
		{"Place", func(n *node, _ time.Time) string { return n.Region + " / " + n.AvailabilityZone }},
		{"Architecture", func(n *node, _ time.Time) string { return n.Architecture }},
		{"State", func(n *node, _ time.Time) string { return n.State }},
		{"Maintenance", maintenanceText},
		{"Liveness", func(n *node, now time.Time) string { return livenessText(&n.Liveness, now) }},
		{"Clock", func(n *node, _ time.Time) string { return skewText(n.Liveness.ClockSkewMS) }},
		{"Declared off", func(n *node, now time.Time) string { return moment(orZero(n.DeclaredOffAt), now) }},
		{"Power", powerText},
		{"Power on", func(n *node, _ time.Time) string { return powerOnText(n) }},
		{"Last seen", func(n *node, now time.Time) string { return moment(n.LastSeenAt, now) }},
		{"vCPUs", func(n *node, _ time.Time) string {
			return fmt.Sprintf("%d of %d committed (%d in all, %d reserved%s)", n.CommittedVCPUs, n.CommittableVCPUs,
				n.Capacity.TotalVCPUs, n.ReservedVCPUs, ratioText(n.VCPUOvercommitRatio))
		}},
		{"Memory", func(n *node, _ time.Time) string {
			return fmt.Sprintf("%s of %s committed (%s in all, %s reserved%s)", formatSize(n.CommittedMemoryBytes),
				formatSize(n.CommittableMemoryBytes), formatSize(n.Capacity.TotalMemoryBytes), formatSize(n.ReservedMemoryBytes), ratioText(n.MemoryOvercommitRatio))
		}},
		{"Reservation", func(n *node, _ time.Time) string { return n.ReservationSource }},
		{"Disk", func(n *node, _ time.Time) string {
			return fmt.Sprintf("%s of %s committed", formatSize(n.CommittedDiskBytes), formatSize(n.Capacity.TotalDiskBytes))
		}},
		{"Committed units", func(n *node, _ time.Time) string { return unitsText(n.CommittedCapabilities) }},
		{"Free units", func(n *node, _ time.Time) string { return unitsText(n.FreeCapabilities) }},
		{"Declared", func(n *node, _ time.Time) string { return pairsText(n.DeclaredCapabilities) }},
		{"Labels", func(n *node, _ time.Time) string { return pairsText(n.Capabilities) }},
		{"Overrides", func(n *node, _ time.Time) string { return overridesText(n.Overrides) }},
		{"Findings", func(n *node, _ time.Time) string { return findingsText(n.Findings) }},
		{"Created", func(n *node, now time.Time) string { return moment(n.CreatedAt, now) }},
	},
}

func newNode(a *app) *cobra.Command {
	c := group("node", "Look at nodes, or run the agent of this one",
		`A node is a machine that instances can run on. Its agent reports it by heartbeat
and drives libvirt; the commands below are an operator's.

With flags and no command it runs the agent of this machine until SIGTERM.
Instances go on running without it. The first time it joins with a join token
(--join-token-file or OUTCROP_JOIN_TOKEN), by a key that it makes and keeps in
--data; from then on --data alone is enough. With --token-file it uses a token
made with: outcrop token create --role node --node ID`,
		`  outcrop node list
  outcrop node join-token --id rack1-07
  outcrop node --server https://cloud:9418 --join-token-file join.token --id rack1-07 --data /var/lib/outcrop-node`, []string{"nodes"},
		nodes.listCommand(a, text{"List the nodes",
			`Lists the nodes. VCPUS and MEMORY show what instances hold, of what can be held
in all; FREE UNITS what is free of the countables that a node reports. SEEN is how
long ago the node last reported.`,
			"  outcrop node list\n  outcrop node list -o json"}),
		nodes.getCommand(a, text{"Show one node", "Shows one node: its size, what is committed, its labels, and what is wrong with it.",
			"  outcrop node get rack1-07"}),
		newNodeUpdate(a),
		nodes.deleteCommand(a, "delete", "deleted", []string{"rm"}, text{"Forget a node",
			`Removes a node that is gone for good. It is refused while instances are placed on
it. Its tokens end with it, so its agent cannot bring it back.`,
			"  outcrop node delete rack1-07"}),
	)
	c.AddCommand(nodeJoinCommands(a)...)
	c.AddCommand(nodePowerCommands(a)...)
	c.AddCommand(nodeMaintenanceCommands(a)...)
	a.agentFlags(c)
	return c
}

// nodeChange is what the flags of node update say; a word may be "auto".
type nodeChange struct {
	displayName            string
	vcpus, memory          string
	vcpuRatio, memoryRatio string
	labels, unlabel        []string
}

func newNodeUpdate(a *app) *cobra.Command {
	var ch nodeChange
	c := command("update", text{"Change a node's name, labels, reservation or overcommit",
		`Changes what the flags name and leaves the rest. "auto" gives a reservation back to
what is computed or reported, and a ratio to what is reported. Instances that
run keep what they hold, even where the node is then over its new limit.`,
		`  outcrop node update rack1-07 --display-name "Rack 1, slot 7"
  outcrop node update rack1-07 --reserved-memory 8GiB --vcpu-ratio 4
  outcrop node update rack1-07 --reserved-memory auto --label topology.rack=r1 --unlabel topology.power`},
		[]string{"set"}, []string{nodes.argument()}, func(cmd *cobra.Command, args []string) error {
			patch, err := ch.patch(cmd)
			if err != nil {
				return err
			}
			return a.updateNode(cmd.Context(), args[0], patch)
		})
	f := c.Flags()
	f.StringVar(&ch.displayName, "display-name", "", "name to show; empty takes it away")
	f.StringVar(&ch.vcpus, "reserved-vcpus", "", "vCPUs kept for the node itself, or auto")
	f.StringVar(&ch.memory, "reserved-memory", "", "memory kept for the node itself, like 4GiB, or auto")
	f.StringVar(&ch.vcpuRatio, "vcpu-ratio", "", "vCPUs handed out for each one there is, or auto")
	f.StringVar(&ch.memoryRatio, "memory-ratio", "", "memory handed out for each byte there is, or auto")
	f.StringArrayVar(&ch.labels, "label", nil, "label to declare, key=value (repeatable)")
	f.StringArrayVar(&ch.unlabel, "unlabel", nil, "declared label to take back, by key (repeatable)")
	c.ValidArgsFunction = nodes.complete(a)
	return c
}

func (a *app) updateNode(ctx context.Context, id string, patch *api.PatchNode) error {
	var it item[node]
	if err := a.do(ctx, http.MethodPatch, nodes.path(a, id), patch, &it); err != nil {
		return err
	}
	return printOne(a, it, nodes.details, nodes.id)
}

func (ch *nodeChange) patch(cmd *cobra.Command) (*api.PatchNode, error) {
	p, changed := &api.PatchNode{}, false
	read := func(flag string, set func() error) error {
		if !cmd.Flags().Changed(flag) {
			return nil
		}
		changed = true
		if err := set(); err != nil {
			return usagef("--%s: %s", flag, err)
		}
		return nil
	}
	for _, flag := range []struct {
		name string
		set  func() error
	}{
		{"display-name", func() error { p.DisplayName = &ch.displayName; return nil }},
		{"reserved-vcpus", func() (err error) { p.ReservedVCPUs, err = orAuto(ch.vcpus, parseCount); return err }},
		{"reserved-memory", func() (err error) { p.ReservedMemoryBytes, err = orAuto(ch.memory, parseSize); return err }},
		{"vcpu-ratio", func() (err error) { p.VCPUOvercommitRatio, err = orAuto(ch.vcpuRatio, parseRatio); return err }},
		{"memory-ratio", func() (err error) { p.MemoryOvercommitRatio, err = orAuto(ch.memoryRatio, parseRatio); return err }},
	} {
		if err := read(flag.name, flag.set); err != nil {
			return nil, err
		}
	}
	labels, err := parsePairs("label", ch.labels)
	if err != nil {
		return nil, err
	}
	p.DeclaredCapabilities = map[string]*string{}
	for k, v := range labels {
		p.DeclaredCapabilities[k] = &v
	}
	for _, k := range ch.unlabel {
		if _, both := labels[k]; both {
			return nil, usagef("%q is in --label and in --unlabel", k)
		}
		p.DeclaredCapabilities[k] = nil
	}
	if !changed && len(p.DeclaredCapabilities) == 0 {
		return nil, usagef("nothing to change; give at least one of the flags")
	}
	return p, nil
}

// orAuto reads a value, or null for "auto".
func orAuto[T any](s string, parse func(string) (T, error)) (api.Nullable[T], error) {
	if s == "auto" {
		return api.Nullable[T]{Set: true, Null: true}, nil
	}
	v, err := parse(s)
	return api.Nullable[T]{Set: true, Value: v}, err
}

func parseCount(s string) (int64, error) {
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil || n < 0 {
		return 0, fmt.Errorf("%q is not a whole number (or auto)", s)
	}
	return n, nil
}

func parseRatio(s string) (float64, error) {
	r, err := strconv.ParseFloat(s, 64)
	if err != nil || !(r > 0) || math.IsInf(r, 0) {
		return 0, fmt.Errorf("%q is not a ratio above 0, like 1.5 (or auto)", s)
	}
	return r, nil
}

func livenessText(l *api.NodeLiveness, now time.Time) string {
	text := l.Status
	if !l.Since.IsZero() {
		text += " for " + age(l.Since, now)
	}
	if l.Reason != "" {
		text += ": " + l.Reason
	}
	return text
}

// skewText says how far a node's clock is off, where that is a second or more.
func skewText(ms *int64) string {
	if ms == nil {
		return ""
	}
	skew, side := time.Duration(*ms)*time.Millisecond, "ahead of"
	if skew < 0 {
		skew, side = -skew, "behind"
	}
	if skew < time.Second {
		return ""
	}
	return skew.Round(100*time.Millisecond).String() + " " + side + " the server's; nothing is judged by it"
}

// ratioText is the overcommit ratio where it does anything.
func ratioText(ratio float64) string {
	if ratio == 0 || ratio == 1 {
		return ""
	}
	return ", times " + strconv.FormatFloat(ratio, 'g', -1, 64)
}

func findingsText(findings []api.Finding) string {
	var words []string
	for _, f := range findings {
		words = append(words, strings.TrimSuffix(f.Code+": "+f.Message+"; "+f.NextStep, "; "))
	}
	return strings.Join(words, "; ")
}
