package cli

import (
	"bytes"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/api/manifest"
	"github.com/onpath/onpath/api/wire"
	"github.com/onpath/onpath/cli/table"
)

func newAccelerate(g *global) *cobra.Command {
	a := &applyFlags{global: g}
	var between, ingress []string
	var name, congestion, syn string
	var sizes []string
	c := &cobra.Command{
		Use:   "accelerate ADDRESS:PORT... --between NODE,NODE...",
		Short: "Relay connections to an origin over short legs", GroupID: groupUse,
		Long: `Have TCP connections to origins relayed by nodes, so that slow start runs over
several short round trips instead of one long one. Those of the nodes that are
gateways take over the connections that pass them; the relays behind are chosen by
the size of the transfer and the round trips that the nodes measure between
themselves and to the origin. It writes an Accelerator, and waits until it works.

To see what is used: onpath describe accelerator NAME. To end it: onpath delete
accelerator NAME.`,
		Example: examples("onpath accelerate 198.51.100.10:443 --between irl,virginia,california --size 500k"),
		Args:    cobra.MinimumNArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			if len(between) == 0 {
				return badUsage("--between: name the nodes that may relay; onpath get nodes lists them")
			}
			o, err := acceleratorFor(args, between, ingress, name, sizes)
			if err != nil {
				return err
			}
			o.Spec.Congestion, o.Spec.SYN = congestion, onpath.SYNAnswer(syn)
			var text bytes.Buffer
			if err := manifest.Encode(&text, o); err != nil {
				return err
			}
			docs, err := manifest.Parse(text.Bytes(), "accelerate", ".")
			if err != nil {
				return err
			}
			return a.apply(c, docs)
		},
	}
	f := c.Flags()
	f.StringSliceVar(&between, "between", nil, "`nodes` that may relay")
	f.StringSliceVar(&ingress, "ingress", nil, "`nodes` of them that take connections over (default: all that are gateways)")
	f.StringSliceVar(&sizes, "size", nil,
		"typical `size` of a transfer, such as 500k; one for all origins or one for each (default 100Ki)")
	f.StringVar(&congestion, "congestion", "", "congestion control of all legs, such as cubic or bbr (default: the kernel's)")
	f.StringVar(&syn, "syn", "", "when a client's SYN is answered: answer (at once, the default), or wait until the origin has answered")
	f.StringVar(&name, "name", "", "name of the accelerator (default: of the first origin's address and port)")
	f.BoolVar(&a.dryRun, "dry-run", false, "change nothing; show what would change")
	f.DurationVar(&a.confirm, "confirm", 0, "undo everything after this time unless onpath confirm comes")
	f.BoolVar(&a.wait, "wait", true, "wait until connections are relayed")
	f.DurationVar(&a.timeout, "timeout", 2*time.Minute, "how long to wait")
	g.tenantFlag(c, "whose accelerator it is")
	return c
}

func acceleratorFor(origins, between, ingress []string, name string, sizes []string) (*onpath.Accelerator, error) {
	o := &onpath.Accelerator{TypeMeta: onpath.TypeMeta{APIVersion: onpath.APIVersion, Kind: onpath.KindAccelerator}}
	o.Spec.Between, o.Spec.Ingress = between, ingress
	if n := len(sizes); n > 1 && n != len(origins) {
		return nil, badUsage("--size: there are %d sizes for %d origins; write one for all, or one for each", n, len(origins))
	}
	for i, s := range origins {
		at, err := netip.ParseAddrPort(s)
		if err != nil {
			return nil, badUsage("%q is no ADDRESS:PORT, such as 198.51.100.10:443", s)
		}
		x := onpath.AcceleratedOrigin{Address: at.Addr(), Port: at.Port()}
		if len(sizes) > 0 {
			size := sizes[min(i, len(sizes)-1)]
			if err := x.Size.UnmarshalText([]byte(size)); err != nil {
				return nil, badUsage("--size %s: %w", size, err)
			}
		}
		o.Spec.Origins = append(o.Spec.Origins, x)
	}
	if name == "" {
		first := o.Spec.Origins[0]
		name = "to-" + strings.NewReplacer(".", "-", ":", "-").Replace(fmt.Sprintf("%s-%d", first.Address, first.Port))
	}
	o.Metadata.Name = name
	return o, nil
}

func newMeasure(g *global) *cobra.Command {
	c := &cobra.Command{
		Use: "measure", Short: "Show the round trips and the loss between nodes", GroupID: groupSee,
		Long: `Show what nodes measured last: round trip (median of 16 questions) and loss, of
other nodes by STAMP (RFC 8762), of accelerators' origins by TCP handshakes. A pair
is measured once for all who ask: accelerators, and objects of kind Measurement. A
value changes when it has moved by the asker's threshold.`,
		Example: examples("onpath measure", "onpath measure -o json"),
		Args:    cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			cl, err := clientToPrint(g)
			if err != nil {
				return err
			}
			defer cl.Close()
			d, err := cl.Distances(c.Context())
			if err != nil {
				return err
			}
			return g.print(c, d, func(w io.Writer) error { return writeDistances(w, d) })
		},
	}
	return c
}

func writeDistances(w io.Writer, d *wire.PerNode[[]onpath.Distance]) error {
	t := table.New("FROM", "TO", ">RTT", ">LOSS")
	for _, n := range sortedNames(d.Nodes) {
		for _, x := range d.Nodes[n] {
			rtt := "no answer"
			if x.RTT > 0 {
				rtt = fmt.Sprintf("%.1f ms", time.Duration(x.RTT).Seconds()*1000)
			}
			t.Row(n, x.To, rtt, fmt.Sprintf("%.0f %%", x.Loss*100))
		}
	}
	if err := t.Write(w); err != nil {
		return err
	}
	for _, n := range sortedNames(d.Away) {
		fmt.Fprintf(w, "node %s is not asked: %s\n", n, d.Away[n])
	}
	return nil
}

func sortedNames[V any](m map[string]V) []string {
	var names []string
	for n := range m {
		names = append(names, n)
	}
	slices.Sort(names)
	return names
}
