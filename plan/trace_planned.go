package plan

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/onpath/onpath"
)

// compare says where live differs from planned. Of a flow that could not be followed to
// its end, nothing is said of what it has not come to.
func (t *tracer) compare(whole bool) {
	t.note(slices.DeleteFunc(slices.Clone(t.out.Forward), func(h onpath.TraceHop) bool { return !h.Live }))
	for _, c := range t.due {
		switch {
		case !whole || slices.Contains(t.out.Chains, c):
		case t.silentGateway() != "":
			t.warnOf(c, "chain %s selects the packet; whether this flow passes it cannot be told while gateway %s cannot be asked", c, t.silentGateway())
		default:
			t.warnOf(c, "chain %s selects the packet, but this flow does not pass it: "+
				"its flow entry leads past the chain, a new flow's would not", c)
		}
	}
	for _, c := range t.out.Chains {
		if !slices.Contains(t.due, c) {
			t.warnOf(c, "a new flow would not pass chain %s any more", c)
		}
	}
	got := map[string]bool{}
	come := map[string]int{} // how many elements of a chain the flow has come to, or gone past
	for _, h := range t.out.Forward {
		if !h.Live {
			continue
		}
		got[h.Chain+"#"+fmt.Sprint(h.Element)] = true
		come[h.Chain] = max(come[h.Chain], h.Element+1)
		if h.Kind == onpath.HopElement && h.State != "" && h.State != string(onpath.InstanceReady) {
			t.warnOf(h.Name, "instance %s is %s", h.Name, h.State)
		}
	}
	for _, h := range t.plan {
		if h.Chain == "" || !whole && h.Element >= come[h.Chain] {
			continue
		}
		if h.Kind == onpath.HopDrop {
			t.warnOf(h.Chain, "a new flow would be dropped at element %d of chain %s: %s", h.Element+1, h.Chain, h.Message)
		}
		if h.Kind == onpath.HopElement && h.Mode != onpath.ModeMirror && slices.Contains(t.out.Chains, h.Chain) && !got[h.Chain+"#"+fmt.Sprint(h.Element)] && len(t.in.Silent) == 0 {
			t.warnOf(h.Chain, "element %d of chain %s is in the plan but not on the way of this flow", h.Element+1, h.Chain)
		}
	}
}

// silentGateway is one of the cloudlet's gateways that cannot be asked; "": none.
func (t *tracer) silentGateway() string {
	for _, g := range t.cl.edges() {
		if t.in.Silent[g.name] != "" {
			return g.name
		}
	}
	return ""
}

// meetsMirrorsOnly reports whether planned hops have elements, and all are mirrors.
func meetsMirrorsOnly(planned []onpath.TraceHop) bool {
	met := false
	for _, h := range planned {
		if h.Kind == onpath.HopElement {
			met = true
			if h.Mode != onpath.ModeMirror {
				return false
			}
		}
	}
	return met
}

// compareReply says which elements answers skip that the flow's packets cross, if
// entries tell the whole way of both.
func (t *tracer) compareReply() {
	k := len(t.out.Reverse) - 1
	if k < 0 || t.out.Reverse[k].Kind != onpath.HopExit || !t.out.Reverse[0].Live || len(t.in.Silent) > 0 {
		return
	}
	back := map[string]bool{}
	for _, h := range t.out.Reverse {
		back[h.Chain+"#"+fmt.Sprint(h.Element)] = true
	}
	for _, h := range t.out.Forward {
		if h.Kind == onpath.HopElement && h.Mode != onpath.ModeMirror && h.Chain != "" && !back[h.Chain+"#"+fmt.Sprint(h.Element)] && !t.oneWay(h.Chain) {
			t.warnOf(h.Chain, "answers do not pass element %d of chain %s, which the packets of this flow pass", h.Element+1, h.Chain)
		}
	}
}

// oneWay reports whether a chain in force steers the forward direction only.
func (t *tracer) oneWay(chain string) bool {
	return slices.ContainsFunc(t.gateway.acked.plan.Datapath.Paths, func(p onpath.Path) bool { return p.Chain == chain && p.Forward })
}

func hostPrefix(a netip.Addr) []netip.Prefix { return []netip.Prefix{netip.PrefixFrom(a, a.BitLen())} }

// planned walks the gateway's tables as the first packet of a flow would.
func (t *tracer) planned() []onpath.TraceHop {
	g := t.gateway
	x := g.acked
	hops := []onpath.TraceHop{t.edgeHop(g, onpath.HopEdge, nil)}
	id, at, passed := x.plan.Datapath.Edge.Table, g, false
	for range 8 * onpath.MaxElements {
		table := x.tables[id]
		if table == nil {
			break
		}
		a := table.Miss
		for _, r := range table.Rules {
			if fits(r.Match, t.in.Request.Tuple) {
				a = r.Action
				break
			}
		}
		switch a.Kind {
		case onpath.ActionTable:
			id = a.Table
		case onpath.ActionGroup:
			grp := x.groups[a.Group]
			if grp == nil {
				return append(hops, onpath.TraceHop{Kind: onpath.HopDrop, Node: at.name, Message: "a group is missing: the plan is out of step"})
			}
			hop, n, stop := t.plannedHop(x, grp)
			if n != nil && grp.Mode != onpath.ModeMirror {
				t.tunnel(at, n, &hops, false)
				if at = n; n.acked != nil && n.acked.tables[grp.Then] != nil {
					x = n.acked // which hosts packets may leave at, each node knows for itself
				}
			}
			hops = append(hops, hop)
			if stop {
				return hops
			}
			if p := x.path(grp.Path); p != nil && p.Side != "" && hop.Kind == onpath.HopElement && hop.State != "bypassed" {
				return plannedAcross(t, t.w.byVport[hop.Vport], grp.Path, grp.Reverse, hops)
			}
			passed = passed || hop.Kind == onpath.HopElement
			id = grp.Then
		case onpath.ActionDrop:
			if passed && a.Reason == onpath.DropPolicy {
				return hops // the path ends here (exit: none)
			}
			return append(hops, onpath.TraceHop{Kind: onpath.HopDrop, Node: at.name, Message: string(a.Reason)})
		case onpath.ActionDeliver:
			to := t.w.edgeOf(a.Vport)
			if to == nil {
				to = g
			}
			t.tunnel(at, to, &hops, false)
			return append(hops, t.edgeHop(to, onpath.HopExit, nil))
		case onpath.ActionRoute:
			return append(hops, onpath.TraceHop{Kind: onpath.HopExit, Node: at.name, Message: "by this node's routes"})
		default:
			if passed {
				t.tunnel(at, g, &hops, false)
				return append(hops, t.edgeHop(g, onpath.HopExit, nil))
			}
			return []onpath.TraceHop{{Kind: onpath.HopKernel, Node: g.name, Name: "uplinks", Message: "no chain selects it: ordinary forwarding, untouched"}}
		}
	}
	return []onpath.TraceHop{{Kind: onpath.HopKernel, Node: g.name, Name: "uplinks", Message: "nothing is steered at this gateway: ordinary forwarding, untouched"}}
}

// fits is whether a rule matches; an unknown (zero) source port fits any.
func fits(m onpath.Match, tu onpath.Tuple) bool {
	in := func(list []onpath.PortRange, p uint16) bool {
		return len(list) == 0 || hasPorts(tu.Protocol) && (p == 0 || slices.ContainsFunc(list, func(r onpath.PortRange) bool { return r.Contains(p) }))
	}
	_, src := commonPrefixes(m.Src, hostPrefix(tu.Src))
	_, dst := commonPrefixes(m.Dst, hostPrefix(tu.Dst))
	return src && dst && in(m.SrcPorts, tu.SrcPort) && in(m.DstPorts, tu.DstPort) &&
		(len(m.Protocol) == 0 || slices.Contains(m.Protocol, tu.Protocol)) &&
		(m.Family == 0 || m.Family == 4 == tu.Src.Is4())
}

// plannedHop is the element that a group stands for: the instance if there is
// only one to choose, and where it is; stop says that the way ends here.
func (t *tracer) plannedHop(x *index, g *onpath.Group) (hop onpath.TraceHop, at *node, stop bool) {
	_, k, _ := g.ID.Split()
	hop = onpath.TraceHop{Kind: onpath.HopElement, Element: k, Mode: g.Mode}
	p := x.path(g.Path)
	if p != nil {
		hop.Chain = p.Chain
	}
	if p != nil && k < len(p.Elements) {
		t.warnAway(p.Elements[k])
	}
	var open []*instance
	for _, m := range g.Members {
		if v, i := x.vports[m.Vport], t.w.byVport[m.Vport]; v != nil && i != nil && v.State == onpath.VportUp && m.Weight > 0 {
			open = append(open, i)
			hop.Candidates = append(hop.Candidates, i.key.String())
		}
	}
	switch {
	case len(open) == 1:
		i := open[0]
		full := t.instanceHop(i.into(g.Reverse), onpath.FlowEntry{Path: g.Path, Reverse: g.Reverse}, nil, g.Mode)
		full.Live = false
		return full, i.node, false
	case len(open) > 1:
		switch g.Together {
		case onpath.TogetherSource:
			hop.Message = "the instance of other flows of the client's address, if there are any"
		case onpath.TogetherHosts:
			hop.Message = "the instance of other flows between the two addresses, if there are any"
		}
		return hop, nil, false
	case g.None == onpath.NoneBypass:
		hop.State, hop.Message = "bypassed", "no instance is ready"
		return hop, nil, false
	}
	hop.Kind, hop.Message = onpath.HopDrop, "no instance is ready, and none: drop"
	if p != nil && k < len(p.Elements) {
		hop.Message = p.Elements[k] + ": " + hop.Message
	}
	return hop, nil, true
}

// warnAway names the nodes that are away and have instances of a deployment.
func (t *tracer) warnAway(dep string) {
	for _, i := range t.w.instances {
		switch {
		case i.node == nil || !i.node.away || i.node.c != t.cl || i.dep.String() != dep:
		case i.node.dead:
			t.warnOf(dep, "node %s does not answer: new flows are not given to its instance %s", i.node.name, i.key)
		default:
			t.warnOf(dep, "the agent of node %s is away: its instance %s is as it was last known to be", i.node.name, i.key)
		}
	}
}

// plannedReply turns a planned way round: answers follow the flow's entries.
func (t *tracer) plannedReply(hops []onpath.TraceHop) []onpath.TraceHop {
	if len(hops) < 2 || hops[len(hops)-1].Kind != onpath.HopExit {
		return nil
	}
	var out []onpath.TraceHop
	for _, h := range slices.Backward(hops) {
		switch h.Kind {
		case onpath.HopEdge:
			h.Kind = onpath.HopExit
		case onpath.HopExit:
			h.Kind = onpath.HopEdge
		case onpath.HopTunnel, onpath.HopStretch:
			h.Node, h.Name = strings.TrimPrefix(h.Name, "to "), "to "+h.Node
		}
		out = append(out, h)
	}
	return out
}
