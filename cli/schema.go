package cli

import (
	"github.com/spf13/cobra"

	"github.com/onpath/onpath/api/manifest"
)

func newSchema(*global) *cobra.Command {
	return &cobra.Command{
		Use:   "schema",
		Short: "Print the JSON Schema of resources, for editors",
		Long: "Print the JSON Schema (draft 2020-12) of resources. Editors with a YAML language\nserver use it to complete and " +
			"check files:\n\n  # yaml-language-server: $schema=./onpath.schema.json",
		Example: examples("onpath schema >onpath.schema.json"),
		GroupID: groupAround,
		Args:    cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			_, err := c.OutOrStdout().Write(manifest.Schema)
			return err
		},
	}
}
