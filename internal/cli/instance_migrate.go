package cli

import (
	"context"
	"fmt"
	"net/http"

	"github.com/spf13/cobra"

	"github.com/outcrop-cloud/outcrop/internal/api"
	"github.com/outcrop-cloud/outcrop/internal/compute"
)

func newInstanceMigrate(a *app) *cobra.Command {
	var in api.MigrateInstance
	var cancel bool
	var deadline string
	var w waitFlags
	c := instanceCommand(a, "migrate", text{"Move an instance to another node",
		`Stops an instance, carries its volumes to another node, and starts it there if it
ran. Its name, addresses and ids stay. It is down meanwhile: the guest has 90
seconds to go down, and then it takes as long as its volumes take to be read and
sent. An operator's command.

Until the volumes have arrived, --cancel gives it up: the instance then starts
again where it is. The same happens where it fails, and the events say why.`,
		"  outcrop instance migrate web --wait\n  outcrop instance migrate web --to rack2-01\n  outcrop instance migrate web --cancel"},
		nil, func(ctx context.Context, id string) (err error) {
			if deadline != "" {
				if in.DeadlineSeconds, err = wholeSeconds("deadline", deadline); err != nil {
					return err
				}
			}
			if cancel {
				return a.cancelMigration(ctx, id, &w)
			}
			return a.migrate(ctx, id, &in, &w)
		})
	f := c.Flags()
	f.StringVar(&in.TargetNodeID, "to", "", "node to move to (default: the best)")
	f.StringVar(&deadline, "deadline", "", "how long it may take until the volumes have arrived, like 2h (the server's default is 1h)")
	f.BoolVar(&cancel, "cancel", false, "give up a migration that is under way")
	c.MarkFlagsMutuallyExclusive("cancel", "to")
	c.MarkFlagsMutuallyExclusive("cancel", "deadline")
	w.add(c, "on the other node")
	return c
}

func (a *app) migrate(ctx context.Context, id string, in *api.MigrateInstance, w *waitFlags) error {
	before, err := instances.get(ctx, a, id)
	if err != nil {
		return err
	}
	var it item[instance]
	if err := a.do(ctx, http.MethodPost, api.InstancePath(a.settings().project, id, "migrate"), in, &it); err != nil {
		return err
	}
	if w.wait {
		if it, err = a.follow(ctx, it, compute.InstanceState(before.value.State), w.limit); err != nil {
			return err
		}
		if v := &it.value; v.NodeID == before.value.NodeID {
			return &failure{code: codeFailed, message: fmt.Sprintf("instance %s was not moved; it is on node %s as before", v.ID, v.NodeID),
				hint: fmt.Sprintf("\"outcrop instance events %s\" says why", v.ID)}
		}
	}
	return a.finish(ctx, it, compute.InstanceState(before.value.State), &waitFlags{})
}

// cancelMigration has the instance stay. The answer tells whether it starts again.
func (a *app) cancelMigration(ctx context.Context, id string, w *waitFlags) error {
	var it item[instance]
	if err := a.do(ctx, http.MethodPost, api.InstancePath(a.settings().project, id, "migrate/cancel"), nil, &it); err != nil {
		return err
	}
	goal := compute.StateRunning
	if it.value.State == string(compute.StateStopped) {
		goal = compute.StateStopped
	}
	return a.finish(ctx, it, goal, w)
}

// migrationText is how far a migration is.
func migrationText(i *instance) string {
	if m := i.Migration; m != nil {
		return "to node " + m.TargetNodeID + ", " + m.Phase
	}
	return ""
}
