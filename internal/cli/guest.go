package cli

import (
	"log/slog"

	"github.com/spf13/cobra"

	"github.com/outcrop-cloud/outcrop/internal/guest"
)

// newGuest is the same agent as the small program outcrop-guest.
func newGuest(a *app) *cobra.Command {
	cfg := guest.Config{Version: buildVersion().Version}
	c := command("guest", text{"Run the agent inside an instance",
		`Runs the guest agent, inside an instance. It talks to the metadata address only and
reports that the guest lives and what its boot made of its user-data. It ends at
once where the agent is not enabled (outcrop instance enable-agent), so whatever
starts it should do so again: a timer, or a loop.

Images hold the same agent as the small program outcrop-guest.`,
		"  outcrop guest\n  outcrop guest --activation install-command"},
		nil, nil, func(cmd *cobra.Command, _ []string) error {
			cfg.Log = slog.New(slog.NewTextHandler(a.stderr, nil))
			return guest.Run(cmd.Context(), cfg)
		})
	f := c.Flags()
	f.StringVar(&cfg.Activation, "activation", guest.Automatic, "automatic (part of the image) or install-command: how the agent came here")
	f.StringVar(&cfg.URL, "metadata-url", guest.DefaultURL, "the metadata service")
	return c
}
