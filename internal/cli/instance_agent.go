package cli

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"github.com/spf13/cobra"

	"github.com/outcrop-cloud/outcrop/internal/api"
)

// act posts an action on an instance, and prints the instance that it answers.
func (a *app) act(ctx context.Context, id, action string, body any) error {
	var it item[instance]
	if err := a.do(ctx, http.MethodPost, api.InstancePath(a.settings().project, id, action), body, &it); err != nil {
		return err
	}
	a.warn(&it.value)
	return printOne(a, it, instances.details, instances.id)
}

// warn says on standard error what the server has to say beside the answer.
func (a *app) warn(i *instance) {
	for _, w := range i.Warnings {
		a.notef("warning: %s", clean(w))
	}
}

func newEnableAgent(a *app) *cobra.Command {
	var in api.EnableAgent
	c := instanceCommand(a, "enable-agent", text{"Want a guest agent in an instance",
		`Says that an agent is wanted. Where the image ships one (activation automatic), the
guest turns it on within a minute. Elsewhere it prints a one-time command; run it
as root in the guest, which needs no way out: the node serves all of it. Until then
health reads unknown.`,
		"  outcrop instance enable-agent web\n  outcrop instance enable-agent web --force"},
		nil, func(ctx context.Context, id string) error {
			var it item[api.EnabledAgent]
			if err := a.do(ctx, http.MethodPost, api.InstancePath(a.settings().project, id, "enable-agent"), &in, &it); err != nil {
				return err
			}
			if a.flags.output != "table" {
				return a.encode(a.stdout, it)
			}
			if it.value.InstallCommand == "" {
				a.notef("the agent of %s is wanted; its guest follows within a minute", id)
				return nil
			}
			a.notef("run this once, as root, in the guest of %s; it is not shown again:", id)
			_, err := fmt.Fprintln(a.stdout, it.value.InstallCommand)
			return err
		})
	c.Flags().BoolVar(&in.Force, "force", false, "use the install command for good, e.g. where the guest's own package was removed")
	return c
}

func newDisableAgent(a *app) *cobra.Command {
	return instanceCommand(a, "disable-agent", text{"Want no guest agent in an instance",
		"Says that no agent is wanted: its silence is no fault then, and health reads agent_disabled.",
		"  outcrop instance disable-agent web"},
		nil, func(ctx context.Context, id string) error { return a.act(ctx, id, "disable-agent", nil) })
}

type agentStatus = api.AgentStatus

var agentFields = []field[agentStatus]{
	{"Instance", func(s *agentStatus, _ time.Time) string { return s.InstanceID }},
	{"Health", func(s *agentStatus, _ time.Time) string { return s.Health }},
	{"Last heard", func(s *agentStatus, now time.Time) string { return moment(orZero(s.LastHeartbeatAt), now) }},
	{"Version", func(s *agentStatus, _ time.Time) string { return s.Version }},
	{"Last reconcile", func(s *agentStatus, now time.Time) string {
		if s.LastReconcileAt == nil {
			return ""
		}
		return s.LastReconcileResult + ", " + moment(*s.LastReconcileAt, now)
	}},
}

func newAgentStatus(a *app) *cobra.Command {
	return instanceCommand(a, "agent-status", text{"Show the liveness of an instance's guest agent",
		"Shows when the agent was last heard, its version, and how its last reconcile ended.",
		"  outcrop instance agent-status web"},
		nil, func(ctx context.Context, id string) error {
			var it item[agentStatus]
			if err := a.do(ctx, http.MethodGet, api.InstancePath(a.settings().project, id, "agent-status"), nil, &it); err != nil {
				return err
			}
			return printOne(a, it, agentFields, func(s *agentStatus) string { return s.InstanceID })
		})
}

func newMetadataOptions(a *app) *cobra.Command {
	var in api.MetadataOptions
	c := instanceCommand(a, "metadata-options", text{"Change the metadata service of an instance",
		`Changes what the flags name; it is in force at once, in a running guest too.
--http-endpoint disabled turns the whole service off for the instance, the guest
agent's part included. Session tokens are needed always.`,
		"  outcrop instance metadata-options web --http-endpoint disabled\n  outcrop instance metadata-options web --hop-limit 2 --metadata-tags enabled"},
		nil, func(ctx context.Context, id string) error { return a.act(ctx, id, "modify-metadata-options", &in) })
	addMetadataFlags(c, &in)
	return c
}

func addMetadataFlags(c *cobra.Command, in *api.MetadataOptions) {
	f := c.Flags()
	f.StringVar(&in.HTTPEndpoint, "http-endpoint", "", "enabled or disabled")
	f.StringVar(&in.HTTPTokens, "http-tokens", "", "optional or required (recorded; always needed)")
	f.Int64Var(&in.HTTPPutResponseHopLimit, "hop-limit", 0, "IP TTL of a token's answer, 1 to 64; 2 for containers in the guest")
	f.StringVar(&in.InstanceMetadataTags, "metadata-tags", "", "enabled: the guest can read its own tags")
	completeWords(c, "http-endpoint", "enabled", "disabled")
	completeWords(c, "metadata-tags", "enabled", "disabled")
}
