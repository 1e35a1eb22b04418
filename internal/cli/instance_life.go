package cli

import (
	"context"
	"net/http"

	"github.com/spf13/cobra"

	"github.com/outcrop-cloud/outcrop/internal/api"
	"github.com/outcrop-cloud/outcrop/internal/compute"
)

// life is a verb on an instance's life and the state that it ends in.
type life struct {
	method, action string // action is the last part of the path; empty for the instance itself
	goal           compute.InstanceState
	wait           waitFlags
}

// run sends the verb with its body (nil for none) and waits where that was asked.
func (l *life) run(ctx context.Context, a *app, id string, body any) error {
	path := instances.path(a, id)
	if l.action != "" {
		path = api.InstancePath(a.settings().project, id, l.action)
	}
	var it item[instance]
	if err := a.do(ctx, l.method, path, body, &it); err != nil {
		return err
	}
	a.warn(&it.value)
	if l.goal == compute.StateStopped && it.value.DesiredState == string(compute.StateRunning) { // contract U-16
		a.notef("to keep it stopped: outcrop instance update %s --desired-state stopped", id)
	}
	if l.action == "start" && it.value.DesiredState == string(compute.StateStopped) {
		a.notef("to keep it running: outcrop instance update %s --desired-state running", id)
	}
	return a.finish(ctx, it, l.goal, &l.wait)
}

func newInstanceStart(a *app) *cobra.Command {
	l := &life{method: http.MethodPost, action: "start", goal: compute.StateRunning}
	var in api.StartInstance
	c := instanceCommand(a, "start", text{"Start a stopped instance",
		`Boots a stopped instance, with the user-data that the server holds now. One that
runs already is left as it is. As in EC2, cloud-init runs most of its modules only
once per instance, so new user-data may change nothing; --rerun gives it a new
instance-id, which runs everything again and changes the guest's ssh host keys.`,
		"  outcrop instance start web --wait\n  outcrop instance start web --rerun"},
		[]string{"boot"}, func(ctx context.Context, id string) error {
			if !in.Rerun {
				return l.run(ctx, a, id, nil)
			}
			return l.run(ctx, a, id, &in)
		})
	c.Flags().BoolVar(&in.Rerun, "rerun", false, "let cloud-init run everything again")
	l.wait.add(c, "running")
	return c
}

func newInstanceStop(a *app) *cobra.Command {
	l := &life{method: http.MethodPost, action: "stop", goal: compute.StateStopped}
	var in api.StopInstance
	var deadline string
	c := instanceCommand(a, "stop", text{"Stop an instance",
		`Asks the guest to shut down, and pulls the plug when it has not done so by the
deadline. --force pulls the plug at once; it also ends a stop that is under way.
The root volume is kept. One whose desired state is running is started again once
it has stopped.`,
		"  outcrop instance stop web --wait\n  outcrop instance stop web --deadline 5m\n  outcrop instance stop web --force"},
		[]string{"shutdown"}, func(ctx context.Context, id string) error {
			if deadline != "" {
				d, err := wholeSeconds("deadline", deadline)
				if err != nil {
					return err
				}
				in.DeadlineSeconds = &d
			}
			return l.run(ctx, a, id, &in)
		})
	c.Flags().BoolVar(&in.Force, "force", false, "pull the plug now")
	c.Flags().StringVar(&deadline, "deadline", "", "how long the guest may take, like 30s (the server's default is 90s)")
	c.MarkFlagsMutuallyExclusive("force", "deadline")
	l.wait.add(c, "stopped")
	return c
}

func newInstanceReboot(a *app) *cobra.Command {
	l := &life{method: http.MethodPost, action: "reboot", goal: compute.StateRunning}
	var in api.RebootInstance
	c := instanceCommand(a, "reboot", text{"Reboot a running instance",
		`Asks the guest to shut down and boots it again on the same node. --force resets it
without asking.`,
		"  outcrop instance reboot web --wait"},
		[]string{"restart"}, func(ctx context.Context, id string) error { return l.run(ctx, a, id, &in) })
	c.Flags().BoolVar(&in.Force, "force", false, "reset it at once")
	l.wait.add(c, "running")
	return c
}

func newInstanceTerminate(a *app) *cobra.Command {
	l := &life{method: http.MethodDelete, goal: compute.StateTerminated}
	c := instanceCommand(a, "terminate", text{"Remove an instance and its root volume",
		`Pulls the plug, then removes the instance with its root volume; there is no way
back. It is possible in every state. On a node that cannot be reached it is done
when the node is back.`,
		"  outcrop instance terminate web --wait"},
		[]string{"delete", "rm", "destroy"}, func(ctx context.Context, id string) error { return l.run(ctx, a, id, nil) })
	l.wait.add(c, "terminated")
	return c
}
