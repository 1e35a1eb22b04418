package cli

import (
	"net/http"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/outcrop-cloud/outcrop/internal/api"
)

var fencedColumns = []field[api.FencedInstance]{
	{"INSTANCE", func(i *api.FencedInstance, _ time.Time) string { return i.ID }},
	{"PROJECT", func(i *api.FencedInstance, _ time.Time) string { return i.ProjectID }},
	{"NAME", func(i *api.FencedInstance, _ time.Time) string { return i.Name }},
	{"STATE", func(i *api.FencedInstance, _ time.Time) string { return i.State }},
	{"BECOMES", func(i *api.FencedInstance, _ time.Time) string { return i.Becomes }},
	{"RELEASES", func(i *api.FencedInstance, _ time.Time) string {
		if i.Releases == nil {
			return ""
		}
		return strings.Join(append(append([]string{}, i.Releases.PrivateIPs...), i.Releases.VolumeIDs...), ", ")
	}},
}

func newNodeDeclareOff(a *app) *cobra.Command {
	var in api.DeclareOff
	var yes bool
	c := command("declare-off", text{"Say that a node which nobody hears of is dead",
		`Takes your word that the node's machine is off: look at it, or pull its plug, before
you say so. Only a node that does not report can be declared off. Without --yes it
only shows what would become of each instance there.

What was to be terminated is, and gives back its address, volumes and name. What
ran counts as stopped. Nothing is started elsewhere: the disks are on that machine.
Should the node come back, VMs that still run there are taken down.`,
		"  outcrop node declare-off rack1-07\n  outcrop node declare-off rack1-07 --yes --reason 'power supply burnt'"},
		nil, []string{nodes.argument()}, func(cmd *cobra.Command, args []string) error {
			in.DryRun = !yes
			var out item[api.DeclaredOff]
			if err := a.do(cmd.Context(), http.MethodPost, api.NodePath(args[0], "declare-off"), &in, &out); err != nil {
				return err
			}
			if in.DryRun {
				a.notef("nothing is done yet; to do it: outcrop node declare-off %s --yes", args[0])
			} else {
				a.notef("node %s is declared off", args[0])
			}
			if a.flags.output != "table" {
				return a.encode(a.stdout, out)
			}
			var rows []item[api.FencedInstance]
			for _, i := range out.value.Instances {
				row, err := newItem(i)
				if err != nil {
					return err
				}
				rows = append(rows, row)
			}
			return printList(a, rows, fencedColumns, func(i *api.FencedInstance) string { return i.ID })
		})
	c.Flags().BoolVar(&yes, "yes", false, "do it: the machine is off for certain")
	c.Flags().StringVar(&in.Reason, "reason", "", "for whoever asks later")
	c.ValidArgsFunction = nodes.complete(a)
	return c
}
