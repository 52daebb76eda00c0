package cli

import (
	"io"

	"github.com/spf13/cobra"

	"github.com/onpath/onpath/cli/render"
)

func newTrace(g *global) *cobra.Command {
	var protocol, gateway string
	var watch bool
	c := &cobra.Command{
		Use: "trace SRC DST -p tcp/80", Short: "Show which hops a packet passes, both ways, with counters", GroupID: groupSee,
		Long: `Show which hops a packet from SRC to DST passes, in order, both ways: node,
instance, state, packets and bytes of this flow, from the plan and from live flow
entries together; -o wide adds where each line is from, and what all flows brought.
ALL-DROPPED counts the packets of all flows that were dropped there, each drop in one
row alone. What a mirror sends is no part of it: copies end at the mirror.
Where entries do not tell how this flow goes on, behind a proxy for instance, a note
says so, and the plan follows. Lines that begin with ! say where live differs from
planned, or where traffic bypasses the chain.

SRC may have a port (10.1.0.2:40000) to mean one flow; else any flow is shown.

With --watch every hop counts this flow's packets from then on, and what each was
given, gave on and dropped, and why, is shown every second; -o json writes one
object a line.`,
		Example: examples("onpath trace 10.1.0.2 10.9.0.2 -p tcp/80", "onpath trace 10.1.0.2:40000 10.9.0.2 -p tcp/443 -o json",
			"onpath trace 2001:db8::2 2001:db8:9::2 -p icmp"),
		Args: cobra.ExactArgs(2),
		RunE: func(c *cobra.Command, args []string) error {
			if err := g.checkOutput(outWide); err != nil {
				return err
			}
			if watch && g.output != outTable && g.output != outJSON {
				return badUsage("--watch prints as table or json")
			}
			tuple, err := render.ParseFlow(args[0], args[1], protocol)
			if err != nil {
				return err
			}
			cl, err := g.client()
			if err != nil {
				return err
			}
			defer cl.Close()
			if watch {
				return g.watchFlow(c, cl, tuple, gateway)
			}
			t, err := cl.Trace(c.Context(), tuple, gateway)
			if err != nil {
				return err
			}
			return g.print(c, t, func(w io.Writer) error { return render.Trace(w, t, g.output == outWide) })
		},
	}
	c.Flags().StringVarP(&protocol, "protocol", "p", "", "tcp/80, udp/53, icmp or a protocol number (required)")
	c.Flags().StringVar(&gateway, "gateway", "", "the gateway where the packet enters (default all)")
	c.Flags().BoolVar(&watch, "watch", false, "count from now on where the flow's packets end, every second until Ctrl-C")
	_ = c.MarkFlagRequired("protocol")
	return c
}
