package cli

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/outcrop-cloud/outcrop/internal/api"
	"github.com/outcrop-cloud/outcrop/internal/compute"
	"github.com/outcrop-cloud/outcrop/internal/iam"
)

type pendingJoin = api.PendingJoin

var joins = &noun[pendingJoin]{
	one: "node", command: "node",
	path: func(_ *app, id string) string { return pathOf("/v1/compute/node-joins", id) },
	id:   func(j *pendingJoin) string { return j.NodeID },
	columns: []field[pendingJoin]{
		{"NODE", func(j *pendingJoin, _ time.Time) string { return j.NodeID }},
		{"HOSTNAME", func(j *pendingJoin, _ time.Time) string { return j.Hostname }},
		{"FINGERPRINT", func(j *pendingJoin, _ time.Time) string { return j.Fingerprint }},
		{"TOKEN", func(j *pendingJoin, _ time.Time) string { return j.TokenID }},
		{"WAITS", func(j *pendingJoin, now time.Time) string { return age(j.CreatedAt, now) }},
		{"SEEN", func(j *pendingJoin, now time.Time) string { return age(j.LastSeenAt, now) }},
		{"ENDS", func(j *pendingJoin, now time.Time) string { return "in " + rough(j.ExpiresAt.Sub(now)) }},
	},
}

// nodeJoinCommands are how machines become nodes.
func nodeJoinCommands(a *app) []*cobra.Command {
	return []*cobra.Command{
		newJoinToken(a),
		newNodeJoins(a),
		newJoinVerdict(a, "approve", text{"Let a machine in that waits to join",
			`Approves the machine that waits to join as the node. Compare its fingerprint with
what the agent on the machine logs; with --fingerprint no other one is approved.`,
			"  outcrop node approve rack1-07\n  outcrop node approve rack1-07 --fingerprint SHA256:Fbi9…"}),
		newJoinVerdict(a, "refuse", text{"Turn a machine away that waits to join",
			"Refuses the machine that waits to join as the node. It may ask again only with a new join token.",
			"  outcrop node refuse rack1-07"}),
		newReadmit(a),
	}
}

// joinFlags are the flags of join-token and of readmit.
type joinFlags struct {
	in              api.CreateToken
	expires, server string
}

func (fl *joinFlags) add(c *cobra.Command) {
	f := c.Flags()
	f.StringVar(&fl.in.NodeRole, "node-role", "", "the only role that the node may claim")
	f.StringVar(&fl.in.NodeZone, "zone", "", "the only zone that the node may claim")
	f.StringVar(&fl.expires, "expires", "1h", "how long the token is valid, at most 24h")
	f.BoolVar(&fl.in.Approve, "approve", false, "let the machine wait until an operator approves it")
	f.StringVar(&fl.server, "server", "", "the server's address as the machine reaches it (default the one that this command uses)")
	var roles []string
	for _, r := range compute.Roles {
		roles = append(roles, string(r))
	}
	completeWords(c, "node-role", roles...)
}

func (fl *joinFlags) check() error {
	d, err := parseDuration(fl.expires)
	if err != nil {
		return usagef("--expires: %s", err)
	}
	fl.in.ExpiresInSeconds = int64(max(d/time.Second, 1))
	return nil
}

func newJoinToken(a *app) *cobra.Command {
	fl := joinFlags{in: api.CreateToken{Role: string(iam.Join)}}
	c := command("join-token", text{"Make a token that lets a machine join as a node",
		`Makes a join token and prints the command that the machine is to run. The token
carries the fingerprint of the server's CA, so the machine needs nothing else; it
is used once, and the machine's own key takes its place. With -q it is printed
alone, for a file that --join-token-file names. Tokens are listed and revoked by
outcrop token.`,
		`  outcrop node join-token
  outcrop node join-token --id rack1-07 --zone rack1 --server https://cloud:9418
  outcrop node join-token --uses 20 --approve --expires 8h`},
		nil, nil, func(cmd *cobra.Command, _ []string) error {
			if err := fl.check(); err != nil {
				return err
			}
			var it item[api.NewToken]
			if err := a.post(cmd.Context(), tokens.path(a, ""), &fl.in, &it); err != nil {
				return err
			}
			return a.printJoin(&fl, it)
		})
	c.Flags().StringVar(&fl.in.NodeID, "id", "", "the only node id that the token is for (default any that is free)")
	c.Flags().Int64Var(&fl.in.Uses, "uses", 1, "how many machines it admits")
	fl.add(c)
	return c
}

func newReadmit(a *app) *cobra.Command {
	var fl joinFlags
	c := command("readmit", text{"Let another machine, or a reinstalled one, be the node",
		`Forgets the machine that a node id is bound to: its key, its machine id and its
tokens end at once. Then it makes a join token for that id and prints the command
that the new machine is to run. What is placed on the node stays placed there; what
becomes of it follows from what the machine reports.`,
		"  outcrop node readmit rack1-07"}, nil, []string{nodes.argument()}, func(cmd *cobra.Command, args []string) error {
		if err := fl.check(); err != nil {
			return err
		}
		fl.in.NodeID = args[0]
		var it item[api.NewToken]
		in := api.ReadmitNode{NodeRole: fl.in.NodeRole, NodeZone: fl.in.NodeZone, ExpiresInSeconds: fl.in.ExpiresInSeconds, Approve: fl.in.Approve}
		if err := a.do(cmd.Context(), http.MethodPost, api.NodePath(args[0], "readmit"), &in, &it); err != nil {
			return err
		}
		a.notef("the key and the tokens of node %s have ended", args[0])
		return a.printJoin(&fl, it)
	})
	fl.add(c)
	c.ValidArgsFunction = nodes.complete(a)
	return c
}

// joinDataDir is where the printed command keeps a node's data.
const joinDataDir = "/var/lib/outcrop-node"

// printJoin prints the command that joins with the token.
func (a *app) printJoin(fl *joinFlags, it item[api.NewToken]) error {
	switch {
	case a.flags.output != "table":
		return a.encode(a.stdout, it)
	case a.flags.quiet:
		_, err := fmt.Fprintln(a.stdout, it.value.Secret)
		return err
	}
	server := cmp.Or(fl.server, a.settings().url)
	words := []string{"OUTCROP_JOIN_TOKEN=" + it.value.Secret, "outcrop", "node", "--server", server}
	for _, f := range []struct{ flag, value string }{{"--id", fl.in.NodeID}, {"--role", fl.in.NodeRole}, {"--zone", fl.in.NodeZone}} {
		if f.value != "" {
			words = append(words, f.flag, f.value)
		}
	}
	words = append(words, "--data", joinDataDir)
	for i := range words[1:] {
		words[i+1] = shellWord(words[i+1])
	}
	a.notef("on the machine, as root, within %s:", fl.expires)
	if _, err := fmt.Fprintln(a.stdout, strings.Join(words, " ")); err != nil {
		return err
	}
	if loopback(server) {
		a.notef("%s is this machine alone; other machines need the server's own address: --server URL", server)
	}
	return nil
}

func loopback(address string) bool {
	u, err := url.Parse(address)
	if err != nil {
		return false
	}
	ip := net.ParseIP(u.Hostname())
	return u.Hostname() == "localhost" || ip != nil && ip.IsLoopback()
}

// shellWord quotes a word for a POSIX shell where that is needed.
func shellWord(s string) string {
	plain := func(r rune) bool {
		return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("-_./:@%+=,", r)
	}
	if s != "" && strings.IndexFunc(s, func(r rune) bool { return !plain(r) }) < 0 {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}

func newNodeJoins(a *app) *cobra.Command {
	return command("joins", text{"List the machines that wait to join",
		"Lists the machines that came with a join token of --approve and wait for an operator.",
		"  outcrop node joins"}, nil, nil, func(cmd *cobra.Command, _ []string) error {
		items, err := list[pendingJoin](cmd.Context(), a, joins.path(a, ""))
		if err != nil {
			return err
		}
		return printList(a, items, joins.columns, joins.id)
	})
}

// newJoinVerdict is approve or refuse.
func newJoinVerdict(a *app, verb string, t text) *cobra.Command {
	var fingerprint string
	c := command(verb, t, nil, []string{joins.argument()}, func(cmd *cobra.Command, args []string) error {
		return a.judgeJoin(cmd.Context(), verb, args[0], fingerprint)
	})
	c.Flags().StringVar(&fingerprint, "fingerprint", "", "decide only on the machine with this key")
	c.ValidArgsFunction = joins.complete(a)
	return c
}

// judgeJoin decides on the machine that waits as this command saw it: one that came
// in its place meanwhile is not meant.
func (a *app) judgeJoin(ctx context.Context, verb, id, fingerprint string) error {
	if fingerprint == "" {
		waiting, err := list[pendingJoin](ctx, a, joins.path(a, ""))
		if err != nil {
			return err
		}
		for _, w := range waiting {
			if w.value.NodeID == id {
				fingerprint = w.value.Fingerprint
			}
		}
	}
	var it item[pendingJoin]
	if err := a.do(ctx, http.MethodPost, joins.path(a, id)+"/"+verb, &api.JoinVerdict{Fingerprint: fingerprint}, &it); err != nil {
		return err
	}
	if a.flags.output != "table" || a.flags.quiet {
		return printOne(a, it, joins.columns, joins.id)
	}
	past := map[string]string{"approve": "is approved and joins by itself", "refuse": "is refused"}[verb]
	a.notef("machine %q (%s) %s", it.value.Hostname, it.value.Fingerprint, past)
	return nil
}
