package cli

import (
	"log/slog"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/outcrop-cloud/outcrop/internal/control"
	"github.com/outcrop-cloud/outcrop/internal/fleet"
	"github.com/outcrop-cloud/outcrop/internal/gateway"
	"github.com/outcrop-cloud/outcrop/internal/store"
)

// gatewayOptions are what `outcrop server` is told about its runner gateway.
type gatewayOptions struct {
	runnerVersion string
	minimum       int64
	next          string // PROTOCOL@DATE
}

func (o *gatewayOptions) addFlags(c *cobra.Command) {
	f := c.Flags()
	f.StringVar(&o.runnerVersion, "runner-version", "", "version that runners are told to be on where their app follows the gateway")
	f.Int64Var(&o.minimum, "runner-protocol-minimum", 1, "runners that speak an older protocol get no work")
	f.StringVar(&o.next, "runner-protocol-next", "", "announce the next minimum, as PROTOCOL@DATE like 2@2026-09-01")
}

// protocol reads the flags; gateway.New checks what they say.
func (o *gatewayOptions) protocol() (fleet.Protocol, error) {
	p := fleet.Protocol{Current: fleet.CurrentProtocol, Minimum: o.minimum}
	if o.next == "" {
		return p, nil
	}
	number, date, _ := strings.Cut(o.next, "@")
	var err, derr error
	p.Next, err = strconv.ParseInt(number, 10, 64)
	p.From, derr = time.Parse(time.DateOnly, date)
	if err != nil || derr != nil {
		return p, usagef("--runner-protocol-next is like 2@2026-09-01, not %q", o.next)
	}
	return p, nil
}

// newGateway makes the gateway beside the compute API.
func (o *serverOptions) newGateway(db *store.DB, c *control.Control, log *slog.Logger) (*gateway.Gateway, error) {
	p, err := o.gateway.protocol()
	if err != nil {
		return nil, err
	}
	return gateway.New(gateway.Options{
		DB: db, Dir: o.data, Log: log, Tokens: c.Authenticate, Version: buildVersion().Version,
		RunnerVersion: o.gateway.runnerVersion, Protocol: p,
	})
}
