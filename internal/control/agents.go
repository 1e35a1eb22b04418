package control

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/outcrop-cloud/outcrop/internal/api"
	"github.com/outcrop-cloud/outcrop/internal/compute"
	"github.com/outcrop-cloud/outcrop/internal/fault"
	"github.com/outcrop-cloud/outcrop/internal/iam"
	"github.com/outcrop-cloud/outcrop/internal/store"
)

// EnableAgent says that an agent is wanted. With automatic activation the guest
// follows within a minute; else a one-time command is answered (contract U-09).
func (c *Control) EnableAgent(ctx context.Context, who iam.Caller, project, id string, in api.EnableAgent) (api.EnabledAgent, error) {
	var out api.EnabledAgent
	var code string
	v, err := c.change(ctx, who, iam.EnableAgent, project, id, func(tx *store.Tx, i *store.Instance) (string, error) {
		if err := notGoing(i, "enable the agent of"); err != nil {
			return "", err
		}
		a, err := tx.Agent(i.ID)
		if err != nil {
			return "", err
		}
		if in.Force {
			a.Activation = compute.ActivationCommand
		}
		i.Spec.AgentEnabled = true
		if a.Activation == compute.ActivationAutomatic {
			a.EnrolledAt, a.EnrollmentPending, a.InstallCode = tx.Now, false, nil
		} else {
			code = strings.ToLower(rand.Text())
			mac := c.keys.MAC(installCodeText(i.ID, code))
			a.EnrollmentPending, a.InstallCode = true, mac[:]
		}
		return "enable-agent", tx.PutAgent(i.ID, &a)
	})
	if err != nil {
		return out, err
	}
	out.Instance = v
	if code != "" {
		out.InstallCommand = installCommand(code)
	}
	return out, nil
}

// installCodeText binds a code to its instance and its purpose.
func installCodeText(instanceID, code string) string { return "install " + instanceID + " " + code }

// installCommand needs nothing but sh and curl, and no way out: the node serves
// the script at the metadata address.
func installCommand(code string) string {
	const imds = "http://169.254.169.254/latest"
	return fmt.Sprintf(`t=$(curl -fsS -X PUT -H 'X-aws-ec2-metadata-token-ttl-seconds: 300' %s/api/token) && curl -fsS -H "X-aws-ec2-metadata-token: $t" %s/outcrop/agent/install | sh -s -- %s`, imds, imds, code)
}

// DisableAgent says that no agent is wanted: its silence is no fault then.
func (c *Control) DisableAgent(ctx context.Context, who iam.Caller, project, id string) (api.Instance, error) {
	return c.change(ctx, who, iam.DisableAgent, project, id, func(tx *store.Tx, i *store.Instance) (string, error) {
		if err := notGoing(i, "disable the agent of"); err != nil {
			return "", err
		}
		a, err := tx.Agent(i.ID)
		if err != nil {
			return "", err
		}
		i.Spec.AgentEnabled = false
		a.EnrollmentPending, a.InstallCode = false, nil
		return "disable-agent", tx.PutAgent(i.ID, &a)
	})
}

// GetAgentStatus answers the same as the instance's agentStatus (contract U-10).
func (c *Control) GetAgentStatus(ctx context.Context, who iam.Caller, project, id string) (out api.AgentStatus, err error) {
	if err := iam.Allow(who, iam.GetAgentStatus, iam.Scope{ProjectID: project}); err != nil {
		return out, err
	}
	err = c.db.Read(ctx, func(tx *store.Tx) error {
		i, err := instance(tx, project, id)
		if err != nil {
			return err
		}
		a, err := tx.Agent(id)
		out = agentStatusView(&i.Instance, &a, tx.Now)
		return err
	})
	return out, err
}

// ReportAgents takes what guests told the metadata service of their node. A
// report of an instance that is not this node's, or that wants no agent, says
// nothing.
func (c *Control) ReportAgents(ctx context.Context, who iam.Caller, nodeID string, in api.AgentReports) error {
	if err := iam.Allow(who, iam.ReportAgents, iam.Scope{NodeID: nodeID}); err != nil {
		return err
	}
	if len(in.Reports) == 0 {
		return nil
	}
	return c.db.Write(ctx, func(tx *store.Tx) error {
		for n := range in.Reports {
			if err := c.reportAgent(tx, nodeID, &in.Reports[n]); err != nil {
				return err
			}
		}
		return nil
	})
}

// maxReportAge bounds how old a report may be: older ones say nothing new.
const maxReportAge = 10 * time.Minute

func (c *Control) reportAgent(tx *store.Tx, nodeID string, r *api.AgentReport) error {
	i, err := tx.InstanceByID(r.InstanceID)
	if errors.Is(err, store.ErrNotFound) || err == nil && (i.NodeID != nodeID || !i.Spec.AgentEnabled) {
		return nil
	}
	if err != nil {
		return err
	}
	a, err := tx.Agent(i.ID)
	if err != nil {
		return err
	}
	age := ageOf(r.AgeMS, time.Millisecond)
	if age > maxReportAge || !c.enrolled(tx, &i, &a, r.InstallCode) {
		return nil
	}
	if at := tx.Now.Add(-age); at.After(a.LastHeartbeatAt) {
		a.LastHeartbeatAt, a.Version = at, cut(r.Version, 64)
	}
	if r.ReconcileResult != "" {
		a.ReconcileResult, a.ReconcileAt = r.ReconcileResult, tx.Now.Add(-ageOf(r.ReconcileAgeMS, time.Millisecond))
	}
	if err := takeBoot(tx, &i, &a, r.Boot, tx.Now.Add(-age)); err != nil {
		return err
	}
	return tx.PutAgent(i.ID, &a)
}

// enrolled completes a pending enrollment when the report shows its one-time
// code. Until then an agent of an earlier enrollment is not heard.
func (c *Control) enrolled(tx *store.Tx, i *store.Instance, a *compute.Agent, code string) bool {
	if !a.EnrollmentPending {
		return true
	}
	mac := c.keys.MAC(installCodeText(i.ID, code))
	if len(code) > 128 || !hmac.Equal(mac[:], a.InstallCode) {
		return false
	}
	a.EnrollmentPending, a.InstallCode, a.EnrolledAt = false, nil, tx.Now
	return true
}

// takeBoot notes what the boot made of its user-data; an outcome that is
// new, or of a new run, goes on the timeline.
func takeBoot(tx *store.Tx, i *store.Instance, a *compute.Agent, b *api.BootReport, said time.Time) error {
	if b == nil {
		return nil
	}
	out := compute.BootOutcome{
		UserDataHash: cut(strings.TrimPrefix(b.UserDataHash, "sha256:"), 64), Status: b.Status, Detail: cut(b.Detail, maxMessage), At: a.Boot.At,
	}
	again := a.Boot.At.Before(a.RunningSince) && !said.Before(a.RunningSince) // the same, of another run
	if out == a.Boot && !again {
		return nil
	}
	out.At = tx.Now
	a.Boot = out
	if b.Status == "running" {
		return nil
	}
	what := "no user-data"
	if out.UserDataHash != "" {
		what = "sha256:" + out.UserDataHash
	}
	return event(tx, &i.Instance, "guest", "booted", strings.TrimSpace(fmt.Sprintf("booted with %s: %s %s", what, out.Status, out.Detail)))
}

// ModifyMetadataOptions changes what it names; it is in force at once.
func (c *Control) ModifyMetadataOptions(ctx context.Context, who iam.Caller, project, id string, in api.MetadataOptions) (api.Instance, error) {
	return c.change(ctx, who, iam.ModifyMetadataOptions, project, id, func(_ *store.Tx, i *store.Instance) (string, error) {
		if in == (api.MetadataOptions{}) {
			return "", fault.New(fault.Invalid, "name at least one option: httpEndpoint, httpTokens, httpPutResponseHopLimit, instanceMetadataTags")
		}
		if err := notGoing(i, "change the metadata options of"); err != nil {
			return "", err
		}
		i.Spec.Metadata = withOptions(i.Spec.Metadata, &in)
		return "modify-metadata-options", nil
	})
}

func withOptions(m compute.MetadataOptions, in *api.MetadataOptions) compute.MetadataOptions {
	if in == nil {
		return m
	}
	set := func(to *string, v string) {
		if v != "" {
			*to = v
		}
	}
	set(&m.HTTPEndpoint, in.HTTPEndpoint)
	set(&m.HTTPTokens, in.HTTPTokens)
	set(&m.InstanceMetadataTags, in.InstanceMetadataTags)
	if in.HTTPPutResponseHopLimit != 0 {
		m.HTTPPutResponseHopLimit = in.HTTPPutResponseHopLimit
	}
	return m
}
