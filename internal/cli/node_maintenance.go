package cli

import (
	"context"
	"fmt"
	"net/http"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/outcrop-cloud/outcrop/internal/api"
	"github.com/outcrop-cloud/outcrop/internal/compute"
)

// nodeMaintenanceCommands take nodes out of service and back.
func nodeMaintenanceCommands(a *app) []*cobra.Command {
	return []*cobra.Command{newNodeCordon(a), newNodeUncordon(a), newNodeDrain(a)}
}

func newNodeCordon(a *app) *cobra.Command {
	var in api.CordonNode
	c := command("cordon", text{"Place nothing new on a node",
		`Takes a node out of placement. What runs there goes on, and can be stopped and
started there; nothing new comes. "outcrop node uncordon" ends it.`,
		"  outcrop node cordon rack1-07 --reason 'a fan is loud'"},
		nil, []string{nodes.argument()}, func(cmd *cobra.Command, args []string) error {
			return a.maintain(cmd.Context(), args[0], "cordon", &in)
		})
	c.Flags().StringVar(&in.Reason, "reason", "", "for whoever looks at the node later")
	c.ValidArgsFunction = nodes.complete(a)
	return c
}

func newNodeUncordon(a *app) *cobra.Command {
	c := command("uncordon", text{"Let a node take part again",
		`Lets new instances be placed on a node. A drain that goes on ends, and instances
that a drain stopped on the node are started again if they ran. What has left the
node stays where it is now.`,
		"  outcrop node uncordon rack1-07"},
		nil, []string{nodes.argument()}, func(cmd *cobra.Command, args []string) error {
			return a.maintain(cmd.Context(), args[0], "uncordon", nil)
		})
	c.ValidArgsFunction = nodes.complete(a)
	return c
}

func (a *app) maintain(ctx context.Context, id, verb string, body any) error {
	var it item[node]
	if err := a.do(ctx, http.MethodPost, api.NodePath(id, verb), body, &it); err != nil {
		return err
	}
	return printOne(a, it, nodes.details, nodes.id)
}

// drainFlags are those of node drain.
type drainFlags struct {
	in             api.DrainNode
	deadline       string
	overrides      []string
	status, cancel bool
	wait           waitFlags
}

func newNodeDrain(a *app) *cobra.Command {
	var fl drainFlags
	c := command("drain", text{"Empty a node, so that its machine may be powered off",
		`Takes a node out of placement and lets go of its instances, a few at a time, each
by its maintenance strategy: "migrate" stops it, carries its volumes to another
node and starts it there; "stop" stops it on the node until that takes part again;
"recreate" makes it anew elsewhere from its image, which loses what was written to
its root volume.

--dry-run shows what would happen and changes nothing. What finds no room is tried
again until the deadline; what is left then stays, with its reason. Given again while it
goes on, what is named changes. --status shows how far it is, and whether the machine
may be powered off; with --wait it is followed. --cancel lets the node take part
again: what has not left stays, what has stays gone.`,
		`  outcrop node drain rack1-07 --dry-run
  outcrop node drain rack1-07 --deadline 30m --reason 'new memory' --wait
  outcrop node drain rack1-07 --override i-4fZ81kQ2x=stop
  outcrop node drain rack1-07 --status --wait
  outcrop node drain rack1-07 --cancel`},
		nil, []string{nodes.argument()}, func(cmd *cobra.Command, args []string) error {
			return fl.run(cmd.Context(), a, args[0])
		})
	f := c.Flags()
	f.BoolVar(&fl.in.DryRun, "dry-run", false, "show what would happen, and change nothing")
	f.StringVar(&fl.deadline, "deadline", "", "how long to try, like 30m (the server's default is 1h)")
	f.StringVar(&fl.in.Strategy, "strategy", "", "migrate, stop or recreate, for all instances in place of their own")
	f.StringArrayVar(&fl.overrides, "override", nil, "strategy of one instance, ID=STRATEGY (repeatable)")
	f.Int64Var(&fl.in.Parallel, "parallel", 0, "how many instances are on their way at a time")
	f.StringVar(&fl.in.Reason, "reason", "", "for whoever looks at the node later")
	f.BoolVar(&fl.status, "status", false, "show how far the latest drain is")
	f.BoolVar(&fl.cancel, "cancel", false, "stop draining")
	fl.wait.add(c, "over")
	c.MarkFlagsMutuallyExclusive("dry-run", "status", "cancel")
	c.MarkFlagsMutuallyExclusive("dry-run", "wait")
	for _, order := range []string{"deadline", "strategy", "override", "parallel", "reason"} {
		c.MarkFlagsMutuallyExclusive("status", "cancel", order)
	}
	completeWords(c, "strategy", strategyWords...)
	c.ValidArgsFunction = nodes.complete(a)
	return c
}

var strategyWords = []string{string(compute.StrategyMigrate), string(compute.StrategyStop), string(compute.StrategyRecreate)}

func (fl *drainFlags) run(ctx context.Context, a *app, id string) (err error) {
	if fl.deadline != "" {
		if fl.in.DeadlineSeconds, err = wholeSeconds("deadline", fl.deadline); err != nil {
			return err
		}
	}
	if fl.in.Overrides, err = parsePairs("override", fl.overrides); err != nil {
		return err
	}
	method, path, body := http.MethodPost, api.NodePath(id, "drain"), any(&fl.in)
	switch {
	case fl.status:
		method, body = http.MethodGet, nil
	case fl.cancel:
		path, body = api.NodePath(id, "drain", "cancel"), nil
	}
	var it item[api.Drain]
	if err := a.do(ctx, method, path, body, &it); err != nil {
		return err
	}
	if fl.wait.wait && !fl.cancel {
		if it, err = a.followDrain(ctx, it, fl.wait.limit); err != nil {
			return err
		}
	}
	if a.flags.output != "table" || a.flags.quiet {
		return printOne(a, it, drainDetails, func(d *api.Drain) string { return d.NodeID })
	}
	if err := printOne(a, it, drainDetails, nil); err != nil || len(it.value.Instances) == 0 {
		return err
	}
	fmt.Fprintln(a.stdout)
	return a.printDrained(&it.value)
}

var drainDetails = []field[api.Drain]{
	{"Node", func(d *api.Drain, _ time.Time) string { return d.NodeID + ", " + d.NodeState }},
	{"Drain", drainText},
	{"Reason", func(d *api.Drain, _ time.Time) string { return d.Reason }},
	{"Deadline", func(d *api.Drain, now time.Time) string {
		if d.Outcome != "" {
			return ""
		}
		return moment(orZero(d.Deadline), now)
	}},
	{"Safe to power off", func(d *api.Drain, _ time.Time) string {
		if d.SafeToPowerOff {
			return "yes"
		}
		text := "no"
		for _, why := range d.NotSafe {
			text += "; " + why
		}
		return text
	}},
	{"Stays there", func(d *api.Drain, _ time.Time) string {
		if d.LooseVolumes == 0 {
			return ""
		}
		return strconv.FormatInt(d.LooseVolumes, 10) + " of its volumes, attached to no instance"
	}},
}

func drainText(d *api.Drain, now time.Time) string {
	switch {
	case d.DryRun:
		return "a preview: nothing was changed"
	case d.Outcome != "":
		return d.Outcome + ", " + moment(orZero(d.EndedAt), now)
	}
	return "by " + d.By + ", since " + moment(orZero(d.Since), now)
}

var drainColumns = []field[api.DrainInstance]{
	{"INSTANCE", func(i *api.DrainInstance, _ time.Time) string { return i.InstanceID }},
	{"NAME", func(i *api.DrainInstance, _ time.Time) string { return i.Name }},
	{"PROJECT", func(i *api.DrainInstance, _ time.Time) string { return i.ProjectID }},
	{"STRATEGY", func(i *api.DrainInstance, _ time.Time) string { return i.Strategy }},
	{"STATUS", func(i *api.DrainInstance, _ time.Time) string { return drainStatus(i) }},
	{"TO", func(i *api.DrainInstance, _ time.Time) string { return i.TargetNodeID }},
	{"AT MOST", func(i *api.DrainInstance, _ time.Time) string {
		if i.MaxBytes == 0 {
			return ""
		}
		return formatSize(i.MaxBytes)
	}},
	{"DETAIL", func(i *api.DrainInstance, _ time.Time) string { return i.Message }},
}

func drainStatus(i *api.DrainInstance) string {
	if i.Status == "carrying" {
		return "carrying " + strconv.FormatInt(i.Carried, 10) + "/" + strconv.FormatInt(i.Volumes, 10)
	}
	return i.Status
}

func (a *app) printDrained(d *api.Drain) error {
	var items []item[api.DrainInstance]
	for _, i := range d.Instances {
		items = append(items, item[api.DrainInstance]{value: i})
	}
	return printList(a, items, drainColumns, func(i *api.DrainInstance) string { return i.InstanceID })
}

// followDrain looks at a drain until it is over, and tells of every change.
func (a *app) followDrain(ctx context.Context, it item[api.Drain], limit time.Duration) (item[api.Drain], error) {
	begin := a.now()
	p := newProgress(a)
	defer p.clear()
	said, silent := map[string]string{}, false
	since := func() string { return elapsed(a.now().Sub(begin)) }
	for pause := firstLook; ; pause = min(pause*3/2, lastLook) {
		d := &it.value
		left := 0
		for n := range d.Instances {
			i := &d.Instances[n]
			text := drainStatus(i)
			if i.TargetNodeID != "" {
				text += " (to " + i.TargetNodeID + ")"
			}
			if i.Message != "" {
				text += ": " + i.Message
			}
			if said[i.InstanceID] != text {
				said[i.InstanceID] = text
				p.line("%6s  %s %s  %s", since(), i.InstanceID, i.Name, text)
			}
			if i.Status != "done" && i.Status != "held" && i.Status != "failed" {
				left++
			}
		}
		switch {
		case d.Outcome == "done":
			return it, nil
		case d.Outcome != "":
			return it, &failure{code: codeFailed, message: fmt.Sprintf("the drain of node %s ended: %s", d.NodeID, d.Outcome),
				hint: fmt.Sprintf("\"outcrop node drain %s --status\" says what is left and why", d.NodeID)}
		case a.now().Sub(begin) >= limit:
			return it, &failure{code: codeTimeout, message: fmt.Sprintf("node %s is not drained after %s; the work goes on", d.NodeID, limit), hint: drainGoesOn(d)}
		}
		if err := p.spin(ctx, pause, func() string { return fmt.Sprintf("%6s  %d of %d instances left", since(), left, len(d.Instances)) }); err != nil {
			return it, &failure{code: codeInterrupted, message: fmt.Sprintf("stopped waiting for the drain of node %s; the work goes on", d.NodeID), hint: drainGoesOn(d)}
		}
		var next item[api.Drain]
		if err := a.do(ctx, http.MethodGet, api.NodePath(d.NodeID, "drain"), nil, &next); err == nil {
			it, silent = next, false
		} else if ctx.Err() == nil && !passing(err) {
			return it, err
		} else if ctx.Err() == nil && !silent {
			p.line("%6s  no answer from the server; still asking", since())
			silent = true
		}
	}
}

func drainGoesOn(d *api.Drain) string {
	return fmt.Sprintf("\"outcrop node drain %s --status\" shows where it stands, with --wait it is followed", d.NodeID)
}

func maintenanceText(n *node, now time.Time) string {
	m := n.Maintenance
	if m == nil {
		return ""
	}
	text := m.Mode + " by " + m.By + ", since " + moment(m.Since, now)
	if m.Reason != "" {
		text += ": " + m.Reason
	}
	return text
}
