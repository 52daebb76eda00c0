package main

import (
	"github.com/spf13/cobra"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/api/client"
)

func newLogs(g *global) *cobra.Command {
	var o client.LogsOptions
	c := &cobra.Command{
		Use: "logs INSTANCE", Short: "Show what an instance writes", GroupID: groupSee,
		Long: `Show what an instance writes to standard output and error. A deployment's name
will do if it has one instance beside those that drain. --previous shows what the
run before the present one wrote, at most its last MiB, until it ended or was told
to end.

What it writes is kept as it is, without times, so there is no --since: --tail
shows the end, and -f what comes from now on, until Ctrl-C or the instance's end.
If the node's agent or the server goes away before, it ends with code 4.`,
		Example: examples("onpath logs web-cache-x2k4d", "onpath logs -f --tail 20 web-cache", "onpath logs --previous web-cache"),
		Args:    cobra.ExactArgs(1), ValidArgsFunction: g.completeKind(onpath.KindInstance),
		RunE: func(c *cobra.Command, args []string) error {
			if c.Flags().Changed("tail") && o.Tail < 0 {
				return badUsage("--tail %d: a number of lines is 0 or more", o.Tail)
			}
			if o.Follow && o.Previous {
				return badUsage("an earlier run writes nothing more: there is nothing to follow")
			}
			cl, err := g.client()
			if err != nil {
				return err
			}
			defer cl.Close()
			i, err := g.instance(c.Context(), cl, args[0])
			if err != nil {
				return err
			}
			return cl.Logs(c.Context(), i.Metadata.Tenant, i.Metadata.Name, o, c.OutOrStdout())
		},
	}
	c.Flags().BoolVarP(&o.Follow, "follow", "f", false, "go on with what it writes from now on")
	c.Flags().BoolVar(&o.Previous, "previous", false, "what the run before the present one wrote")
	c.Flags().IntVar(&o.Tail, "tail", -1, "only the last `lines` (default all)")
	c.Flags().Lookup("tail").DefValue = "0" // the help says what the default means
	g.tenantFlag(c, "tenant of the instance")
	return c
}
