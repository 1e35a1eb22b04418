package cli

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/http"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/outcrop-cloud/outcrop/internal/api"
	"github.com/outcrop-cloud/outcrop/internal/cloudinit"
)

func newUserData(a *app) *cobra.Command {
	return group("user-data", "Set, compare and clear an instance's user-data",
		`User-data is what cloud-init in the guest reads at boot: a script, a cloud-config,
or any other bytes, 64 KiB at most. It can be changed while the instance is
stopped; the next start uses it.`,
		"  outcrop instance user-data set web cloud-config.yaml", []string{"userdata"},
		newUserDataSet(a), newUserDataHash(a), newUserDataClear(a), newUserDataLint(a))
}

func userDataPath(a *app, id string) string {
	return api.InstancePath(a.settings().project, id, "user-data")
}

func newUserDataSet(a *app) *cobra.Command {
	c := command("set", text{"Give a stopped instance new user-data",
		`Replaces the user-data of a stopped instance, byte for byte, binary too, and checks
by its hash that the server holds what was sent. The next start uses it.`,
		"  outcrop instance user-data set web cloud-config.yaml\n  gzip -c setup.sh | outcrop instance user-data set web -"},
		[]string{"put"}, []string{"INSTANCE", "FILE|-"}, func(cmd *cobra.Command, args []string) error {
			b, err := a.readUserData(args[1])
			if err != nil {
				return err
			}
			id, err := instances.resolve(cmd.Context(), a, args[0])
			if err != nil {
				return err
			}
			return a.putUserData(cmd.Context(), id, b)
		})
	c.ValidArgsFunction = instances.complete(a)
	return c
}

func (a *app) putUserData(ctx context.Context, id string, b []byte) error {
	var it item[instance]
	if err := a.do(ctx, http.MethodPut, userDataPath(a, id), bytes.NewReader(b), &it); err != nil {
		return err
	}
	sum := sha256.Sum256(b)
	if want := "sha256:" + hex.EncodeToString(sum[:]); it.value.UserDataHash != want {
		return &failure{code: codeFailed,
			message: fmt.Sprintf("the server holds user-data %s, but %s was sent", orDash(it.value.UserDataHash), want),
			hint:    "somebody may have set other bytes at the same time; set it again"}
	}
	a.warn(&it.value)
	a.notef("user-data of %s is set; the next start uses it", id)
	return a.printUserDataHash(it)
}

func newUserDataHash(a *app) *cobra.Command {
	return instanceCommand(a, "get-hash", text{"Print the hash of an instance's user-data",
		`Prints the hash of the user-data that the server holds, as sha256:<hex>. The bytes
themselves never come back. It fails where the instance has none.`,
		"  outcrop instance user-data get-hash web"},
		[]string{"hash"}, func(ctx context.Context, id string) error {
			it, err := instances.get(ctx, a, id)
			if err != nil {
				return err
			}
			if it.value.UserDataHash == "" {
				return &failure{code: codeNotFound, message: fmt.Sprintf("instance %s has no user-data", id)}
			}
			return a.printUserDataHash(it)
		})
}

func (a *app) printUserDataHash(it item[instance]) error {
	if a.flags.output != "table" {
		return a.encode(a.stdout, map[string]string{"id": it.value.ID, "userDataHash": it.value.UserDataHash})
	}
	_, err := fmt.Fprintln(a.stdout, it.value.UserDataHash)
	return err
}

func newUserDataClear(a *app) *cobra.Command {
	return instanceCommand(a, "clear", text{"Take away a stopped instance's user-data",
		"Removes the user-data of a stopped instance. Its next start finds none.",
		"  outcrop instance user-data clear web"},
		[]string{"delete", "rm"}, func(ctx context.Context, id string) error {
			if err := a.do(ctx, http.MethodDelete, userDataPath(a, id), nil, nil); err != nil {
				return err
			}
			a.notef("user-data of %s is cleared", id)
			return nil
		})
}

// lintFinding is a finding as -o json prints it.
type lintFinding struct {
	Line    int    `json:"line,omitempty"`
	Code    string `json:"code"`
	Message string `json:"message"`
}

var lintColumns = []field[lintFinding]{
	{"LINE", func(f *lintFinding, _ time.Time) string {
		if f.Line == 0 {
			return ""
		}
		return strconv.Itoa(f.Line)
	}},
	{"CODE", func(f *lintFinding, _ time.Time) string { return f.Code }},
	{"MESSAGE", func(f *lintFinding, _ time.Time) string { return f.Message }},
}

func newUserDataLint(a *app) *cobra.Command {
	return command("lint", text{"Look for what cloud-init would not take as meant",
		`Looks through user-data on this machine, without a server: an unknown format, bad
YAML, keys that cloud-init does not know, Windows line ends before a shebang, base64
by mistake, a size near the limit; the parts of a MIME message and what gzip holds
too. It exits 1 where it finds something. The server warns of the same, and takes it.`,
		"  outcrop instance user-data lint cloud-config.yaml\n  gzip -c setup.sh | outcrop instance user-data lint -"},
		[]string{"check"}, []string{"FILE|-"}, func(_ *cobra.Command, args []string) error {
			b, err := a.readUserData(args[0])
			if err != nil {
				return err
			}
			var items []item[lintFinding]
			for _, f := range cloudinit.Lint(b) {
				it, err := newItem(lintFinding{f.Line, f.Code, f.Message})
				if err != nil {
					return err
				}
				items = append(items, it)
			}
			if len(items) == 0 && a.flags.output == "table" {
				a.notef("%d bytes, nothing found", len(b))
				return nil
			}
			if err := printList(a, items, lintColumns, func(f *lintFinding) string { return f.Code }); err != nil {
				return err
			}
			if len(items) > 0 {
				return &failure{code: codeFailed, message: fmt.Sprintf("%s: cloud-init would not take this as meant", args[0])}
			}
			return nil
		})
}
