package cli

import (
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/outcrop-cloud/outcrop/internal/api"
)

// addPlacementFlags are the flags of a create that say where it may go.
func (fl *createFlags) addPlacementFlags(a *app, c *cobra.Command) {
	f := c.Flags()
	f.StringArrayVar(&fl.in.Selectors, "selector", nil, "condition on the node's labels: key=value, key!=value, key, !key, 'key in (a, b)', 'key>=2' (repeatable)")
	f.StringArrayVar(&fl.countables, "countable", nil, "units of a countable label, like capability.gpu.nvidia-l40s=1 (repeatable)")
	f.StringVar(&fl.group, "placement-group", "", "placement group to join, by id or name")
	_ = c.RegisterFlagCompletionFunc("placement-group", func(cmd *cobra.Command, _ []string, word string) ([]cobra.Completion, cobra.ShellCompDirective) {
		return placementGroups.complete(a)(cmd, nil, word)
	})
}

// parseUnits reads label=units words.
func parseUnits(flag string, words []string) (map[string]int64, error) {
	pairs, err := parsePairs(flag, words)
	if err != nil || len(pairs) == 0 {
		return nil, err
	}
	units := make(map[string]int64, len(pairs))
	for k, v := range pairs {
		n, err := strconv.ParseInt(v, 10, 64)
		if err != nil || n < 1 {
			return nil, usagef("--%s %s: %q is not a whole number of units, 1 or more", flag, k, v)
		}
		units[k] = n
	}
	return units, nil
}

type placementGroupItem = api.PlacementGroup

var placementGroups = &noun[placementGroupItem]{
	one: "placement group", command: "placement-group",
	path: func(a *app, id string) string { return groupPath(a, id, "") },
	id:   func(g *placementGroupItem) string { return g.ID },
	name: func(g *placementGroupItem) string { return g.Name },
	isID: func(s string) bool { return strings.HasPrefix(s, "pg-") },
	columns: []field[placementGroupItem]{
		{"ID", func(g *placementGroupItem, _ time.Time) string { return g.ID }},
		{"NAME", func(g *placementGroupItem, _ time.Time) string { return g.Name }},
		{"RULE", func(g *placementGroupItem, _ time.Time) string { return ruleText(g) }},
		{"MEMBERS", func(g *placementGroupItem, _ time.Time) string { return strconv.FormatInt(g.Members, 10) }},
		{"AGE", func(g *placementGroupItem, now time.Time) string { return age(g.CreatedAt, now) }},
	},
	details: []field[placementGroupItem]{
		{"Id", func(g *placementGroupItem, _ time.Time) string { return g.ID }},
		{"Name", func(g *placementGroupItem, _ time.Time) string { return g.Name }},
		{"Project", func(g *placementGroupItem, _ time.Time) string { return g.ProjectID }},
		{"Rule", func(g *placementGroupItem, _ time.Time) string { return ruleText(g) }},
		{"Members", func(g *placementGroupItem, _ time.Time) string { return strconv.FormatInt(g.Members, 10) }},
		{"Created", func(g *placementGroupItem, now time.Time) string { return moment(g.CreatedAt, now) }},
	},
}

func groupPath(a *app, id, verb string) string {
	p := pathOf("/v1/projects/"+url.PathEscape(a.settings().project)+"/compute/placement-groups", id)
	if verb != "" {
		p += "/" + verb
	}
	return p
}

func ruleText(g *placementGroupItem) string {
	text := g.Kind + " over " + g.Level + "s"
	switch g.Kind {
	case "cluster":
		text = "cluster on one " + g.Level
	case "partition":
		text = fmt.Sprintf("%d partitions over %ss", g.Partitions, g.Level)
	}
	if !g.Strict {
		text += ", best effort"
	}
	return text
}

func newPlacementGroup(a *app) *cobra.Command {
	return group("placement-group", "Say how instances stand to one another",
		`A placement group is a rule about where its members stand: spread keeps them apart,
cluster together, partition in parts that share nothing. The level is a node, a
rack, a power feed or a zone; racks and power feeds are labels that an operator
declares (topology.rack, topology.power). A strict rule refuses a launch that would
break it; best effort takes the best there is. Instances join at their create.`,
		"  outcrop placement-group create web --kind spread --level rack\n  outcrop instance create --name web-1 --image debian --type m1.small --placement-group web",
		[]string{"placement-groups", "pg"},
		newPlacementGroupCreate(a),
		placementGroups.listCommand(a, text{"List the placement groups of the project", "Lists the placement groups of the project.", "  outcrop placement-group list"}),
		placementGroups.getCommand(a, text{"Show one placement group", "Shows one placement group by id or name.", "  outcrop placement-group get web"}),
		newPlacementGroupUpdate(a),
		placementGroups.deleteCommand(a, "delete", "deleted", []string{"rm"}, text{"Delete a placement group",
			"Deletes a placement group. Its members run on where they are, and nothing holds them to the rule any more.", "  outcrop placement-group delete web"}),
		newViolations(a), newRebalance(a),
	)
}

func newPlacementGroupCreate(a *app) *cobra.Command {
	var in api.CreatePlacementGroup
	var bestEffort bool
	c := command("create", text{"Create a placement group", "Creates a placement group. The rule is strict unless --best-effort is given.",
		"  outcrop placement-group create web --kind spread --level rack\n  outcrop placement-group create db --kind partition --level rack --partitions 3"},
		[]string{"add"}, []string{"NAME"}, func(cmd *cobra.Command, args []string) error {
			if err := need(cmd, "kind"); err != nil {
				return err
			}
			in.Name = args[0]
			if bestEffort {
				strict := false
				in.Strict = &strict
			}
			var it item[placementGroupItem]
			if err := a.post(cmd.Context(), groupPath(a, "", ""), &in, &it); err != nil {
				return err
			}
			return printOne(a, it, placementGroups.details, placementGroups.id)
		})
	f := c.Flags()
	f.StringVar(&in.Kind, "kind", "", "spread, cluster or partition")
	f.StringVar(&in.Level, "level", "", "node, rack, power or zone (node)")
	f.Int64Var(&in.Partitions, "partitions", 0, "how many, of a partition group (2)")
	f.BoolVar(&bestEffort, "best-effort", false, "take the best there is, rather than refuse")
	completeWords(c, "kind", "spread", "cluster", "partition")
	completeWords(c, "level", "node", "rack", "power", "zone")
	return c
}

func newPlacementGroupUpdate(a *app) *cobra.Command {
	var name, level, strict string
	c := command("update", text{"Change a placement group's name or rule",
		"Changes what the flags name. Members stay where they are; \"violations\" shows what then stands against the rule.",
		"  outcrop placement-group update web --strict off"}, nil, []string{placementGroups.argument()}, func(cmd *cobra.Command, args []string) error {
		var in api.PatchPlacementGroup
		if cmd.Flags().Changed("name") {
			in.Name = &name
		}
		if cmd.Flags().Changed("level") {
			in.Level = &level
		}
		var err error
		if in.Strict, err = onOff("strict", strict); err != nil {
			return err
		}
		if in == (api.PatchPlacementGroup{}) {
			return usagef("nothing to change; give --name, --level or --strict")
		}
		id, err := placementGroups.resolve(cmd.Context(), a, args[0])
		if err != nil {
			return err
		}
		var it item[placementGroupItem]
		if err := a.do(cmd.Context(), http.MethodPatch, groupPath(a, id, ""), &in, &it); err != nil {
			return err
		}
		return printOne(a, it, placementGroups.details, placementGroups.id)
	})
	f := c.Flags()
	f.StringVar(&name, "name", "", "new name")
	f.StringVar(&level, "level", "", "node, rack, power or zone")
	f.StringVar(&strict, "strict", "", "on or off")
	completeWords(c, "level", "node", "rack", "power", "zone")
	completeWords(c, "strict", "on", "off")
	c.ValidArgsFunction = placementGroups.complete(a)
	return c
}

type violation = api.GroupViolation

var violationColumns = []field[violation]{
	{"DOMAIN", func(v *violation, _ time.Time) string { return v.Domain }},
	{"ZONE", func(v *violation, _ time.Time) string { return v.Zone }},
	{"MEMBERS", func(v *violation, _ time.Time) string { return strconv.FormatInt(v.Members, 10) }},
	{"EXCESS", func(v *violation, _ time.Time) string { return strconv.FormatInt(v.Excess, 10) }},
	{"WHAT", func(v *violation, _ time.Time) string { return v.Message }},
	{"NODES", func(v *violation, _ time.Time) string { return strings.Join(v.NodeIDs, ", ") }},
}

func newViolations(a *app) *cobra.Command {
	c := command("violations", text{"Show where a placement group does not stand as its rule says",
		"Shows each domain where members stand against the rule: a node got another label, the rule changed, or best effort was all there was. Names of places are for operators.",
		"  outcrop placement-group violations web"}, nil, []string{placementGroups.argument()}, func(cmd *cobra.Command, args []string) error {
		id, err := placementGroups.resolve(cmd.Context(), a, args[0])
		if err != nil {
			return err
		}
		items, err := list[violation](cmd.Context(), a, groupPath(a, id, "violations"))
		if err != nil {
			return err
		}
		if len(items) == 0 && a.flags.output == "table" {
			a.notef("the placement group stands as its rule says")
			return nil
		}
		return printList(a, items, violationColumns, func(v *violation) string { return v.Domain })
	})
	c.ValidArgsFunction = placementGroups.complete(a)
	return c
}

func newRebalance(a *app) *cobra.Command {
	c := command("rebalance", text{"Propose moves that bring a placement group nearer to its rule",
		"Shows moves, in order. Each fits when those before it are done. Nothing is moved and nothing is reserved.",
		"  outcrop placement-group rebalance web"}, nil, []string{placementGroups.argument()}, func(cmd *cobra.Command, args []string) error {
		id, err := placementGroups.resolve(cmd.Context(), a, args[0])
		if err != nil {
			return err
		}
		var it item[api.RebalancePlan]
		if err := a.do(cmd.Context(), http.MethodGet, groupPath(a, id, "rebalance"), nil, &it); err != nil {
			return err
		}
		if a.flags.output != "table" {
			return a.encode(a.stdout, it)
		}
		p := &it.value
		for _, v := range p.Violations {
			a.notef("%s", v.Message)
		}
		if len(p.Moves) == 0 {
			a.notef("no single move brings the group nearer to its rule")
			return nil
		}
		rows := [][]string{{"INSTANCE", "FROM", "TO"}}
		for _, m := range p.Moves {
			rows = append(rows, []string{m.InstanceID, orDash(m.From), orDash(m.To)})
		}
		return table(a.stdout, rows)
	})
	c.ValidArgsFunction = placementGroups.complete(a)
	return c
}

func newPlacement(a *app) *cobra.Command {
	return group("placement", "Ask where an instance would go", "Placement decides on which node an instance runs.",
		"  outcrop placement explain --image debian --type m1.large --selector pool=web", nil, newPlacementExplain(a))
}

func newPlacementExplain(a *app) *cobra.Command {
	fl := createFlags{in: api.CreateInstance{Name: "explain"}}
	c := command("explain", text{"Say where an instance would go, or why nowhere",
		`Takes the flags of "instance create" that matter and asks without making anything:
how many nodes each condition refuses, the node that misses least, and what would
make it fit. Operators see the nodes' names.`,
		"  outcrop placement explain --image debian --vcpus 8 --memory 32GiB\n  outcrop placement explain --image debian --type m1.small --placement-group web --countable capability.gpu.nvidia-l40s=1"},
		nil, nil, func(cmd *cobra.Command, _ []string) error {
			if err := need(cmd, "image"); err != nil {
				return err
			}
			if err := fl.checkSize(cmd); err != nil {
				return err
			}
			if err := a.fillCreate(cmd.Context(), &fl); err != nil {
				return err
			}
			var it item[api.PlacementExplanation]
			path := "/v1/projects/" + url.PathEscape(a.settings().project) + "/compute/placement/explain"
			if err := a.do(cmd.Context(), http.MethodPost, path, &fl.in, &it); err != nil {
				return err
			}
			if a.flags.output != "table" {
				return a.encode(a.stdout, it)
			}
			return a.printExplanation(&it.value)
		})
	f := c.Flags()
	f.StringVar(&fl.image, "image", "", "image, by id or name")
	f.StringVar(&fl.in.InstanceType, "type", "", "instance type, like m1.small")
	f.Int64Var(&fl.in.VCPUs, "vcpus", 0, "vCPUs of a custom size")
	f.StringVar(&fl.memory, "memory", "", "memory of a custom size, like 512MiB")
	f.StringVar(&fl.rootSize, "root-size", "", "size of the root volume, like 20GiB (at least the image's)")
	f.StringArrayVar(&fl.dataVolumes, "data-volume", nil, "size of a data volume, like 100GiB (repeatable)")
	fl.addPlacementFlags(a, c)
	completeTypes(c)
	return c
}

func (a *app) printExplanation(e *api.PlacementExplanation) error {
	answer := "no"
	if e.Fits {
		answer = "yes"
	}
	rows := [][]string{{"Fits:", answer}, {"Why:", e.Message}}
	if e.NodeID != "" {
		rows = append(rows, []string{"Node:", e.NodeID})
	}
	rows = append(rows, []string{"Looked at:", strconv.Itoa(e.Nodes) + " nodes"})
	if !e.Fits && len(e.Quota) == 0 && !e.EverFits {
		rows = append(rows, []string{"Waiting:", "does not help: it would not fit if all nodes were empty and ready"})
	}
	if n := e.Nearest; n != nil {
		rows = append(rows, []string{"Nearest:", strings.TrimPrefix(n.NodeID+": "+n.Fix, ": ")})
	}
	if err := table(a.stdout, rows); err != nil || len(e.Reasons) == 0 {
		return err
	}
	fmt.Fprintln(a.stdout)
	rows = [][]string{{"REFUSED", "ALONE", "REASON", "NODES"}}
	for _, r := range e.Reasons {
		rows = append(rows, []string{strconv.Itoa(r.Nodes), strconv.Itoa(r.Alone), r.Message, orDash(fewOf(r.NodeIDs, 5, r.Nodes))})
	}
	return table(a.stdout, rows)
}

// fewOf names the first n of a list, and how many more there are of all.
func fewOf(ids []string, n, all int) string {
	if len(ids) <= n {
		return strings.Join(ids, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(ids[:n], ", "), all-n)
}

// unitsText writes label=units words in order.
func unitsText(m map[string]int64) string {
	var words []string
	for _, k := range slices.Sorted(maps.Keys(m)) {
		words = append(words, k+"="+strconv.FormatInt(m[k], 10))
	}
	return strings.Join(words, ", ")
}
