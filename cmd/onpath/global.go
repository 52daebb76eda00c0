package main

import (
	"os"

	"github.com/spf13/cobra"
)

// global are the flags of all commands.
type global struct {
	output string
	server string
	tenant string
}

func (g *global) flags(root *cobra.Command) {
	f := root.PersistentFlags()
	f.StringVarP(&g.output, "output", "o", outTable, "form of the output: table, json or yaml")
	f.StringVar(&g.server, "server", os.Getenv("ONPATH_SERVER"), "the server: unix:///path or https://host:port (default $ONPATH_SERVER, else this machine's)")
	_ = root.RegisterFlagCompletionFunc("output", cobra.FixedCompletions(outputs, cobra.ShellCompDirectiveNoFileComp))
}
