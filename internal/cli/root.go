package cli

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/outcrop-cloud/outcrop/internal/nearest"
)

const (
	groupRun   = "run"
	groupUse   = "use"
	groupOther = "other"
)

func newRoot(a *app) *cobra.Command {
	root := &cobra.Command{
		Use:   "outcrop",
		Short: "Turn your own machines into a private compute cloud",
		Long: `Outcrop turns your own machines into a private compute cloud.

The commands below speak to a server. Where it is and which token to show come
from flags, then from the environment (OUTCROP_URL, OUTCROP_TOKEN,
OUTCROP_PROJECT), then from the context file that "outcrop up" writes.
Instances and images go by id, or by name where the name is unique.`,
		Example: `  outcrop image import --name debian debian-12.qcow2
  outcrop instance create --name web --image debian --type m1.small --wait
  outcrop instance list -o json`,
		Version:           buildVersion().String(),
		SilenceErrors:     true,
		SilenceUsage:      true,
		CompletionOptions: cobra.CompletionOptions{DisableDefaultCmd: true},
		PersistentPreRunE: func(*cobra.Command, []string) error { return a.checkOutput() },
	}
	asGroup(root)
	root.SetVersionTemplate("outcrop {{.Version}}\n")
	root.SetFlagErrorFunc(flagError)
	a.addGlobalFlags(root)

	root.AddGroup(&cobra.Group{ID: groupRun, Title: "Run it:"}, &cobra.Group{ID: groupUse, Title: "Use the cloud:"}, &cobra.Group{ID: groupOther, Title: "Other:"})
	add := func(group string, cmds ...*cobra.Command) {
		for _, c := range cmds {
			c.GroupID = group
		}
		root.AddCommand(cmds...)
	}
	add(groupRun, newUp(a), newServer(a), newRunner(a), newGuest(a))
	add(groupUse, newInstance(a), newInstanceType(a), newImage(a), newVolume(a), newSubnet(a), newPlacementGroup(a), newPlacement(a), newNode(a), newCapacity(a), newReadiness(a), newAudit(a), newProject(a), newToken(a), newWhoami(a))
	add(groupUse, newApps(a), newKeys(a), newHosts(a), newWork(a))
	add(groupOther, newOpenAPI(a), newVersion(a), newCompletion(a))
	root.SetHelpCommandGroupID(groupOther)
	root.InitDefaultHelpCmd()
	if help, _, err := root.Find([]string{"help"}); err == nil {
		help.Example = "  outcrop help instance create"
	}
	return root
}

func (a *app) addGlobalFlags(root *cobra.Command) {
	f, g := root.PersistentFlags(), &a.flags
	f.StringVar(&g.url, "url", "", "the server's address (OUTCROP_URL)")
	f.StringVar(&g.tokenFile, "token-file", "", "file that holds the token (or give the token itself as OUTCROP_TOKEN)")
	f.StringVar(&g.project, "project", "", "project to work in (OUTCROP_PROJECT; \"default\" when nothing else says)")
	f.StringVarP(&g.output, "output", "o", "table", "table, json or yaml")
	f.BoolVarP(&g.quiet, "quiet", "q", false, "print ids only, and no notes")
	f.DurationVar(&g.timeout, "timeout", time.Minute, "how long one request may take; 0 is without end")
	completeWords(root, "output", "table", "json", "yaml")
}

// group makes a command that only holds others.
func group(use, short, long, example string, aliases []string, cmds ...*cobra.Command) *cobra.Command {
	c := &cobra.Command{Use: use, Short: short, Long: long, Example: example, Aliases: aliases}
	asGroup(c)
	c.AddCommand(cmds...)
	return c
}

// asGroup makes a command show its help when it is called alone, and name the
// nearest of its commands when it is called with an unknown one.
func asGroup(c *cobra.Command) {
	c.Args = unknownCommand
	c.RunE = func(cmd *cobra.Command, _ []string) error { return cmd.Help() }
}

func unknownCommand(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	var known []string
	for _, c := range cmd.Commands() {
		if c.IsAvailableCommand() {
			known = append(append(known, c.Name()), c.Aliases...)
		}
	}
	err := usagef("there is no command %q", cmd.CommandPath()+" "+args[0])
	if n := nearest.Nearest(args[0], known); n != "" {
		err.message += fmt.Sprintf("; did you mean %q?", cmd.CommandPath()+" "+n)
	}
	return err
}

// flagError names the nearest flag. cobra reads flags before it sees that a
// command is unknown, so an unknown command goes first.
func flagError(cmd *cobra.Command, err error) error {
	if cmd.HasSubCommands() {
		if unknown := unknownCommand(cmd, cmd.Flags().Args()); unknown != nil {
			return unknown
		}
	}
	u := usagef("%s", err)
	if name := unknownFlag(err); name != "" {
		if n := nearest.Nearest(name, flagNames(cmd)); n != "" {
			u.message += "; did you mean --" + n + "?"
		}
	}
	return u
}

// exactly takes as many arguments as names, which are for the error.
func exactly(names ...string) cobra.PositionalArgs {
	return func(_ *cobra.Command, args []string) error {
		switch {
		case len(args) < len(names):
			return usagef("missing %s", strings.Join(names[len(args):], " and "))
		case len(args) > len(names):
			return usagef("%q is one argument too many", args[len(names)])
		}
		return nil
	}
}

// text is what a command says of itself.
type text struct{ short, long, example string }

// command makes a command that takes the named arguments.
func command(use string, t text, aliases []string, args []string, run func(cmd *cobra.Command, args []string) error) *cobra.Command {
	return &cobra.Command{
		Use:     strings.Join(append([]string{use}, args...), " "),
		Short:   t.short,
		Long:    t.long,
		Example: t.example,
		Aliases: aliases,
		Args:    exactly(args...),
		RunE:    run,
	}
}

// need refuses a command line that lacks flags, all of them in one answer.
func need(cmd *cobra.Command, flags ...string) error {
	missing := slices.DeleteFunc(slices.Clone(flags), func(f string) bool { return cmd.Flags().Changed(f) })
	if len(missing) == 0 {
		return nil
	}
	return usagef("missing --%s", strings.Join(missing, " and --"))
}
