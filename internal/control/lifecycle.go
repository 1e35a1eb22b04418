package control

import (
	"context"

	"github.com/outcrop-cloud/outcrop/internal/api"
	"github.com/outcrop-cloud/outcrop/internal/compute"
	"github.com/outcrop-cloud/outcrop/internal/fault"
	"github.com/outcrop-cloud/outcrop/internal/iam"
	"github.com/outcrop-cloud/outcrop/internal/store"
)

// StartInstance boots a stopped instance, with the user-data that it has now. As
// in EC2, cloud-init runs what it runs once per instance only once; rerun gives
// it a new instance-id, by the cidata disk and by meta-data/instance-id, so that
// everything runs again (lesson 26); the identity document and this API keep the
// instance's own.
func (c *Control) StartInstance(ctx context.Context, who iam.Caller, project, id string, in api.StartInstance) (api.Instance, error) {
	rerun := false
	out, err := c.verb(ctx, who, iam.StartInstance, compute.VerbStart, project, id, func(tx *store.Tx, i *store.Instance) {
		i.Start(tx.Now)
		if rerun = in.Rerun; rerun {
			i.Spec.CloudInitID = compute.NewInstanceID()
		}
		if i.NodeID == "" { // its launch failed before it found a node
			i.State, i.Deadline = compute.StateCreating, tx.Now.Add(compute.CreateDeadline)
		}
	})
	if err == nil && out.NodeID == "" {
		c.place.poke()
	}
	if out.DesiredState == "stopped" && err == nil {
		out.Warnings = append(out.Warnings, "desiredState is stopped, so the instance is stopped again once it runs; to keep it running, set desiredState to running")
	}
	if rerun && err == nil {
		out.Warnings = append(out.Warnings, "cloud-init runs everything again on this boot; the guest's ssh host keys change")
	}
	return out, err
}

// StopInstance asks the guest to go down and pulls the plug at the deadline.
func (c *Control) StopInstance(ctx context.Context, who iam.Caller, project, id string, in api.StopInstance) (api.Instance, error) {
	patience, err := stopPatience(in.DeadlineSeconds)
	if err != nil {
		return api.Instance{}, err
	}
	out, err := c.verb(ctx, who, iam.StopInstance, compute.VerbStop, project, id, func(tx *store.Tx, i *store.Instance) {
		i.Stop(tx.Now, patience, in.Force)
		if i.NodeID == "" { // never placed: nothing runs anywhere
			i.Observe(compute.Observation{Phase: compute.PhaseStopped, Epoch: i.Epoch}, tx.Now)
		}
	})
	if out.DesiredState == "running" && err == nil {
		out.Warnings = append(out.Warnings, "desiredState is running, so the instance is started again once it has stopped; to keep it stopped, set desiredState to stopped")
	}
	return out, err
}

// RebootInstance restarts a running instance; its user-data stays as it was.
func (c *Control) RebootInstance(ctx context.Context, who iam.Caller, project, id string, in api.RebootInstance) (api.Instance, error) {
	return c.verb(ctx, who, iam.RebootInstance, compute.VerbReboot, project, id, func(tx *store.Tx, i *store.Instance) {
		i.Reboot(tx.Now, in.Force)
	})
}

// TerminateInstance ends an instance for good, whatever state it is in. On an
// unreachable node the intent is recorded, and what it holds is released when
// the node is back (contract U-21).
func (c *Control) TerminateInstance(ctx context.Context, who iam.Caller, project, id string) (api.Instance, error) {
	return c.verb(ctx, who, iam.TerminateInstance, compute.VerbTerminate, project, id, func(tx *store.Tx, i *store.Instance) {
		i.Terminate(tx.Now)
	})
}

func (c *Control) verb(ctx context.Context, who iam.Caller, a iam.Action, v compute.Verb, project, id string, apply func(*store.Tx, *store.Instance)) (api.Instance, error) {
	return c.change(ctx, who, a, project, id, func(tx *store.Tx, i *store.Instance) (string, error) {
		if v == compute.VerbStart {
			if err := noUpload(tx, i); err != nil {
				return "", err
			}
			if err := notHeld(tx, i); err != nil {
				return "", err
			}
		}
		if v == compute.VerbStop {
			if err := staysDown(tx, i); err != nil {
				return "", err
			}
		}
		switch compute.Judge(i.State, v) {
		case compute.Accept:
			if v == compute.VerbStart || v == compute.VerbReboot {
				if err := nodeUp(tx, i); err != nil {
					return "", err
				}
			}
			apply(tx, i)
			return string(v), nil
		case compute.Done:
			return "", nil
		}
		return "", invalidState(i, string(v), hints[v])
	})
}

// invalidState says why a verb is refused and what would help.
func invalidState(i *store.Instance, what, hint string) error {
	if i.State.Transitional() && i.State != compute.StateTerminating {
		hint = "wait until it has settled"
	}
	return fault.Coded(fault.Conflict, fault.InvalidState, "cannot %s the instance while it is %s; %s", what, i.State, hint)
}

// notGoing refuses a change of an instance that is terminated, or on its way there:
// nothing would come of it.
func notGoing(i *store.Instance, what string) error {
	if i.State != compute.StateTerminating && i.State != compute.StateTerminated {
		return nil
	}
	return invalidState(i, what, "there is no way back; create a new one")
}

var hints = map[compute.Verb]string{
	compute.VerbStart:  "create a new one",
	compute.VerbStop:   "there is nothing to stop",
	compute.VerbReboot: "only a running one can reboot",
}
