package cli

import (
	"net/http"

	"github.com/spf13/cobra"
)

func newOpenAPI(a *app) *cobra.Command {
	var asYAML bool
	c := command("openapi", text{"Print the OpenAPI document of the API",
		"Prints the OpenAPI 3.1 document of the server, as JSON, or as YAML with --yaml or -o yaml. It needs no token.",
		"  outcrop openapi > outcrop.json\n  outcrop openapi --yaml"},
		[]string{"api"}, nil, func(cmd *cobra.Command, _ []string) error {
			path := "/openapi.json"
			if asYAML || a.flags.output == "yaml" {
				path = "/openapi.yaml"
			}
			return a.do(cmd.Context(), http.MethodGet, path, nil, a.stdout)
		})
	c.Flags().BoolVar(&asYAML, "yaml", false, "as YAML")
	return c
}
