package cli

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/outcrop-cloud/outcrop/internal/api"
	"github.com/outcrop-cloud/outcrop/internal/fleet"
)

// hostContext is what a list of hosts needs beside the hosts.
type hostContext struct {
	capabilities api.Capabilities
	update       api.UpdateSetting
}

// lookAround asks for it.
func lookAround(ctx context.Context, in *inApp) (h hostContext, err error) {
	if err = in.do(ctx, http.MethodGet, "/v1/capabilities", nil, &h.capabilities); err == nil {
		err = in.do(ctx, http.MethodGet, "/v1/hosts/update-setting", nil, &h.update)
	}
	return h, err
}

// wanted is the version that the runner should be on.
func (h *hostContext) wanted(cliVersion string) string {
	s := fleet.UpdateSetting{Mode: fleet.UpdateMode(h.update.Mode), Version: deref(h.update.Version)}
	return s.RunnerVersion(deref(h.capabilities.RunnerVersion), h.capabilities.Version, cliVersion)
}

func deref(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}

// reason says in a few words why a host has its status.
func (h *hostContext) reason(v *api.RunnerHost, now time.Time) string {
	switch fleet.HostStatus(v.Status) {
	case fleet.HostStale:
		return "no heartbeat for " + age(v.LastHeartbeatAt, now)
	case fleet.HostOutdated:
		return fmt.Sprintf("speaks protocol %d, the gateway needs %d", v.RunnerProtocol, h.capabilities.RunnerProtocol.Minimum)
	case fleet.HostFailing:
		switch {
		case v.Blocked != nil:
			return v.Blocked.Reason
		case v.LowDisk != nil:
			return fmt.Sprintf("low disk: %s free, %s needed", formatSize(v.LowDisk.Free), formatSize(v.LowDisk.Needed))
		case v.LastError != nil:
			return v.LastError.Code + ": " + v.LastError.Message
		}
	}
	return ""
}

func (h *hostContext) columns() []field[api.RunnerHost] {
	return []field[api.RunnerHost]{
		{"HOST", func(v *api.RunnerHost, _ time.Time) string { return v.Host }},
		{"STATUS", func(v *api.RunnerHost, _ time.Time) string { return v.Status }},
		{"SEEN", func(v *api.RunnerHost, now time.Time) string { return age(v.LastHeartbeatAt, now) }},
		{"SLOTS", func(v *api.RunnerHost, _ time.Time) string { return fmt.Sprintf("%d/%d", v.SlotsUsed, v.SlotsTotal) }},
		{"VERSION", func(v *api.RunnerHost, _ time.Time) string { return v.CLIVersion }},
		{"WANTED", func(v *api.RunnerHost, _ time.Time) string { return h.wanted(v.CLIVersion) }},
		{"REASON", func(v *api.RunnerHost, now time.Time) string { return h.reason(v, now) }},
	}
}

func hostName(v *api.RunnerHost) string { return v.Host }

var hostDetails = []field[api.HostDetail]{
	{"Host", func(v *api.HostDetail, _ time.Time) string { return v.Host }},
	{"Status", func(v *api.HostDetail, _ time.Time) string { return v.Status }},
	{"Reason", func(v *api.HostDetail, _ time.Time) string { return deref(v.StatusReason) }},
	{"Notice", func(v *api.HostDetail, _ time.Time) string {
		if v.Notice == nil {
			return ""
		}
		return v.Notice.Message
	}},
	{"Last seen", func(v *api.HostDetail, now time.Time) string { return moment(v.LastHeartbeatAt, now) }},
	{"Reports every", func(v *api.HostDetail, _ time.Time) string {
		return (time.Duration(v.PollSeconds) * time.Second).String()
	}},
	{"Slots", func(v *api.HostDetail, _ time.Time) string {
		return fmt.Sprintf("%d of %d used, by its own word; it holds %d jobs", v.SlotsUsed, v.SlotsTotal, v.WorkHeld)
	}},
	{"Version", func(v *api.HostDetail, _ time.Time) string {
		if v.CLIVersion == v.RunnerVersion {
			return v.CLIVersion
		}
		return v.CLIVersion + " (wanted: " + v.RunnerVersion + ")"
	}},
	{"Protocol", func(v *api.HostDetail, _ time.Time) string { return fmt.Sprint(v.RunnerProtocol) }},
	{"Got work", func(v *api.HostDetail, now time.Time) string { return moment(orZero(v.LastSuccessAt), now) }},
	{"Last error", func(v *api.HostDetail, now time.Time) string {
		if v.LastError == nil {
			return ""
		}
		return fmt.Sprintf("%s: %s (%s ago)", v.LastError.Code, v.LastError.Message, age(v.LastError.At, now))
	}},
	{"Last update", func(v *api.HostDetail, _ time.Time) string {
		if v.LastUpdate == nil {
			return ""
		}
		return strings.TrimSuffix(fmt.Sprintf("%s to %s: %s; %s", v.LastUpdate.From, v.LastUpdate.To, v.LastUpdate.Outcome, deref(v.LastUpdate.Reason)), "; ")
	}},
}

func newHosts(a *app) *cobra.Command {
	in := newInApp(a)
	c := group("host", "Look at runner hosts and choose their version",
		`A runner host asks the gateway for work and reports by heartbeat. Its status is
derived whenever it is read: stale without a fresh heartbeat, outdated below the
minimum protocol, failing while it gets no work, else ok. A host that was silent
for 30 days is forgotten.`,
		"  outcrop host list\n  outcrop host get builder-01", []string{"hosts"},
		newHostList(in),
		command("get", text{"Show one host", "Shows one host: the reason for its status, what is to be done by a date, its slots and versions.", "  outcrop host get builder-01"},
			[]string{"show", "describe"}, []string{"HOST"}, func(cmd *cobra.Command, args []string) error {
				var it item[api.HostDetail]
				if err := in.do(cmd.Context(), http.MethodGet, api.HostPath(args[0]), nil, &it); err != nil {
					return err
				}
				return printOne(a, it, hostDetails, func(v *api.HostDetail) string { return v.Host })
			}),
		command("delete", text{"Forget a host that is gone", "Removes a host from the list. One that still reports comes back by itself: stop its runner, or revoke its key, first.", "  outcrop host delete builder-01"},
			[]string{"rm"}, []string{"HOST"}, func(cmd *cobra.Command, args []string) error {
				if err := in.do(cmd.Context(), http.MethodDelete, api.HostPath(args[0]), nil, nil); err != nil {
					return err
				}
				a.notef("host %s is deleted", args[0])
				return nil
			}),
		newHostVersion(in),
	)
	in.addFlag(c)
	return c
}

func newHostList(in *inApp) *cobra.Command {
	var status string
	c := command("list", text{"List the runner hosts",
		`Lists the app's runner hosts by name. SLOTS is used of all, by the host's own word.
WANTED is the version that it is told to be on. REASON says what stands in the
way of work.`,
		"  outcrop host list\n  outcrop host list --status stale -q"}, []string{"ls"}, nil, func(cmd *cobra.Command, _ []string) error {
		path := api.HostPath("")
		if status != "" {
			path += "?status=" + url.QueryEscape(status)
		}
		items, err := listIn[api.RunnerHost](cmd.Context(), in, path)
		if err != nil {
			return err
		}
		var h hostContext
		if in.a.flags.output == "table" && !in.a.flags.quiet {
			if h, err = lookAround(cmd.Context(), in); err != nil {
				return err
			}
		}
		return printList(in.a, items, h.columns(), hostName)
	})
	c.Flags().StringVar(&status, "status", "", "only hosts that are ok, failing, outdated or stale")
	var words []string
	for _, s := range fleet.HostStatuses {
		words = append(words, string(s))
	}
	completeWords(c, "status", words...)
	return c
}

func newHostVersion(in *inApp) *cobra.Command {
	c := command("version", text{"Show or choose the version of the app's runners",
		`Shows, or with an argument sets, who picks the version of the app's runners:
follow (what the gateway was built from), paused (each stays as it is), or pinned
to a version.`,
		"  outcrop host version\n  outcrop host version follow\n  outcrop host version pinned 1.4.2"}, []string{"update-setting"}, nil, func(cmd *cobra.Command, args []string) error {
		method, body := http.MethodGet, any(nil)
		if len(args) > 0 {
			put := api.PutUpdateSetting{Mode: args[0]}
			if !slices.Contains(fleet.UpdateModes, fleet.UpdateMode(args[0])) {
				return usagef("the setting is follow, paused or pinned VERSION, not %q", args[0])
			}
			if (args[0] == string(fleet.UpdatePinned)) != (len(args) == 2) {
				return usagef("a version goes with pinned, and only with it")
			}
			if len(args) == 2 {
				put.Version = args[1]
			}
			method, body = http.MethodPut, put
		}
		var it item[api.UpdateSetting]
		if err := in.do(cmd.Context(), method, "/v1/hosts/update-setting", body, &it); err != nil {
			return err
		}
		return printOne(in.a, it, []field[api.UpdateSetting]{
			{"Setting", func(v *api.UpdateSetting, _ time.Time) string { return v.Mode }},
			{"Version", func(v *api.UpdateSetting, _ time.Time) string { return deref(v.Version) }},
		}, func(v *api.UpdateSetting) string { return v.Mode })
	})
	c.Use, c.Args = "version [follow|paused|pinned VERSION]", cobra.MaximumNArgs(2)
	c.ValidArgs = []cobra.Completion{"follow", "paused", "pinned"}
	return c
}
