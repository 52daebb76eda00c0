package cli

import (
	"context"
	"fmt"
	"io"
	"os"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/api/client"
	"github.com/onpath/onpath/cli/render"
	"github.com/onpath/onpath/cli/table"
	"github.com/onpath/onpath/cli/terminal"
)

func newTop(g *global) *cobra.Command {
	var every time.Duration
	var once bool
	c := &cobra.Command{
		Use: "top [instances|nodes|chains]", GroupID: groupSee,
		Short: "Show what instances, nodes or chains use, the busiest first",
		Long: `Show what instances use and carry, the busiest first, again and again until
Ctrl-C. Into a file or pipe it writes once.

- PPS and BPS are the packets and bits a second that the instance is given.
- FLOWS are the flows through the instance, both directions being one, until
  they have rested for their idle time. A proxy has its clients' flows or its
  own, whichever are more.
- DROPPED leaves out what a mirror sends: that ends at the mirror by design, and
  has a line below.
- "-" stands where the instance's node is not connected.

Of nodes and chains it shows the sums over their instances. A chain's PPS, BPS and
FLOWS are those of its element that is given most: a packet passes several.`,
		Example:   examples("onpath top", "onpath top chains", "onpath top nodes --once -o json"),
		Args:      cobra.MaximumNArgs(1),
		ValidArgs: []string{"instances", "nodes", "chains"},
		RunE: func(c *cobra.Command, args []string) error {
			kind, err := topKind(args)
			if err != nil {
				return err
			}
			if err := g.checkOutput(); err != nil {
				return err
			}
			if every < 200*time.Millisecond {
				return badUsage("--every %s is too often; 200ms is the least", every)
			}
			cl, err := g.client()
			if err != nil {
				return err
			}
			defer cl.Close()
			f, ok := c.OutOrStdout().(*os.File)
			return g.top(c, cl, kind, every, once || g.output != outTable || !ok || !terminal.Is(f))
		},
	}
	c.Flags().DurationVar(&every, "every", time.Second, "time between two looks")
	c.Flags().BoolVar(&once, "once", false, "write once and end")
	g.tenantFlag(c, "only this tenant's")
	return c
}

// topKind is what the command is to sum up.
func topKind(args []string) (onpath.Kind, error) {
	if len(args) == 0 {
		return onpath.KindInstance, nil
	}
	kind, err := parseKind(args[0])
	if err == nil && kind != onpath.KindInstance && kind != onpath.KindNode && kind != onpath.KindChain {
		err = badUsage("top shows instances, nodes or chains, not %s", kind.Plural())
	}
	return kind, err
}

// topRows are the rates as they are shown, in both forms.
func (g *global) topRows(ctx context.Context, cl *client.Client, kind onpath.Kind, rates []render.Rate) (any, *table.Table, error) {
	if kind == onpath.KindInstance {
		return rates, render.Top(rates), nil
	}
	list, _, err := cl.List(ctx, kind, g.tenant)
	if err != nil {
		return nil, nil, err
	}
	groups := render.ByNode(list, rates)
	if kind == onpath.KindChain {
		groups = render.ByChain(list, rates)
	}
	return groups, render.TopGroups(kind, groups), nil
}

func (g *global) top(c *cobra.Command, cl *client.Client, kind onpath.Kind, every time.Duration, once bool) error {
	before, _, err := g.loads(c.Context(), cl)
	if err != nil {
		return err
	}
	for last := time.Now(); ; {
		select {
		case <-c.Context().Done():
			return nil
		case <-time.After(every):
		}
		after, away, err := g.loads(c.Context(), cl)
		if err != nil {
			return err
		}
		now := time.Now()
		rates := render.Rates(before, after, now.Sub(last))
		before, last = after, now
		if !once {
			fmt.Fprint(c.OutOrStdout(), "\x1b[H\x1b[2J")
		}
		value, rows, err := g.topRows(c.Context(), cl, kind, rates)
		if err != nil {
			return err
		}
		err = g.print(c, value, func(w io.Writer) error {
			if err := rows.Write(w); err != nil {
				return err
			}
			for _, n := range render.TopNotes(rates) {
				fmt.Fprintln(w, n)
			}
			for _, a := range away {
				fmt.Fprintf(w, "! %s\n", a)
			}
			return nil
		})
		if err != nil || once {
			return err
		}
	}
}

// loads asks all nodes; away says why some did not answer.
func (g *global) loads(ctx context.Context, cl *client.Client) (list []render.Load, away []string, err error) {
	instances, _, err := cl.List(ctx, onpath.KindInstance, g.tenant)
	if err != nil {
		return nil, nil, err
	}
	counters, err := cl.Counters(ctx, "")
	if err != nil {
		return nil, nil, err
	}
	usage, err := cl.Usage(ctx, "")
	if err != nil {
		return nil, nil, err
	}
	for node, why := range counters.Away {
		away = append(away, node+": "+why)
	}
	list = render.Loads(instances, counters.Nodes, usage.Nodes)
	for _, l := range list {
		if _, told := counters.Away[l.Node]; l.Away && !told {
			away = append(away, l.Node+" is not connected to the server: what its instances carry is not known, and the state is what "+
				"was heard last")
		}
	}
	slices.Sort(away)
	return list, slices.Compact(away), nil
}
