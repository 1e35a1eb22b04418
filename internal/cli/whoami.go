package cli

import (
	"net/http"
	"time"

	"github.com/spf13/cobra"

	"github.com/outcrop-cloud/outcrop/internal/api"
)

var callerDetails = []field[api.Caller]{
	{"Token", func(c *api.Caller, _ time.Time) string { return c.TokenID }},
	{"Name", func(c *api.Caller, _ time.Time) string { return c.Name }},
	{"Role", func(c *api.Caller, _ time.Time) string { return c.Role }},
	{"Project", func(c *api.Caller, _ time.Time) string { return c.ProjectID }},
	{"Node", func(c *api.Caller, _ time.Time) string { return c.NodeID }},
}

func newWhoami(a *app) *cobra.Command {
	return command("whoami", text{"Show whose token is in use",
		"Asks the server who the token belongs to, and says which server that is and where the token came from.",
		"  outcrop whoami\n  outcrop whoami --url https://cloud.example:9418"},
		nil, nil, func(cmd *cobra.Command, _ []string) error {
			var it item[api.Caller]
			if err := a.do(cmd.Context(), http.MethodGet, "/v1/whoami", nil, &it); err != nil {
				return err
			}
			s := a.settings()
			a.notef("server %s (from %s), token from %s", s.url, s.urlFrom, s.tokenFrom)
			return printOne(a, it, callerDetails, func(c *api.Caller) string { return c.TokenID })
		})
}
