package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/api/client"
	"github.com/onpath/onpath/internal/render"
	"github.com/onpath/onpath/internal/terminal"
)

func newTrace(g *global) *cobra.Command {
	var protocol, gateway string
	var watch bool
	c := &cobra.Command{
		Use: "trace SRC DST -p tcp/80", Short: "Show which hops a packet passes, both ways, with counters", GroupID: groupSee,
		Long: `Show which hops a packet from SRC to DST passes, in order, both ways: node,
instance, state, packets and bytes of this flow, from the plan and from live flow
entries together; -o wide adds where each line is from, and what all flows brought.
DROPPED counts what came from there of all flows, and is told once; what a mirror
sends ends at it by design, and is told in words. Lines that begin with ! say
where live differs from planned, or where traffic bypasses the chain.

SRC may have a port (10.1.0.2:40000) to mean one flow; else any flow is shown.

With --watch every hop counts this flow's packets from then on, and what each was
given, gave on and dropped, and why, is shown every second; -o json writes one
object a line.`,
		Example: examples("onpath trace 10.1.0.2 10.9.0.2 -p tcp/80", "onpath trace 10.1.0.2:40000 10.9.0.2 -p tcp/443 -o json", "onpath trace 2001:db8::2 2001:db8:9::2 -p icmp"),
		Args:    cobra.ExactArgs(2),
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

func newEvents(g *global) *cobra.Command {
	var follow bool
	var about string
	c := &cobra.Command{
		Use: "events", Short: "Show what happened, the latest last", GroupID: groupSee,
		Example: examples("onpath events", "onpath events -f", "onpath events --about 'chain default/web'"),
		Args:    cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if err := g.checkOutput(); err != nil {
				return err
			}
			cl, err := g.client()
			if err != nil {
				return err
			}
			defer cl.Close()
			return g.events(c, cl, follow, about)
		},
	}
	c.Flags().BoolVarP(&follow, "follow", "f", false, "go on with what happens from now on")
	c.Flags().StringVar(&about, "about", "", "only about this object, as events name it")
	g.tenantFlag(c, "only this tenant's")
	return c
}

func (g *global) events(c *cobra.Command, cl *client.Client, follow bool, about string) error {
	list, revision, err := cl.List(c.Context(), onpath.KindEvent, g.tenant)
	if err != nil {
		return err
	}
	list = slices.DeleteFunc(list, func(o onpath.Object) bool {
		return about != "" && !strings.Contains(o.(*onpath.Event).Spec.About, about)
	})
	slices.SortStableFunc(list, func(a, b onpath.Object) int {
		return a.(*onpath.Event).Spec.Time.Compare(b.(*onpath.Event).Spec.Time)
	})
	if !follow {
		return g.print(c, list, func(w io.Writer) error { return render.Objects(w, onpath.KindEvent, list, time.Now(), false) })
	}
	f := g.follow(c.OutOrStdout(), onpath.KindEvent)
	if err := f.begin(list); err != nil {
		return err
	}
	return cl.Watch(c.Context(), client.WatchOptions{Kinds: []onpath.Kind{onpath.KindEvent}, Tenant: g.tenant, From: revision}, func(e client.Change) error {
		if event, ok := e.Object.(*onpath.Event); !ok || about != "" && !strings.Contains(event.Spec.About, about) {
			return nil
		}
		return f.show(e.Key, e.Object)
	})
}

func newTop(g *global) *cobra.Command {
	var every time.Duration
	var once bool
	c := &cobra.Command{
		Use: "top", Short: "Show what instances use and carry, the busiest first", GroupID: groupSee,
		Long:    "Show what instances use and carry, the busiest first, again and again until\nCtrl-C. Into a file or pipe it writes once. PPS and BPS are the packets and\nbits a second that it is given. FLOWS are those that lead through it, both\ndirections of a flow being one, until they have rested for their idle time; a\nproxy has the flows of its clients or its own, whichever are more. What a mirror\nsends ends at it by design: DROPPED leaves it out, and a line below tells it.\nOf instances whose node is not connected, nothing is known: \"-\".",
		Example: examples("onpath top", "onpath top --once -o json"),
		Args:    cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
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
			return g.top(c, cl, every, once || g.output != outTable || !ok || !terminal.Is(f))
		},
	}
	c.Flags().DurationVar(&every, "every", time.Second, "time between two looks")
	c.Flags().BoolVar(&once, "once", false, "write once and end")
	g.tenantFlag(c, "only this tenant's")
	return c
}

func (g *global) top(c *cobra.Command, cl *client.Client, every time.Duration, once bool) error {
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
		err = g.print(c, rates, func(w io.Writer) error {
			if err := render.Top(rates).Write(w); err != nil {
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
			away = append(away, l.Node+" is not connected to the server: what its instances carry is not known, and the state is what was heard last")
		}
	}
	slices.Sort(away)
	return list, slices.Compact(away), nil
}
