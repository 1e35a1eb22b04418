package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/outcrop-cloud/outcrop/internal/api"
	"github.com/outcrop-cloud/outcrop/internal/compute"
	"github.com/outcrop-cloud/outcrop/internal/iam"
)

type token = api.Token

var tokens = &noun[token]{
	one: "token", command: "token",
	path: func(_ *app, id string) string { return pathOf("/v1/tokens", id) },
	id:   func(t *token) string { return t.ID },
	columns: []field[token]{
		{"ID", func(t *token, _ time.Time) string { return t.ID }},
		{"NAME", func(t *token, _ time.Time) string { return t.Name }},
		{"ROLE", func(t *token, _ time.Time) string { return t.Role }},
		{"FOR", func(t *token, _ time.Time) string { return t.ProjectID + t.NodeID }},
		{"AGE", func(t *token, now time.Time) string { return age(t.CreatedAt, now) }},
		{"USED", func(t *token, now time.Time) string { return age(orZero(t.LastUsedAt), now) }},
		{"VALID", tokenValidity},
	},
}

func tokenValidity(t *token, now time.Time) string {
	switch {
	case t.RevokedAt != nil:
		return "revoked"
	case t.UsesLeft != nil && *t.UsesLeft == 0:
		return "used up"
	case t.ExpiresAt == nil:
		return "for ever"
	case !t.ExpiresAt.After(now):
		return "expired"
	}
	return "for " + rough(t.ExpiresAt.Sub(now))
}

// localTokenCreate makes a token in the database of the server on this machine,
// without asking the server: dir is its data directory, database its --database
// URL (empty for the embedded one).
var localTokenCreate = createLocalToken

func newToken(a *app) *cobra.Command {
	return group("token", "Create, list and revoke tokens",
		`A token says who calls. Roles: operator (everything), node (the agent of one node),
project (a member of one project), monitor (reads nodes and /metrics, and nothing
else), join (a machine that may become a node; made by outcrop node join-token).`,
		"  outcrop token create --role project --project shop --expires 30d\n  outcrop token list", []string{"tokens"},
		newTokenCreate(a),
		tokens.listCommand(a, text{"List the tokens", "Lists the tokens, never their secrets. USED is how long ago one was last shown to the server.",
			"  outcrop token list"}),
		tokens.deleteCommand(a, "revoke", "revoked", []string{"delete", "rm"}, text{"Revoke a token",
			"Revokes a token by its id. It takes effect at once.", "  outcrop token revoke 7f3a9c"}),
	)
}

// tokenFlags are the flags of token create.
type tokenFlags struct {
	in             api.CreateToken
	expires        string
	data, database string
}

func newTokenCreate(a *app) *cobra.Command {
	var fl tokenFlags
	c := command("create", text{"Create a token and print it",
		`Creates a token and prints it, alone, on standard output. It is shown this once:
the server keeps only a keyed hash. A node's token is for one node id and may
also fix its role and zone. --data works on the server's own machine without a
token, for the day when the operator's is lost.`,
		`  outcrop token create --role node --node rack1-07 > node.token
  outcrop token create --role project --project shop --name ci --expires 30d
  outcrop token create --role operator --data /var/lib/outcrop`},
		[]string{"add"}, nil, func(cmd *cobra.Command, _ []string) error {
			if err := fl.check(cmd); err != nil {
				return err
			}
			if fl.in.Role == string(iam.Member) {
				fl.in.ProjectID = a.flags.project
			}
			return a.createToken(cmd.Context(), &fl)
		})
	f := c.Flags()
	f.StringVar(&fl.in.Role, "role", "", "operator, node, project or monitor")
	f.StringVar(&fl.in.Name, "name", "", "name for lists and for the audit log")
	f.StringVar(&fl.in.NodeID, "node", "", "with --role node: the node's id")
	f.StringVar(&fl.in.NodeRole, "node-role", "", "with --role node: the only role that the node may claim")
	f.StringVar(&fl.in.NodeZone, "zone", "", "with --role node: the only zone that the node may claim")
	f.StringVar(&fl.expires, "expires", "", "how long it is valid, like 24h or 30d (for ever where it is left out)")
	f.StringVar(&fl.data, "data", "", "on the server's own machine: its data directory")
	f.StringVar(&fl.database, "database", "", "with --data: the server's database, where it is not in the directory")
	completeWords(c, "role", roleNames()...)
	var nodeRoles []string
	for _, r := range compute.Roles {
		nodeRoles = append(nodeRoles, string(r))
	}
	completeWords(c, "node-role", nodeRoles...)
	return c
}

func roleNames() []string {
	var names []string
	for _, r := range iam.Roles {
		if r == iam.Join { // those have a command of their own: outcrop node join-token
			continue
		}
		names = append(names, string(r))
	}
	return names
}

func (fl *tokenFlags) check(cmd *cobra.Command) error {
	if err := need(cmd, "role"); err != nil {
		return err
	}
	if !slices.Contains(roleNames(), fl.in.Role) {
		return usagef("--role is %s, not %q", strings.Join(roleNames(), ", "), fl.in.Role)
	}
	forRole := map[iam.Role][]string{iam.Node: {"node", "node-role", "zone"}, iam.Member: {"project"}}
	for role, flags := range forRole {
		if string(role) == fl.in.Role {
			if err := need(cmd, flags[0]); err != nil {
				return err
			}
			continue
		}
		for _, flag := range flags {
			if flag != "project" && cmd.Flags().Changed(flag) {
				return usagef("--%s goes with --role %s", flag, role)
			}
		}
	}
	if fl.expires != "" {
		d, err := parseDuration(fl.expires)
		if err != nil {
			return usagef("--expires: %s", err)
		}
		fl.in.ExpiresInSeconds = int64(max(d/time.Second, 1))
	}
	if fl.database != "" && fl.data == "" {
		return usagef("--database goes with --data")
	}
	return nil
}

func (a *app) createToken(ctx context.Context, fl *tokenFlags) error {
	var it item[api.NewToken]
	if fl.data != "" {
		made, err := localTokenCreate(ctx, fl.data, fl.database, fl.in)
		if err != nil {
			return err
		}
		if it.raw, err = json.Marshal(made); err != nil {
			return err
		}
		it.value = made
	} else if err := a.post(ctx, tokens.path(a, ""), &fl.in, &it); err != nil {
		return err
	}
	if a.flags.output != "table" {
		return a.encode(a.stdout, it)
	}
	_, err := fmt.Fprintln(a.stdout, it.value.Secret)
	return err
}
