package cli

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/onpath/onpath"
)

func newNodeAccept(g *global) *cobra.Command {
	all := false
	c := &cobra.Command{
		Use: "accept NAME… | --all", DisableFlagsInUseLine: true, Short: "Have nodes that wait follow the server's store",
		Long: `Have nodes that wait follow the server's store, as their Node objects say. A node
waits, and keeps what it runs, while it holds the plan of another store (this one's
was lost, or the node served another installation), while it asks for a cloudlet or
uplinks that its token is not for, or while it cannot be beside what is there. Its
condition Accepted says which (onpath describe node NAME).

A node that holds the plan of another store loses what this store does not name:
apply your chains first.`,
		Example: examples("onpath get nodes -o wide", "onpath node accept fra1-gw1", "onpath node accept --all"),
		Args:    cobra.ArbitraryArgs, ValidArgsFunction: g.completeKind(onpath.KindNode),
		RunE: func(c *cobra.Command, names []string) error {
			if all == (len(names) > 0) {
				return badUsage("name nodes, or write --all")
			}
			cl, err := g.client()
			if err != nil {
				return err
			}
			defer cl.Close()
			if all {
				list, _, err := cl.List(c.Context(), onpath.KindNode, "")
				if err != nil {
					return err
				}
				for _, o := range list {
					if !o.(*onpath.Node).Accepted() {
						names = append(names, o.Meta().Name)
					}
				}
			}
			for _, name := range names {
				if err := cl.AcceptNode(c.Context(), name); err != nil {
					return err
				}
				if _, err := fmt.Fprintf(c.OutOrStdout(), "node %s accepted\n", name); err != nil {
					return err
				}
			}
			if len(names) == 0 {
				_, err = fmt.Fprintln(c.OutOrStdout(), "no node waits")
			}
			return err
		},
	}
	c.Flags().BoolVar(&all, "all", false, "all nodes that wait")
	return c
}
