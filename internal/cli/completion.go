package cli

import (
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"
)

var shells = map[string]func(root *cobra.Command, w io.Writer) error{
	"bash":       func(root *cobra.Command, w io.Writer) error { return root.GenBashCompletionV2(w, true) },
	"zsh":        func(root *cobra.Command, w io.Writer) error { return root.GenZshCompletion(w) },
	"fish":       func(root *cobra.Command, w io.Writer) error { return root.GenFishCompletion(w, true) },
	"powershell": func(root *cobra.Command, w io.Writer) error { return root.GenPowerShellCompletionWithDesc(w) },
}

func newCompletion(a *app) *cobra.Command {
	names := []string{"bash", "zsh", "fish", "powershell"}
	c := command("completion", text{"Print a script that completes commands in a shell",
		`Prints a script for bash, zsh, fish or powershell. With it the tab key completes
commands, flags, and the names of instances, images and nodes.`,
		"  source <(outcrop completion bash)\n  outcrop completion zsh > \"${fpath[1]}/_outcrop\"\n  outcrop completion fish > ~/.config/fish/completions/outcrop.fish"},
		nil, []string{"SHELL"}, func(cmd *cobra.Command, args []string) error {
			if !slices.Contains(names, args[0]) {
				return usagef("there is a script for %s, not for %q", strings.Join(names, ", "), args[0])
			}
			return shells[args[0]](cmd.Root(), a.stdout)
		})
	c.ValidArgs = names
	return c
}
