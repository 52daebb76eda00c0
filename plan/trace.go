package plan

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/onpath/onpath"
)

// TraceInput is what a trace is made from.
type TraceInput struct {
	Snapshot *Snapshot
	Request  onpath.TraceRequest
	// Flows are live flow entries by node: those of the tuple and, behind
	// elements that change addresses, those of its path.
	Flows    map[string][]onpath.FlowEntry
	Counters map[string]*onpath.Counters
	// Silent are the nodes that could not be asked, and why.
	Silent map[string]string
}

// Trace follows a packet from the gateway where it enters until it leaves, and
// its answer back: by live flow entries where there are any, else by the plans
// in force. Behind an element that changes addresses it goes on only where entries
// leave no doubt which flow is the packet's; else it says so, and what is planned.
func Trace(in TraceInput) *onpath.Trace {
	w := newWorld(in.Snapshot)
	flows := map[string]*knownFlows{}
	for n, list := range in.Flows {
		flows[n] = knownFlowsOf(list)
	}
	var first *onpath.Trace
	var others []string
	for _, cl := range w.inOrder {
		for _, g := range cl.traced(&in.Request) {
			t := &tracer{w: w, in: &in, cl: cl, gateway: g, flows: flows, out: &onpath.Trace{Tuple: in.Request.Tuple}}
			t.run()
			if in.Request.Tenant != "" && !t.concerns(in.Request.Tenant) {
				t.out = &onpath.Trace{Tuple: in.Request.Tuple, Forward: []onpath.TraceHop{{
					Kind: onpath.HopKernel, Message: "no chain of tenant " + in.Request.Tenant + " is on its way"}}}
			}
			switch {
			case first == nil:
				first = t.out
			case t.out.Live && !first.Live, len(t.out.Chains) > 0 && len(first.Chains) == 0 && !first.Live:
				first = t.out
			case t.out.Live:
				others = append(others, g.name)
			}
		}
	}
	if first == nil {
		first = &onpath.Trace{Tuple: in.Request.Tuple, Warnings: []onpath.Note{{Text: "no node is a gateway: nothing is steered; name an uplink in a node's spec.uplinks"}}}
	}
	if len(others) > 0 {
		first.Warnings = append(first.Warnings, onpath.Note{Text: "the flow is also seen at " + strings.Join(others, ", ") + "; name one with --gateway"})
	}
	for _, n := range sortedKeys(in.Silent) {
		first.Warnings = append(first.Warnings, onpath.Note{Text: fmt.Sprintf("node %s cannot be asked: %s", n, in.Silent[n])})
	}
	return first
}

// traced are the nodes at whose edges a packet may enter: that asked for, else the
// gateway in use and the hosts that send or get it.
func (c *cloudlet) traced(r *onpath.TraceRequest) []*node {
	edges := c.edges()
	if i := slices.IndexFunc(edges, func(n *node) bool { return n.name == r.Gateway }); i >= 0 {
		return edges[i : i+1]
	}
	if r.Gateway != "" {
		return nil
	}
	var out []*node
	for _, a := range []netip.Addr{r.Tuple.Src, r.Tuple.Dst} {
		for _, h := range c.hosts {
			if slices.Contains(h.addresses(), a) && !slices.Contains(out, h) {
				out = append(out, h)
			}
		}
	}
	if c.gateway != nil && (len(c.activeGateways) > 0 || len(out) == 0) {
		out = append(out, c.gateway)
	}
	return out
}

// concerns reports whether a chain of a tenant's selects or steers the flow.
func (t *tracer) concerns(tenant string) bool {
	own := func(name string) bool { return onpath.OwnedBy(name, tenant) }
	return slices.ContainsFunc(t.out.Chains, own) || slices.ContainsFunc(t.due, own)
}

type tracer struct {
	w       *world
	in      *TraceInput
	cl      *cloudlet
	gateway *node // where packets enter
	out     *onpath.Trace
	flows   map[string]*knownFlows
	plan    []onpath.TraceHop // the way of a new flow
	due     []string          // chains that select it by the plan in force
	// copied: all that the flow is to meet by the plan are mirrors.
	copied bool
}

func (t *tracer) warn(format string, args ...any) { t.warnOf("", format, args...) }

// warnOf is about a chain or instance, "tenant/name".
func (t *tracer) warnOf(about, format string, args ...any) {
	m := onpath.Note{Text: fmt.Sprintf(format, args...), About: about}
	if !slices.Contains(t.out.Warnings, m) {
		t.out.Warnings = append(t.out.Warnings, m)
	}
}

func (t *tracer) run() {
	t.enterAt(t.in.Request.Tuple)
	g := t.gateway
	if g.acked == nil || g.acked.edge == 0 {
		t.warn("gateway %s has no plan in force: nothing is steered there", g.name)
		t.out.Forward = []onpath.TraceHop{{Kind: onpath.HopKernel, Node: g.name, Message: "ordinary forwarding"}}
		return
	}
	t.plan = t.leased(t.planned())
	t.due = chainsOf(t.plan)
	t.copied = meetsMirrorsOnly(t.plan)
	if e, ok := t.entry(g, g.acked.edge, t.in.Request.Tuple); ok {
		t.out.Live, t.out.Tuple, t.out.Idle = true, e.Tuple, e.Idle
		there := t.live(e, t.plan, &t.out.Forward)
		t.answer(there)
		t.compare(there.whole)
		if there.whole {
			t.compareReply()
			t.withoutReply(e, there.last)
		}
		return
	}
	t.out.Forward = t.plan
	t.out.Reverse = t.plannedReply(t.plan)
	t.note(t.plan)
}

// enterAt goes on at the gateway of a pair at which packets of the tuple come in,
// unless one was asked for: the other one was told of them and counts none.
func (t *tracer) enterAt(tu onpath.Tuple) {
	o := t.gateway.partner()
	if o == nil || t.in.Request.Gateway != "" || o.acked == nil || o.acked.edge == 0 {
		return
	}
	there, ok := t.entry(o, o.acked.edge, tu)
	if !ok {
		return
	}
	var here onpath.FlowEntry
	known := false
	if t.gateway.acked != nil {
		here, known = t.entry(t.gateway, t.gateway.acked.edge, tu)
	}
	switch {
	case !known, here.Packets == 0 && there.Packets > 0, there.Packets > 0 && livelier(there, here):
		t.gateway = o
	}
}

// note fills Chains from hops.
func (t *tracer) note(hops []onpath.TraceHop) {
	for _, c := range chainsOf(hops) {
		if !slices.Contains(t.out.Chains, c) {
			t.out.Chains = append(t.out.Chains, c)
		}
	}
}

// chainsOf names the chains of hops, each once.
func chainsOf(hops []onpath.TraceHop) (chains []string) {
	for _, h := range hops {
		if h.Chain != "" && !slices.Contains(chains, h.Chain) {
			chains = append(chains, h.Chain)
		}
	}
	return chains
}
