package cli

import (
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/outcrop-cloud/outcrop/internal/api"
	"github.com/outcrop-cloud/outcrop/internal/compute"
)

type instanceType = api.InstanceType

var instanceTypes = &noun[instanceType]{
	one: "instance type", command: "instance-type",
	path: func(*app, string) string { return "/v1/compute/instance-types" },
	id:   func(t *instanceType) string { return t.Name },
	columns: []field[instanceType]{
		{"NAME", func(t *instanceType, _ time.Time) string { return t.Name }},
		{"VCPUS", func(t *instanceType, _ time.Time) string { return strconv.FormatInt(t.VCPUs, 10) }},
		{"MEMORY", func(t *instanceType, _ time.Time) string { return formatSize(t.MemoryBytes) }},
		{"ROOT", func(t *instanceType, _ time.Time) string { return formatSize(t.RootVolumeBytes) }},
	},
}

func newInstanceType(a *app) *cobra.Command {
	return group("instance-type", "List the sizes that an instance can have",
		"An instance type is a named size. An instance can also have a size of its own: --vcpus and --memory.",
		"  outcrop instance-type list", []string{"instance-types", "type", "types", "flavor"},
		instanceTypes.listCommand(a, text{"List the instance types",
			"Lists the catalog of the server, smallest first. ROOT is the root volume that an instance gets where the create names none.",
			"  outcrop instance-type list"}))
}

func completeTypes(c *cobra.Command) {
	var names []string
	for _, t := range compute.Catalog {
		names = append(names, t.Name)
	}
	completeWords(c, "type", names...)
}
