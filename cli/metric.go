package cli

import (
	"math"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/onpath/onpath"
)

func newMetric(g *global) *cobra.Command {
	var at string
	c := &cobra.Command{
		Use: "metric CHAIN VALUE", Short: "Report a value that a chain's scaling goes by", GroupID: groupUse,
		Long: `Report what the application measures of itself, such as requests served in a
second, to a chain with spec.scaling and metric: pushed. Report it several times
in each of its windows; without values nothing is scaled. docs/scaling.md tells more.`,
		Example: examples("onpath metric web 412", "onpath metric acme/web 0.031 --at 2026-11-24T05:30:00Z"),
		Args:    cobra.ExactArgs(2),
		RunE: func(c *cobra.Command, args []string) error {
			value, err := strconv.ParseFloat(args[1], 64)
			if err != nil || math.IsNaN(value) || math.IsInf(value, 0) {
				return badUsage("VALUE %s: that is not a number such as 412", args[1])
			}
			var when time.Time
			if at != "" {
				if when, err = time.Parse(time.RFC3339Nano, at); err != nil {
					return badUsage("--at %s: that is not a time such as 2026-11-24T05:30:00Z", at)
				}
			}
			k, err := g.key(onpath.KindChain, args[0])
			if err != nil {
				return err
			}
			cl, err := g.client()
			if err != nil {
				return err
			}
			defer cl.Close()
			return cl.PushMetric(c.Context(), k, value, when)
		},
	}
	c.Flags().StringVar(&at, "at", "", "the `time` (RFC 3339) at which it was measured; default now")
	return c
}
