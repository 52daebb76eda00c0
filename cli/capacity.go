package cli

import (
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/cli/render"
)

func newCapacity(g *global) *cobra.Command {
	var from, to, cloudlet string
	c := &cobra.Command{
		Use: "capacity", Short: "Show what nodes have, have promised and have free over time", GroupID: groupSee,
		Long: `Show for each node its total capacity, the operator's share, and what is promised
to reservations and free, from each time on at which that changes.`,
		Example: examples("onpath capacity",
			"onpath capacity --cloudlet fra1 --from 2026-12-24T18:00:00Z --to 2026-12-25T00:00:00Z -o json"),
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if err := g.checkOutput(); err != nil {
				return err
			}
			a, err := instant("--from", from)
			if err != nil {
				return err
			}
			z, err := instant("--to", to)
			if err != nil {
				return err
			}
			cl, err := g.client()
			if err != nil {
				return err
			}
			defer cl.Close()
			v, err := cl.Pool().Capacity(c.Context(), cloudlet, a, z)
			if err != nil {
				return err
			}
			return g.print(c, v, func(w io.Writer) error { return render.Capacity(w, v) })
		},
	}
	f := c.Flags()
	f.StringVar(&from, "from", "", "a time such as 2026-12-24T18:00:00Z; default now")
	f.StringVar(&to, "to", "", "likewise; default a day after --from")
	f.StringVar(&cloudlet, "cloudlet", "", "only this one")
	return c
}

func instant(flag, s string) (time.Time, error) {
	if s == "" {
		return time.Time{}, nil
	}
	t, err := time.Parse(time.RFC3339Nano, s)
	if err != nil {
		return t, badUsage("%s %s is not a time: write 2026-12-24T18:00:00Z, or with an offset from UTC", flag, s)
	}
	return t, nil
}

func newMove(g *global) *cobra.Command {
	var to string
	c := &cobra.Command{
		Use: "move INSTANCE", Short: "Move an instance of a reservation to another node", GroupID: groupRun,
		Long: `Move an instance of a reservation to another node of its cloudlet: a new one starts
there, new flows go to it, the old one drains and stops. Both places are promised
meanwhile.`,
		Example: examples("onpath move ids-0k3fz", "onpath move acme/ids-0k3fz --to fra1-node2"),
		Args:    cobra.ExactArgs(1), ValidArgsFunction: g.completeKind(onpath.KindInstance),
		RunE: func(c *cobra.Command, args []string) error {
			if err := g.checkOutput(); err != nil {
				return err
			}
			tenant, name, ok := strings.Cut(args[0], "/")
			if !ok {
				tenant, name = onpath.DefaultTenant, args[0]
			}
			cl, err := g.client()
			if err != nil {
				return err
			}
			defer cl.Close()
			q, err := cl.Pool().Move(c.Context(), tenant, name, to)
			if err != nil {
				return err
			}
			return g.print(c, q, func(w io.Writer) error {
				_, err := fmt.Fprintf(w, "%s: %s\n", args[0], q.Reason)
				return err
			})
		},
	}
	c.Flags().StringVar(&to, "to", "", "the node; default the least loaded where it fits")
	return c
}
