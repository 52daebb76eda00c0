package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/cli/blackout"
	"github.com/onpath/onpath/cli/table"
	"github.com/onpath/onpath/lab"
	"github.com/onpath/onpath/node/fault"
)

// faultFlags are those of all faults.
type faultFlags struct {
	g       *global
	lab     string
	probe   string
	flows   int
	watch   time.Duration
	lasts   time.Duration
	percent float64
	delay   time.Duration
	yes     bool
}

func newFault(g *global) *cobra.Command {
	f := &faultFlags{g: g}
	c := group("fault", "Cause faults on purpose, measure how long flows are interrupted", groupSee,
		f.instance("kill-instance", "Kill an instance's program (SIGKILL); its node starts it again", onpath.FaultKill),
		f.instance("stall-instance", "Stop an instance's processes (SIGSTOP) for a time", onpath.FaultStall),
		f.either("drop", "Lose some of an instance's or a lab link's packets for a time", onpath.FaultDrop),
		f.either("delay", "Delay an instance's or a lab link's packets for a time", onpath.FaultDelay),
		f.killNode(), f.cutLink(),
		newFaultKeeper())
	c.Long = `Cause faults on purpose, and measure how long flows are interrupted.

An instance is named as elsewhere: its deployment's name will do if it has one.
Instances and nodes take an operator and --yes. Hosts and links of a lab are this
machine's own, and take root. Every fault ends by itself after --for, also if this
command, the server or the agent dies meanwhile.

The blackout of a flow is the time from the first packet that does not come
through until the next one that does. It is measured from packets captured at the
uplinks of the cloudlet's gateways, for flows that come out as they came in; in a
lab, --probe SOURCE:DESTINATION sends flows of its own, 1,000 packets a second
each, and measures these. What is shorter than the time between two packets of a
flow cannot be seen; the report says how long that is.`
	return c
}

func (f *faultFlags) common(c *cobra.Command, lasts bool) {
	fl := c.Flags()
	fl.DurationVar(&f.watch, "watch", 3*time.Second,
		"measure blackouts for this long after the fault has begun (0: not at all; the command then ends at once, the fault when its "+
			"time is up)")
	fl.StringVar(&f.lab, "lab", "", "the lab to act or to probe in (default: the only one, where one is needed)")
	fl.StringVar(&f.probe, "probe", "", "SOURCE:DESTINATION, hosts of the lab: measure with flows of its own")
	fl.IntVar(&f.flows, "flows", 10, "how many flows --probe sends")
	if lasts {
		fl.DurationVar(&f.lasts, "for", 5*time.Second, "how long it lasts")
	}
}

func (f *faultFlags) instance(name, short string, kind onpath.FaultKind) *cobra.Command {
	c := &cobra.Command{
		Use: name + " INSTANCE --yes", Short: short,
		Example: examples("onpath fault "+name+" web-firewall-x3k9q --yes",
			"sudo onpath fault "+name+" web-firewall-x3k9q --yes --probe client:origin -o json"),
		Args: cobra.ExactArgs(1), ValidArgsFunction: f.g.completeKind(onpath.KindInstance),
		RunE: func(c *cobra.Command, args []string) error {
			outliveReader()
			return f.onInstance(c, kind, args[0])
		},
	}
	f.common(c, kind != onpath.FaultKill)
	c.Flags().BoolVar(&f.yes, "yes", false, "do it, though it may interrupt traffic")
	f.g.tenantFlag(c, "tenant of the instance")
	return c
}

func (f *faultFlags) either(name, short string, kind onpath.FaultKind) *cobra.Command {
	link := ""
	c := &cobra.Command{
		Use: name + " (INSTANCE --yes | --link LINK)", Short: short,
		Args: cobra.MaximumNArgs(1), ValidArgsFunction: f.g.completeKind(onpath.KindInstance),
		RunE: func(c *cobra.Command, args []string) error {
			outliveReader()
			switch {
			case link != "" && len(args) > 0 || link == "" && len(args) == 0:
				return badUsage("name an instance, or a link of a lab with --link")
			case link != "":
				return f.onLink(c, kind, link)
			}
			return f.onInstance(c, kind, args[0])
		},
	}
	f.common(c, true)
	fl := c.Flags()
	fl.StringVar(&link, "link", "", "a link of a lab: HOST:INTERFACE, or both ends with a hyphen")
	fl.BoolVar(&f.yes, "yes", false, "do it, though it may interrupt traffic")
	f.g.tenantFlag(c, "tenant of the instance")
	if kind == onpath.FaultDrop {
		c.Long = short + `.

An instance's packets are lost on the way in and again on the way out: of those
that pass it, --percent 20 takes 36 in 100. A link is passed once, and takes 20.`
		fl.Float64Var(&f.percent, "percent", 100, "of the packets, at random; at an instance of those in and of those out")
		c.Example = examples("onpath fault drop web-firewall-x3k9q --percent 5 --for 10s --yes",
			"sudo onpath fault drop --link gw1:underlay --percent 30 --for 5s --probe client:origin")
	} else {
		c.Long = short + `.

An instance's packets are delayed on the way in and again on the way out: those
that pass it take twice --by longer.`
		fl.DurationVar(&f.delay, "by", 100*time.Millisecond, "how much longer packets take, each way")
		c.Example = examples("onpath fault delay web-firewall-x3k9q --by 20ms --for 10s --yes",
			"sudo onpath fault delay --link gw1:core --by 50ms --for 5s")
	}
	return c
}

func (f *faultFlags) killNode() *cobra.Command {
	c := &cobra.Command{
		Use: "kill-node (NODE --yes | HOST)", Short: "Cut a node or a lab host off, kill what runs there",
		Long: `Cut a node or a lab host off and kill what runs there, for a time.

A node (--yes) loses its tunnels and the processes of all its instances, and its
agent is stopped until the fault ends, the server too where both are one process
(onpath up). What else the machine does goes on; it can be reached. What comes by
the uplinks of a gateway cannot be cut off: gateways are refused. A host of a lab
loses its links and all its processes.`,
		Example: examples("onpath fault kill-node n1 --for 5s --yes", "sudo onpath fault kill-node n1 --for 5s --probe client:origin"),
		Args:    cobra.ExactArgs(1), ValidArgsFunction: f.g.completeKind(onpath.KindNode),
		RunE: func(c *cobra.Command, args []string) error {
			outliveReader()
			if f.yes {
				return f.onNode(c, onpath.FaultRequest{Kind: onpath.FaultKillNode, Node: args[0]})
			}
			if err := f.checkAmounts(onpath.FaultKillNode); err != nil {
				return err
			}
			l, err := f.open(c)
			if err != nil {
				return f.orNode(err, onpath.FaultKillNode, args[0])
			}
			return f.run(c, l, nil, func(context.Context) (*faultDone, error) {
				killed, err := l.KillHost(args[0], f.lasts)
				done := &faultDone{Kind: string(onpath.FaultKillNode), Target: args[0], Until: time.Now().Add(f.lasts), Processes: killed}
				return done, f.orNode(err, onpath.FaultKillNode, args[0])
			})
		},
	}
	f.common(c, true)
	c.Flags().BoolVar(&f.yes, "yes", false, "do it to a node, though it may interrupt traffic")
	return c
}

func (f *faultFlags) cutLink() *cobra.Command {
	peer := ""
	c := &cobra.Command{
		Use: "cut-link (NODE --yes | LINK)", Short: "Make a node's tunnels or a lab link lose everything",
		Long: `Make a node's tunnels or a lab link lose everything for a time.

Of a node (--yes) all tunnels are cut, or those to one other node (--peer), with
what nodes ask each other; what else goes over the same cable is not.`,
		Example: examples("onpath fault cut-link n1 --for 1s --yes", "onpath fault cut-link n1 --peer n2 --for 1s --yes",
			"sudo onpath fault cut-link n1:underlay --for 1s --probe client:origin"),
		Args: cobra.ExactArgs(1), ValidArgsFunction: f.g.completeKind(onpath.KindNode),
		RunE: func(c *cobra.Command, args []string) error {
			outliveReader()
			switch {
			case f.yes:
				return f.onNode(c, onpath.FaultRequest{Kind: onpath.FaultCut, Node: args[0], Peer: peer})
			case peer != "":
				return badUsage("--peer is for the tunnels of a node; add --yes if one is meant")
			}
			return f.onLink(c, onpath.FaultCut, args[0])
		},
	}
	f.common(c, true)
	c.Flags().BoolVar(&f.yes, "yes", false, "do it to a node, though it may interrupt traffic")
	c.Flags().StringVar(&peer, "peer", "", "only the tunnels to this `node`")
	return c
}

// onNode asks the server.
func (f *faultFlags) onNode(c *cobra.Command, r onpath.FaultRequest) error {
	if f.lab != "" && f.probe == "" {
		return badUsage("--lab names where --probe sends, and --yes a node: leave --yes out if host or link %s of the lab is meant", r.Node)
	}
	if err := f.checkAmounts(r.Kind); err != nil {
		return err
	}
	r.For = onpath.Duration(f.lasts)
	return f.ask(c, r)
}

// ask has a node cause the fault. An instance is named as people do.
func (f *faultFlags) ask(c *cobra.Command, r onpath.FaultRequest) error {
	if err := r.Validate(); err != nil {
		return err
	}
	cl, err := f.g.client()
	if err != nil {
		return err
	}
	defer cl.Close()
	if r.Kind.OfNode() {
		if _, err := cl.Get(c.Context(), onpath.Key{Kind: onpath.KindNode, Name: r.Node}); err != nil {
			return err
		}
	} else {
		i, err := f.g.instance(c.Context(), cl, r.Instance)
		if err != nil {
			return err
		}
		r.Instance = i.Metadata.Tenant + "/" + i.Metadata.Name
	}
	var l *lab.Lab
	if f.probe != "" {
		if l, err = f.open(c); err != nil {
			return err
		}
	}
	return f.run(c, l, cl, func(ctx context.Context) (*faultDone, error) {
		did, err := cl.Fault(ctx, r)
		if err != nil {
			return nil, err
		}
		done := &faultDone{Kind: string(did.Kind), Target: did.Instance, Node: did.Node, Until: did.Until, Processes: did.Processes}
		if did.Kind.OfNode() {
			done.Target, done.Node, done.Peer = did.Node, "", did.Peer
		}
		return done, nil
	})
}

// orNode adds to why a name is nothing of a lab that a node may have been meant.
func (f *faultFlags) orNode(err error, kind onpath.FaultKind, name string) error {
	var e *onpath.Error
	if !kind.OfNode() || f.lab != "" || !errors.As(err, &e) || strings.Contains(name, ":") {
		return err
	}
	also := *e
	also.Remedy = strings.TrimPrefix(e.Remedy+"; or add --yes if node "+name+" is meant", "; ")
	return &also
}

// open is the lab meant.
func (f *faultFlags) open(c *cobra.Command) (*lab.Lab, error) {
	if err := needsRoot(c); err != nil {
		return nil, err
	}
	return (&labFlags{}).open(f.lab)
}

// faultDone is what was done and what came of it.
type faultDone struct {
	Kind      string           `json:"kind"`
	Target    string           `json:"target"`
	Node      string           `json:"node,omitempty"`
	Peer      string           `json:"peer,omitempty"`
	Until     time.Time        `json:"until,omitzero"`
	Processes []int            `json:"processes,omitempty"`
	Probe     *lab.GaugeReport `json:"probe,omitempty"`
	Flows     *blackout.Report `json:"flows,omitempty"`
}

func (f *faultFlags) onLink(c *cobra.Command, kind onpath.FaultKind, name string) error {
	if err := f.checkAmounts(kind); err != nil {
		return err
	}
	l, err := f.open(c)
	if err != nil {
		return f.orNode(err, kind, name)
	}
	link, err := l.FindLink(name)
	if err != nil {
		return f.orNode(err, kind, name)
	}
	return f.run(c, l, nil, func(ctx context.Context) (*faultDone, error) {
		done := &faultDone{Kind: string(kind), Target: link.Name(), Until: time.Now().Add(f.lasts)}
		switch kind {
		case onpath.FaultDrop:
			return done, l.Loss(link, f.percent/100, f.lasts)
		case onpath.FaultDelay:
			return done, l.Delay(ctx, link, f.delay, f.lasts)
		}
		return done, l.Cut(link, f.lasts)
	})
}

// checkAmounts refuses what a fault of this kind cannot be, by the flag's name.
func (f *faultFlags) checkAmounts(kind onpath.FaultKind) error {
	if f.watch < 0 {
		return badUsage("--watch %s: write a time such as 3s, or 0 to measure nothing", f.watch)
	}
	if f.flows < 1 {
		return badUsage("--flows %d: --probe sends 1 flow or more", f.flows)
	}
	switch {
	case kind == onpath.FaultKill:
	case f.lasts <= 0:
		return badUsage("--for %s: write how long it lasts, such as 5s", f.lasts)
	case f.lasts > time.Duration(onpath.MaxFault):
		return badUsage("--for %s: write at most %s", f.lasts, onpath.MaxFault)
	case kind == onpath.FaultDrop && !(f.percent > 0 && f.percent <= 100): // NaN is neither
		return badUsage("--percent %g: write a number above 0 and up to 100", f.percent)
	case kind == onpath.FaultDelay && f.delay <= 0:
		return badUsage("--by %s: write how much longer packets take, such as 20ms", f.delay)
	}
	return nil
}

func (f *faultFlags) onInstance(c *cobra.Command, kind onpath.FaultKind, name string) error {
	if err := f.checkAmounts(kind); err != nil {
		return err
	}
	if !f.yes {
		e := onpath.Errorf(onpath.CodeInvalid, "%s on %s may interrupt traffic of whoever uses it", kind, name)
		e.Remedy = "add --yes if that is meant"
		return e
	}
	r := onpath.FaultRequest{Kind: kind, Instance: name, For: onpath.Duration(f.lasts)}
	switch kind {
	case onpath.FaultKill:
		r.For = 0 // the flag is another fault's
	case onpath.FaultDrop:
		r.Share = f.percent / 100
	case onpath.FaultDelay:
		r.Delay = onpath.Duration(f.delay)
	}
	return f.ask(c, r)
}

func (f *faultFlags) show(c *cobra.Command, d *faultDone) error {
	return f.g.print(c, d, func(w io.Writer) error {
		on := ""
		switch {
		case d.Node != "":
			on = " on node " + d.Node
		case d.Peer != "":
			on = " to node " + d.Peer
		}
		fmt.Fprintf(w, "%s: %s%s\n", d.Kind, d.Target, on)
		if p := d.Probe; p != nil {
			fmt.Fprintf(w, "longest blackout %s over %d flows; %d of %d packets lost; resolution %s\n",
				time.Duration(p.Blackout).Round(100*time.Microsecond), len(p.Flows), p.Lost, p.Sent, p.Resolution)
		}
		if d.Probe == nil && (d.Flows == nil || len(d.Flows.Flows) == 0) {
			fmt.Fprintln(w, f.unmeasured(d))
		}
		if d.Flows == nil || len(d.Flows.Flows) == 0 {
			return nil
		}
		fmt.Fprintf(w, "longest blackout %.1f ms over %d flows; resolution %.1f ms; %d flows do not come out as they came in\n",
			d.Flows.Longest, len(d.Flows.Flows), d.Flows.Resolution, d.Flows.Unmeasured)
		t := table.New("PROTOCOL", "FROM", "TO", ">IN", ">OUT", ">BLACKOUT (ms)")
		for i, x := range d.Flows.Flows {
			if i == mostFlows {
				break
			}
			gap := fmt.Sprintf("%.1f", x.Blackout)
			if x.Silent {
				gap += " and on"
			}
			t.Row(map[uint8]string{6: "tcp", 17: "udp"}[x.Protocol], x.Src.String(), x.Dst.String(),
				fmt.Sprint(x.In), fmt.Sprint(x.Out), gap)
		}
		return t.Write(w)
	})
}

// unmeasured says why there is no figure, and how to get one.
func (f *faultFlags) unmeasured(d *faultDone) string {
	labs, _ := lab.List("") // for the words alone
	probe := probeHint(labs)
	switch {
	case f.watch == 0:
		return "no blackout was measured: --watch 0 leaves measuring out"
	case d.Flows == nil:
		return "no blackout was measured: " + probe
	case d.Flows.Unmeasured > 0:
		return fmt.Sprintf("no blackout was measured: of the %d flows at the gateways' uplinks none began before the fault and came "+
			"out as it came in; %s", d.Flows.Unmeasured, probe)
	}
	return "no blackout was measured: no TCP or UDP packet passed the gateways' uplinks meanwhile; send some through the chain while " +
		"the fault lasts, or " + probe
}

// probeHint says how to have flows of one's own.
func probeHint(labs []lab.Summary) string {
	if len(labs) == 1 {
		return "--probe SOURCE:DESTINATION sends flows of its own between two hosts of lab " + labs[0].Name
	}
	return "in a lab, --probe SOURCE:DESTINATION sends flows of its own"
}

// mostFlows is how many lines the table has; -o json has them all.
const mostFlows = 20

// newFaultKeeper is what an agent starts beside a fault; see fault.Keep.
func newFaultKeeper() *cobra.Command {
	return &cobra.Command{
		Use: "keep FILE", Short: "End a fault in time if its agent does not", Hidden: true, Args: cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error { return fault.Keep(c.Context(), args[0]) },
	}
}
