package cli

import (
	"github.com/spf13/cobra"

	"github.com/onpath/onpath/engine"
)

// newEngine is a process that the node agent starts for each instance of a wasm function.
func newEngine(*global) *cobra.Command {
	var p engine.Process
	c := &cobra.Command{
		Use:    "engine",
		Short:  "Run the modules of one instance of a wasm function",
		Hidden: true,
		Args:   cobra.NoArgs,
		RunE:   func(c *cobra.Command, _ []string) error { return p.Main(c.Context()) },
	}
	f := c.Flags()
	f.IntVar(&p.Control, "control", 3, "the descriptor of the control socket")
	f.StringVar(&p.Empty, "empty-root", "", "a folder that becomes the root")
	f.IntVar(&p.UID, "uid", 0, "the user that the process becomes")
	f.IntVar(&p.GID, "gid", 0, "the group that the process becomes")
	return c
}
