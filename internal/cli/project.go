package cli

import (
	"time"

	"github.com/spf13/cobra"

	"github.com/outcrop-cloud/outcrop/internal/api"
)

type project = api.Project

var projects = &noun[project]{
	one: "project", command: "project",
	path: func(_ *app, id string) string { return pathOf("/v1/projects", id) },
	id:   func(p *project) string { return p.ID },
	columns: []field[project]{
		{"ID", func(p *project, _ time.Time) string { return p.ID }},
		{"NAME", func(p *project, _ time.Time) string { return p.Name }},
		{"AGE", func(p *project, now time.Time) string { return age(p.CreatedAt, now) }},
	},
}

func newProject(a *app) *cobra.Command {
	return group("project", "Create, list and delete projects",
		"A project holds instances and images, and keeps them apart from those of others. One named default exists from the start.",
		"  outcrop project create shop --name \"The shop\"\n  outcrop project list", []string{"projects"},
		newProjectCreate(a), newProjectQuota(a),
		projects.listCommand(a, text{"List the projects", "Lists all projects. Operators only.", "  outcrop project list"}),
		projects.deleteCommand(a, "delete", "deleted", []string{"rm"}, text{"Delete an empty project",
			"Deletes a project. It is refused while the project holds instances or images.", "  outcrop project delete shop"}),
	)
}

func newProjectCreate(a *app) *cobra.Command {
	var in api.CreateProject
	c := command("create", text{"Create a project",
		"Creates a project. The id is 1 to 63 of a-z 0-9 -; it stands in paths and flags and never changes. Operators only.",
		"  outcrop project create shop\n  outcrop project create shop --name \"The shop\""},
		[]string{"add"}, []string{projects.argument()}, func(cmd *cobra.Command, args []string) error {
			in.ID = args[0]
			var it item[project]
			if err := a.post(cmd.Context(), projects.path(a, ""), &in, &it); err != nil {
				return err
			}
			if a.flags.output != "table" {
				return printOne(a, it, projects.columns, projects.id)
			}
			return printList(a, []item[project]{it}, projects.columns, projects.id)
		})
	c.Flags().StringVar(&in.Name, "name", "", "name to show (the id where it is left out)")
	return c
}
