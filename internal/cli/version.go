package cli

import (
	"cmp"
	"fmt"
	"runtime"
	"runtime/debug"
	"sync"

	"github.com/spf13/cobra"
)

// build says which program this is.
type build struct {
	Version  string `json:"version"`
	Commit   string `json:"commit,omitempty"`
	Time     string `json:"time,omitempty"`
	Modified bool   `json:"modified,omitempty"` // built from a tree with changes
	Go       string `json:"go"`
	Platform string `json:"platform"`
}

// version is the release, where the build names it: make build does, by -ldflags.
var version string

// buildVersion reads what the Go tool wrote into the program.
var buildVersion = sync.OnceValue(func() build {
	b := build{Version: cmp.Or(version, "devel"), Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return b
	}
	if v := info.Main.Version; version == "" && v != "" && v != "(devel)" {
		b.Version = v
	}
	for _, s := range info.Settings {
		switch s.Key {
		case "vcs.revision":
			b.Commit = s.Value
		case "vcs.time":
			b.Time = s.Value
		case "vcs.modified":
			b.Modified = s.Value == "true"
		}
	}
	return b
})

// clean is the commit that names the program; empty for one that was built from a
// tree with changes, which no commit names.
func (b build) clean() string {
	if b.Modified {
		return ""
	}
	return b.Commit
}

func (b build) String() string {
	text := b.Version
	if len(b.Commit) >= 12 {
		text += " (commit " + b.Commit[:12]
		if b.Modified {
			text += ", modified"
		}
		text += ")"
	}
	return text + " " + b.Go + " " + b.Platform
}

func newVersion(a *app) *cobra.Command {
	return command("version", text{"Print which build this is",
		"Prints the version, the commit that it was built from, and the platform. It asks no server.",
		"  outcrop version\n  outcrop version -o json"},
		nil, nil, func(*cobra.Command, []string) error {
			b := buildVersion()
			switch {
			case a.flags.quiet:
				_, err := fmt.Fprintln(a.stdout, b.Version)
				return err
			case a.flags.output != "table":
				return a.encode(a.stdout, b)
			}
			_, err := fmt.Fprintln(a.stdout, "outcrop", b)
			return err
		})
}
