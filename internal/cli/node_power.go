package cli

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"github.com/spf13/cobra"

	"github.com/outcrop-cloud/outcrop/internal/api"
	"github.com/outcrop-cloud/outcrop/internal/compute"
)

// nodePowerCommands power nodes off and on.
func nodePowerCommands(a *app) []*cobra.Command {
	return []*cobra.Command{
		newNodePower(a, compute.PowerShutdown, "off", text{"Power a node off",
			`Lets the node's host power off a few seconds later. It is refused while instances
run there: move or stop them first, or give --force, which asks each guest to go
down, pulls its plug when its time (90 s) is over, and powers off then. Instances
with desiredState running, or that start on node boot, run again when it is back.

It stays off until somebody presses its power button, or "outcrop node wake".`,
			"  outcrop node shutdown rack1-07 --wait\n  outcrop node shutdown rack1-07 --force --reason 'new memory'"}),
		newNodePower(a, compute.PowerReboot, "up again", text{"Reboot a node",
			`Lets the node's host reboot a few seconds later. It is refused while instances run
there: move or stop them first, or give --force, which asks each guest to go down,
pulls its plug when its time (90 s) is over, and reboots then. Instances with
desiredState running, or that start on node boot, run again when it is back.`,
			"  outcrop node reboot rack1-07 --wait\n  outcrop node reboot rack1-07 --force --in 10m"}),
		newNodeWake(a),
		newNodeDeclareOff(a),
	}
}

func newNodePower(a *app, verb compute.PowerVerb, goal string, t text) *cobra.Command {
	var in api.PowerRequest
	var delay string
	var w waitFlags
	c := command(string(verb), t, nil, []string{nodes.argument()}, func(cmd *cobra.Command, args []string) error {
		if delay != "" {
			s, err := wholeSeconds("in", delay)
			if err != nil {
				return err
			}
			in.NotBeforeSeconds = &s
		}
		var it item[node]
		if err := a.do(cmd.Context(), http.MethodPost, api.NodePath(args[0], string(verb)), &in, &it); err != nil {
			return err
		}
		last := it.value.PowerAction != nil && it.value.PowerAction.LastControlPlane
		if last {
			a.notef("this is the only control-plane node that is up: nothing answers until it is back")
		}
		if w.wait && !(last && verb == compute.PowerShutdown) {
			var err error
			if it, err = a.followPower(cmd.Context(), it, goal, w.limit); err != nil {
				return err
			}
		}
		return printOne(a, it, nodes.details, nodes.id)
	})
	f := c.Flags()
	f.BoolVar(&in.Force, "force", false, "also while instances run there: they are stopped first")
	f.StringVar(&delay, "in", "", "how long to wait before, like 10m (the server's default is 5s)")
	f.StringVar(&in.Reason, "reason", "", "for whoever asks later")
	w.add(c, goal)
	c.ValidArgsFunction = nodes.complete(a)
	return c
}

// wakeFields are what a wake answers.
var wakeFields = []field[api.WakeSent]{
	{"Node", func(w *api.WakeSent, _ time.Time) string { return w.NodeID }},
	{"Address", func(w *api.WakeSent, _ time.Time) string { return w.WakeOnLanMAC }},
	{"Sent by", func(w *api.WakeSent, _ time.Time) string { return w.Via }},
}

func newNodeWake(a *app) *cobra.Command {
	var in api.WakeRequest
	var w waitFlags
	c := command("wake", text{"Power a node on by Wake-on-LAN",
		`Lets another node of the same rack, or where that is not declared of the same zone,
send a Wake-on-LAN packet to the card that the node reported. --via names who sends
it: a node of the same network segment. The machine's firmware must allow it.`,
		"  outcrop node wake rack1-07 --wait\n  outcrop node wake rack1-07 --via rack1-02"},
		[]string{"power-on"}, []string{nodes.argument()}, func(cmd *cobra.Command, args []string) error {
			var sent item[api.WakeSent]
			if err := a.do(cmd.Context(), http.MethodPost, api.NodePath(args[0], "wake"), &in, &sent); err != nil {
				return err
			}
			if !w.wait {
				return printOne(a, sent, wakeFields, func(w *api.WakeSent) string { return w.NodeID })
			}
			it, err := nodes.get(cmd.Context(), a, args[0])
			if err == nil {
				it, err = a.followPower(cmd.Context(), it, "up again", w.limit)
			}
			if err != nil {
				return err
			}
			return printOne(a, it, nodes.details, nodes.id)
		})
	c.Flags().StringVar(&in.Via, "via", "", "node that sends the packet")
	w.add(c, "up again")
	c.ValidArgsFunction = nodes.complete(a)
	return c
}

// powered reports whether a node has come to where it is waited for.
func powered(n *node, goal string) bool {
	if n.State == string(compute.NodeOff) {
		return goal == "off"
	}
	return n.State != string(compute.NodeShuttingDown) && n.State != string(compute.NodeRebooting) && n.Liveness.Status == string(compute.LivenessOK)
}

// followPower looks at a node until its power action has led where it should, and
// tells of every change. A server that does not answer is asked again: it may be on
// that very node.
func (a *app) followPower(ctx context.Context, it item[node], goal string, limit time.Duration) (item[node], error) {
	begin := a.now()
	p := newProgress(a)
	defer p.clear()
	said, silent := "", false
	now := func() string { return fmt.Sprintf("%6s  %s", elapsed(a.now().Sub(begin)), said) }
	stop := func(code, why string) error {
		return &failure{code: code, message: fmt.Sprintf("%s; the work goes on (it is %s)", why, it.value.State),
			hint: fmt.Sprintf("\"outcrop node get %s\" shows where it stands", it.value.ID)}
	}
	for pause := firstLook; ; pause = min(pause*3/2, lastLook) {
		n := &it.value
		if text := powerText(n, a.now()); text != said {
			said = text
			p.line("%s", now())
		}
		if pa := n.PowerAction; pa != nil && pa.State == string(compute.PowerFailed) {
			return it, &failure{code: codeFailed, message: fmt.Sprintf("node %s: the %s failed: %s", n.ID, pa.Action, pa.Message)}
		}
		if powered(n, goal) {
			return it, nil
		}
		if a.now().Sub(begin) >= limit {
			return it, stop(codeTimeout, fmt.Sprintf("node %s is not %s after %s", n.ID, goal, limit))
		}
		err := p.spin(ctx, pause, now)
		if err == nil {
			var next item[node]
			if next, err = nodes.get(ctx, a, n.ID); err == nil {
				it, silent = next, false
				continue
			}
		}
		if ctx.Err() != nil {
			return it, stop(codeInterrupted, fmt.Sprintf("stopped waiting for node %s to be %s", n.ID, goal))
		}
		if !passing(err) {
			return it, err
		}
		if !silent {
			p.line("%6s  no answer from the server; still asking", elapsed(a.now().Sub(begin)))
			silent = true
		}
	}
}

// powerText is a node's power action in a line; empty where there never was one.
func powerText(n *node, now time.Time) string {
	p := n.PowerAction
	if p == nil {
		return ""
	}
	text := fmt.Sprintf("%s %d: %s", p.Action, p.Generation, p.State)
	if p.Message != "" {
		text += ", " + p.Message
	}
	if p.OffAt != nil {
		text += " (gone " + moment(*p.OffAt, now) + ")"
	}
	if d := p.NotBefore.Sub(now); d > time.Minute && p.State != string(compute.PowerDone) && p.State != string(compute.PowerFailed) {
		text += " (in " + rough(d) + ")"
	}
	if p.LastControlPlane {
		text += "; it was the only control-plane node up"
	}
	return text
}

// powerOnText says how a node that is off comes back.
func powerOnText(n *node) string {
	p := n.PowerAction
	if p == nil || p.PowerOn == nil || n.State != string(compute.NodeOff) {
		return ""
	}
	text := "its power button"
	if mac := p.PowerOn.WakeOnLanMAC; mac != "" {
		text += ", or outcrop node wake " + n.ID + " (" + mac + ")"
	}
	return text
}
