package cli

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/outcrop-cloud/outcrop/internal/api"
	"github.com/outcrop-cloud/outcrop/internal/fleet"
)

// inApp is the app that the commands of one group work in.
type inApp struct {
	a    *app
	name string // --app: id or name
	id   string // once it is known
}

func (in *inApp) addFlag(c *cobra.Command) {
	c.PersistentFlags().StringVar(&in.name, "app", "", "app, by id or name (OUTCROP_APP; not needed where there is only one)")
}

// resolve finds the app: by id at once, by name or as the only one among those
// that an operator can list.
func (in *inApp) resolve(ctx context.Context) (string, error) {
	if in.id != "" {
		return in.id, nil
	}
	word := cmp.Or(in.name, in.a.getenv("OUTCROP_APP"))
	if in.id = fleet.CanonicalID(word); in.id != "" {
		return in.id, nil
	}
	items, err := listData[api.App](ctx, in.a, "/v1/apps")
	if err != nil {
		return "", err
	}
	var found []string
	for i := range items {
		if v := &items[i].value; word == "" || v.Name == word {
			found = append(found, v.ID)
		}
	}
	switch {
	case len(found) == 1:
		in.id = found[0]
		return in.id, nil
	case len(found) > 1 && word == "":
		return "", &failure{code: codeUsage, message: fmt.Sprintf("there are %d apps; name one with --app", len(found)), hint: `"outcrop app list" shows them`}
	case len(found) > 1:
		return "", &failure{code: codeAmbiguous, message: fmt.Sprintf("%d apps are named %q: %s", len(found), word, sentence(found)), hint: "use one of the ids"}
	case word == "":
		return "", &failure{code: codeNotFound, message: "there is no app yet", hint: `"outcrop app create NAME" makes one`}
	}
	return "", &failure{code: codeNotFound, message: fmt.Sprintf("there is no app %q", word), hint: `"outcrop app list" shows what there is`}
}

// do sends one request about the app and unpacks the answer.
func (in *inApp) do(ctx context.Context, method, path string, body, out any, opts ...api.Option) error {
	id, err := in.resolve(ctx)
	if err != nil {
		return err
	}
	return doData(ctx, in.a, method, path, body, out, append(opts, api.InApp(id))...)
}

// doData sends one request to the gateway and unpacks the answer into out, or
// drops it.
func doData(ctx context.Context, a *app, method, path string, in, out any, opts ...api.Option) error {
	return a.within(ctx, func(ctx context.Context, c *api.Client) error {
		if out == nil {
			return c.Do(ctx, method, path, in, nil, opts...)
		}
		return c.Do(ctx, method, path, in, &struct {
			Data any `json:"data"`
		}{out}, opts...)
	})
}

// postData is doData for a create, sent again when the connection broke.
func postData(ctx context.Context, a *app, path string, in, out any, opts ...api.Option) error {
	return a.create(ctx, func(ctx context.Context, key api.Option) error {
		return doData(ctx, a, http.MethodPost, path, in, out, append(opts, key)...)
	})
}

func (in *inApp) post(ctx context.Context, path string, body, out any) error {
	id, err := in.resolve(ctx)
	if err != nil {
		return err
	}
	return postData(ctx, in.a, path, body, out, api.InApp(id))
}

// listData fetches all pages of a list of the gateway. An empty one is not nil.
func listData[T any](ctx context.Context, a *app, path string, opts ...api.Option) ([]item[T], error) {
	items := []item[T]{}
	err := a.within(ctx, func(ctx context.Context, c *api.Client) error {
		items = items[:0]
		return api.DataPages(ctx, c, path, func(i item[T]) error {
			items = append(items, i)
			return nil
		}, opts...)
	})
	return items, err
}

func listIn[T any](ctx context.Context, in *inApp, path string) ([]item[T], error) {
	id, err := in.resolve(ctx)
	if err != nil {
		return nil, err
	}
	return listData[T](ctx, in.a, path, api.InApp(id))
}

func newInApp(a *app) *inApp { return &inApp{a: a} }

var appColumns = []field[api.App]{
	{"ID", func(v *api.App, _ time.Time) string { return v.ID }},
	{"NAME", func(v *api.App, _ time.Time) string { return v.Name }},
	{"HOSTS", func(v *api.App, _ time.Time) string { return fmt.Sprint(v.Hosts) }},
	{"AGE", func(v *api.App, now time.Time) string { return age(v.CreatedAt, now) }},
}

func appID(v *api.App) string { return v.ID }

func newApps(a *app) *cobra.Command {
	show := func(it item[api.App]) error {
		if a.flags.output != "table" {
			return printOne(a, it, appColumns, appID)
		}
		return printList(a, []item[api.App]{it}, appColumns, appID)
	}
	one := func(ctx context.Context, word string) (string, error) {
		in := newInApp(a)
		in.name = word
		return in.resolve(ctx)
	}
	return group("app", "Create, list, rename and delete apps",
		`An app (a factory) owns runner hosts, API keys and work, and keeps them apart from
those of others. Operators only.`,
		"  outcrop app create builds\n  outcrop app list", []string{"apps"},
		command("create", text{"Create an app", "Creates an app and prints it; its id goes into the header of every request of its runners.", "  outcrop app create builds"},
			[]string{"add"}, []string{"NAME"}, func(cmd *cobra.Command, args []string) error {
				var it item[api.App]
				if err := postData(cmd.Context(), a, "/v1/apps", api.CreateApp{Name: args[0]}, &it); err != nil {
					return err
				}
				return show(it)
			}),
		command("list", text{"List the apps", "Lists all apps, oldest first.", "  outcrop app list"}, []string{"ls"}, nil, func(cmd *cobra.Command, _ []string) error {
			items, err := listData[api.App](cmd.Context(), a, "/v1/apps")
			if err != nil {
				return err
			}
			return printList(a, items, appColumns, appID)
		}),
		command("get", text{"Show one app", "Shows one app, by id or name.", "  outcrop app get builds"}, []string{"show", "describe"}, []string{"APP"}, func(cmd *cobra.Command, args []string) error {
			id, err := one(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			var it item[api.App]
			if err := doData(cmd.Context(), a, http.MethodGet, "/v1/apps/"+id, nil, &it); err != nil {
				return err
			}
			return show(it)
		}),
		command("rename", text{"Give an app another name", "Renames an app. Its id, keys and hosts stay.", "  outcrop app rename builds nightly-builds"}, nil, []string{"APP", "NAME"}, func(cmd *cobra.Command, args []string) error {
			id, err := one(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			var it item[api.App]
			if err := doData(cmd.Context(), a, http.MethodPatch, "/v1/apps/"+id, api.CreateApp{Name: args[1]}, &it); err != nil {
				return err
			}
			return show(it)
		}),
		command("delete", text{"Delete an app without hosts and unfinished work", `Deletes an app; its keys end at once. It is refused while the app has hosts or
unfinished work: delete and cancel those first.`, "  outcrop app delete builds"}, []string{"rm"}, []string{"APP"}, func(cmd *cobra.Command, args []string) error {
			id, err := one(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			if err := doData(cmd.Context(), a, http.MethodDelete, "/v1/apps/"+id, nil, nil); err != nil {
				return err
			}
			a.notef("app %s is deleted", args[0])
			return nil
		}),
	)
}

var keyColumns = []field[api.APIKey]{
	{"ID", func(v *api.APIKey, _ time.Time) string { return v.ID }},
	{"NAME", func(v *api.APIKey, _ time.Time) string { return v.Name }},
	{"KEY", func(v *api.APIKey, _ time.Time) string { return v.KeyPrefix + "…" }},
	{"HOST", func(v *api.APIKey, _ time.Time) string {
		if v.Runner == nil {
			return ""
		}
		return v.Runner.Host
	}},
	{"PERMISSIONS", func(v *api.APIKey, _ time.Time) string { return strings.Join(v.Permissions, ",") }},
	{"USED", func(v *api.APIKey, now time.Time) string { return age(orZero(v.LastUsedAt), now) }},
	{"VALID", func(v *api.APIKey, now time.Time) string {
		return tokenValidity(&api.Token{ExpiresAt: v.ExpiresAt, RevokedAt: v.RevokedAt}, now)
	}},
}

func keyID(v *api.APIKey) string { return v.ID }

func newKeys(a *app) *cobra.Command {
	in := newInApp(a)
	c := group("key", "Create, list and revoke API keys",
		`An API key says who speaks to the gateway and what it may do there. A runner key
belongs to one host and is good for nothing without that host's own key, which
signs every request.`,
		"  outcrop key create --name ci --permission work.insert --permission work.read\n  outcrop key list", []string{"keys", "api-key"},
		newKeyCreate(in),
		command("list", text{"List the API keys", "Lists the app's keys, oldest first, never their secrets. USED is how long ago one was last shown to the gateway.", "  outcrop key list --app builds"},
			[]string{"ls"}, nil, func(cmd *cobra.Command, _ []string) error {
				items, err := listIn[api.APIKey](cmd.Context(), in, "/v1/api-keys")
				if err != nil {
					return err
				}
				return printList(a, items, keyColumns, keyID)
			}),
		command("revoke", text{"Revoke an API key", "Revokes a key by its id. It takes effect at once, on every server.", "  outcrop key revoke 5c1e9b0e-0b9e-4b43-9a63-0d9c2f0b7c11"},
			[]string{"delete", "rm"}, []string{"KEY"}, func(cmd *cobra.Command, args []string) error {
				if fleet.CanonicalID(args[0]) == "" {
					return usagef("a key goes by its id, a UUID, not %q", args[0])
				}
				if err := in.do(cmd.Context(), http.MethodDelete, "/v1/api-keys/"+args[0], nil, nil); err != nil {
					return err
				}
				a.notef("key %s is revoked", args[0])
				return nil
			}),
	)
	in.addFlag(c)
	return c
}

// runnerPermissions are what a runner key gets where none are named.
var runnerPermissions = []string{string(fleet.HostsIngest), string(fleet.WorkClaim)}

func newKeyCreate(in *inApp) *cobra.Command {
	var body api.CreateAPIKey
	var runner api.RunnerKey
	var expires string
	c := command("create", text{"Create an API key and print it",
		`Creates an API key and prints it, alone, on standard output. It is shown this once:
the server keeps only a keyed hash. With --host and --public-key it is a runner
key, for that host only; it holds ` + strings.Join(runnerPermissions, " and ") + ` where no permission is named.`,
		`  outcrop key create --name ci --permission work.insert --permission work.read --expires 90d
  outcrop key create --host builder-01 --public-key "$(cat host.pub)"`},
		[]string{"add"}, nil, func(cmd *cobra.Command, _ []string) error {
			if err := keyFlags(cmd, &body, &runner, expires, in.a.now()); err != nil {
				return err
			}
			var it item[api.NewAPIKey]
			if err := in.post(cmd.Context(), "/v1/api-keys", &body, &it); err != nil {
				return err
			}
			if in.a.flags.output != "table" {
				return in.a.encode(in.a.stdout, it)
			}
			in.a.notef("key %s, for app %s", it.value.ID, it.value.AppID)
			_, err := fmt.Fprintln(in.a.stdout, it.value.PlaintextKey)
			return err
		})
	f := c.Flags()
	f.StringVar(&body.Name, "name", "", "name for lists (\"runner HOST\" for a runner key)")
	f.StringArrayVar(&body.Permissions, "permission", nil, "what it may do (repeatable)")
	f.StringVar(&expires, "expires", "", "how long it is valid, like 24h or 30d (for ever where it is left out)")
	f.StringVar(&runner.Host, "host", "", "makes it a runner key: the host's name")
	f.StringVar(&runner.PublicKey, "public-key", "", "with --host: base64 of the raw 32 bytes of the host's ed25519 public key")
	completeWords(c, "permission", permissionNames()...)
	return c
}

func permissionNames() []string {
	var names []string
	for _, p := range fleet.Permissions {
		names = append(names, string(p))
	}
	return names
}

func keyFlags(cmd *cobra.Command, body *api.CreateAPIKey, runner *api.RunnerKey, expires string, now time.Time) error {
	if runner.Host != "" || runner.PublicKey != "" {
		if err := need(cmd, "host", "public-key"); err != nil {
			return err
		}
		body.Runner = runner
		body.Name = cmp.Or(body.Name, "runner "+runner.Host)
		if len(body.Permissions) == 0 {
			body.Permissions = runnerPermissions
		}
	}
	if body.Name == "" || len(body.Permissions) == 0 {
		return need(cmd, "name", "permission")
	}
	for _, p := range body.Permissions {
		if !slices.Contains(permissionNames(), p) {
			return usagef("--permission is one of %s, not %q", strings.Join(permissionNames(), ", "), p)
		}
	}
	if expires != "" {
		d, err := parseDuration(expires)
		if err != nil {
			return usagef("--expires: %s", err)
		}
		at := now.Add(d).UTC().Truncate(time.Second)
		body.ExpiresAt = &at
	}
	return nil
}
