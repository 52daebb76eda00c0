package plan

import (
	"cmp"
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
// in force. Behind an element that changes addresses it goes on with the flow
// that has an end point, the entry and the path in common, and says that it
// guesses.
func Trace(in TraceInput) *onpath.Trace {
	w := newWorld(in.Snapshot)
	var first *onpath.Trace
	var others []string
	for _, cl := range w.cloudletsInOrder() {
		g := cl.gateway
		if i := slices.IndexFunc(cl.pair, func(n *node) bool { return n.name == in.Request.Gateway }); i >= 0 {
			g = cl.pair[i]
		}
		if g == nil || in.Request.Gateway != "" && g.name != in.Request.Gateway {
			continue
		}
		t := &tracer{w: w, in: &in, cl: cl, gate: g, out: &onpath.Trace{Tuple: in.Request.Tuple}}
		t.run()
		switch {
		case first == nil:
			first = t.out
		case t.out.Live && !first.Live, len(t.out.Chains) > 0 && len(first.Chains) == 0 && !first.Live:
			first = t.out
		case t.out.Live:
			others = append(others, g.name)
		}
	}
	if first == nil {
		first = &onpath.Trace{Tuple: in.Request.Tuple, Warnings: []string{"no node is a gateway: nothing is steered; name an uplink in a node's spec.uplinks"}}
	}
	if len(others) > 0 {
		first.Warnings = append(first.Warnings, "the flow is also seen at "+strings.Join(others, ", ")+"; name one with --gateway")
	}
	for _, n := range sortedKeys(in.Silent) {
		first.Warnings = append(first.Warnings, fmt.Sprintf("node %s cannot be asked: %s", n, in.Silent[n]))
	}
	if in.Request.Tenant != "" {
		conceal(first, in.Request.Tenant)
	}
	return first
}

// conceal leaves of other tenants' hops only that they are there.
func conceal(t *onpath.Trace, tenant string) {
	mine := func(s string) bool { return s == "" || strings.HasPrefix(s, tenant+"/") }
	for _, hops := range [][]onpath.TraceHop{t.Forward, t.Reverse} {
		for i := range hops {
			if h := &hops[i]; !mine(h.Chain) {
				*h = onpath.TraceHop{Kind: h.Kind, Live: h.Live, Message: "not yours"}
			} else if h.Kind != onpath.HopElement {
				h.Counters = nil
			}
		}
	}
	t.Chains = slices.DeleteFunc(t.Chains, func(c string) bool { return !mine(c) })
}

type tracer struct {
	w    *world
	in   *TraceInput
	cl   *cloudlet
	gate *node // where packets enter
	out  *onpath.Trace
	// ended: an ebpf function drops the flow.
	ended bool
}

func (t *tracer) warn(format string, args ...any) {
	m := fmt.Sprintf(format, args...)
	if !slices.Contains(t.out.Warnings, m) {
		t.out.Warnings = append(t.out.Warnings, m)
	}
}

func (t *tracer) run() {
	t.enterAt(t.in.Request.Tuple)
	g := t.gate
	if g.acked == nil || g.acked.edge == 0 {
		t.warn("gateway %s has no plan in force: nothing is steered there", g.name)
		t.out.Forward = []onpath.TraceHop{{Kind: onpath.HopKernel, Node: g.name, Message: "ordinary forwarding"}}
		return
	}
	planned := t.planned()
	if e, ok := t.entry(g, g.acked.edge, t.in.Request.Tuple); ok {
		t.out.Live, t.out.Tuple = true, e.Tuple
		last := t.live(e, &t.out.Forward)
		ended := t.ended
		t.answer(last)
		t.compare(planned, ended)
		return
	}
	t.out.Forward = planned
	t.out.Reverse = t.plannedAnswer(planned)
	t.note(planned)
}

// enterAt goes on at the gateway of a pair at which packets of the tuple come in,
// unless one was asked for: the other one was told of them and counts none.
func (t *tracer) enterAt(tu onpath.Tuple) {
	o := t.gate.partner()
	if o == nil || t.in.Request.Gateway != "" || o.acked == nil || o.acked.edge == 0 {
		return
	}
	there, ok := t.entry(o, o.acked.edge, tu)
	if !ok {
		return
	}
	var here onpath.FlowEntry
	known := false
	if t.gate.acked != nil {
		here, known = t.entry(t.gate, t.gate.acked.edge, tu)
	}
	switch {
	case !known, here.Packets == 0 && there.Packets > 0, there.Packets > 0 && livelier(there, here):
		t.gate = o
	}
}

// note fills Chains from hops.
func (t *tracer) note(hops []onpath.TraceHop) {
	for _, h := range hops {
		if h.Chain != "" && !slices.Contains(t.out.Chains, h.Chain) {
			t.out.Chains = append(t.out.Chains, h.Chain)
		}
	}
}

// entry finds a flow entry at a vport; of several that fit, the live one.
func (t *tracer) entry(n *node, v onpath.VportID, tu onpath.Tuple) (best onpath.FlowEntry, ok bool) {
	for _, e := range t.in.Flows[n.name] {
		if e.Vport == v && covers(tu, e.Tuple) && (!ok || livelier(e, best)) {
			best, ok = e, true
		}
	}
	return best, ok
}

// livelier tells the entry that packets pass now from one that an ended flow
// left: that seen last, and of two seen together the busier. An entry on which
// nothing is decided yet counts less than any other.
func livelier(a, b onpath.FlowEntry) bool {
	if p, q := a.Kind == onpath.NextPending, b.Kind == onpath.NextPending; p != q {
		return q
	}
	return cmp.Or(cmp.Compare(b.Idle, a.Idle), cmp.Compare(a.Packets, b.Packets)) > 0
}

// covers reports whether o is tu, where a zero port stands for any.
func covers(tu, o onpath.Tuple) bool {
	return tu.Protocol == o.Protocol && tu.Src == o.Src && tu.Dst == o.Dst &&
		(tu.SrcPort == 0 || tu.SrcPort == o.SrcPort) && (tu.DstPort == 0 || tu.DstPort == o.DstPort)
}

// live follows entries from one at the edge. It returns the last one.
func (t *tracer) live(e onpath.FlowEntry, hops *[]onpath.TraceHop) onpath.FlowEntry {
	n := t.gate
	*hops = append(*hops, t.edgeHop(n, onpath.HopEdge, &e))
	for range 2 * (onpath.MaxElements + 1) {
		*hops = append(*hops, t.inlineHops(n, e)...)
		end, doubt, done := t.stopped(n, e)
		if done {
			*hops = append(*hops, end)
			e.Kind, t.ended = onpath.NextDrop, true
			return e
		}
		for _, m := range e.Mirrors {
			*hops = append(*hops, t.instanceHop(m, e, nil, onpath.ModeMirror))
		}
		if end, done := t.ending(n, e); done {
			if k := len(end) - 1; doubt != "" && end[k].Message == "" {
				end[k].Message = doubt
			}
			*hops = append(*hops, end...)
			return e
		}
		i := t.w.byVport[e.Next]
		if i == nil || i.node == nil {
			*hops = append(*hops, onpath.TraceHop{Kind: onpath.HopDrop, Node: n.name, Vport: e.Next, Live: true, Message: fmt.Sprintf("the flow entry leads to vport %d, which is no instance's any more", e.Next)})
			return e
		}
		t.tunnel(n, i.node, hops, true)
		n = i.node
		if i.inline() {
			next, ok := t.relayed(n, e)
			if !ok {
				*hops = append(*hops, t.unseen(e, "no packet of the flow has come to it"))
				return e
			}
			e = next
			continue
		}
		next, guess, ok := t.behind(i, e)
		hop := t.instanceHop(e.Next, e, &next, onpath.ModeInline)
		if !ok {
			*hops = append(*hops, t.unseen(e, "no packet of the flow has come out of it"))
			return e
		}
		if guess != "" {
			hop.Message = guess
		}
		*hops = append(*hops, hop)
		e = next
	}
	t.warn("the flow entries go in a circle")
	return e
}

// unseen is the hop of an instance that an entry leads to and behind which nothing
// is known of the flow.
func (t *tracer) unseen(e onpath.FlowEntry, why string) onpath.TraceHop {
	h := t.instanceHop(e.Next, e, nil, onpath.ModeInline)
	if h.Message = why; t.in.Silent[h.Node] != "" {
		h.Message = "its node cannot be asked what comes next"
	}
	return h
}

// ending are the last hops, if the entry leads out of the data path.
func (t *tracer) ending(n *node, e onpath.FlowEntry) ([]onpath.TraceHop, bool) {
	g := t.gate
	if o := g.partner(); o != nil && e.Next != 0 && e.Next == o.obj.Status.Edge {
		g = o // packets of this direction come in there
	}
	edge := e.Next != 0 && e.Next == g.obj.Status.Edge
	switch {
	case e.Kind == onpath.NextExit:
		return []onpath.TraceHop{t.edgeHop(n, onpath.HopExit, nil)}, true
	case e.Kind == onpath.NextVport && edge:
		var hops []onpath.TraceHop
		t.tunnel(n, g, &hops, true)
		return append(hops, t.edgeHop(g, onpath.HopExit, nil)), true
	case e.Kind == onpath.NextPass:
		t.warn("the flow bypasses the chain: it is older, or an element was bypassed")
		return []onpath.TraceHop{{Kind: onpath.HopKernel, Node: n.name, Live: true, Flow: tally(e), Message: "passed by"}}, true
	case e.Kind == onpath.NextDrop:
		return []onpath.TraceHop{{Kind: onpath.HopDrop, Node: n.name, Live: true, Flow: tally(e), Message: "the flow entry says drop"}}, true
	}
	return nil, false
}

// behind finds the entry by which a flow goes on behind an instance.
func (t *tracer) behind(i *instance, e onpath.FlowEntry) (next onpath.FlowEntry, guess string, ok bool) {
	out := e.Next
	if i.bridged() {
		out = i.obj.Spec.Vport + i.obj.Spec.Back - e.Next // the other side
	}
	return t.continuing(i.node, out, e)
}

// continuing finds the entry at a vport by which a node goes on with the flow of e.
func (t *tracer) continuing(n *node, out onpath.VportID, e onpath.FlowEntry) (next onpath.FlowEntry, guess string, ok bool) {
	best := -1
	for _, c := range t.in.Flows[n.name] {
		if c.Vport != out || c.Kind == onpath.NextPending || c.Reverse != e.Reverse {
			continue
		}
		if o := t.gate.partner(); o != nil && c.Entry == o.obj.Status.Edge {
			c.Entry = e.Entry // each direction leaves at the gateway where it comes in
		}
		score := likeness(e, c)
		if score > best || score == best && livelier(c, next) {
			next, best, ok = c, score, score > 0
		}
	}
	if ok && next.Tuple != e.Tuple {
		guess = goesOn(next.Tuple)
	}
	return next, guess, ok
}

// goesOn says by which addresses a flow goes on, in the words of one who guesses.
func goesOn(tu onpath.Tuple) string {
	return fmt.Sprintf("goes on as %s → %s, as far as end point, entry and path tell", end(tu.Src, tu.SrcPort), end(tu.Dst, tu.DstPort))
}

// sameEnd is the likeness of two flows with one end point in common.
const sameEnd = 15

// likeness says how probably c is the continuation of e; 0: it is not.
func likeness(e, c onpath.FlowEntry) int {
	a, b := e.Tuple, c.Tuple
	if a == b {
		return 100
	}
	if a.Protocol != b.Protocol || e.Path != c.Path || e.Entry != c.Entry {
		return 0
	}
	score := 0
	if a.Src == b.Src {
		score += 10
		if a.SrcPort == b.SrcPort {
			score += 5
		}
	}
	if a.Dst == b.Dst {
		score += 10
		if a.DstPort == b.DstPort {
			score += 5
		}
	}
	return score
}

func end(a netip.Addr, port uint16) string { return fmt.Sprintf("%s port %d", a, port) }

// answer follows the reverse direction from where the packet left.
func (t *tracer) answer(last onpath.FlowEntry) {
	switch last.Kind {
	case onpath.NextPass, onpath.NextDrop:
		return
	}
	tu := last.Tuple.Reverse()
	t.enterAt(tu)
	g := t.gate
	e, ok := t.entry(g, g.acked.edge, tu)
	// What a function readdresses leaves an entry for answers to its first addresses,
	// too, which none are sent to.
	edited, found := t.editedAnswer(g, last)
	if found = found && (!ok || e.Packets == 0 && edited.Packets > 0); found {
		e, ok = edited, true
		t.readdressed(t.out.Forward, e.Tuple.Reverse())
	}
	if ok {
		t.live(e, &t.out.Reverse)
		if found {
			t.readdressed(t.out.Reverse, tu)
		}
		return
	}
	if p := g.acked.path(last.Path); p != nil && p.Forward {
		t.out.Reverse = []onpath.TraceHop{{Kind: onpath.HopKernel, Node: g.name, Message: "chain " + p.Chain + " has direction: forward; answers are forwarded ordinarily"}}
		return
	}
	t.out.Reverse = []onpath.TraceHop{{Kind: onpath.HopEdge, Node: g.name, Message: "no answer has an entry here"}}
}

// compare says where live differs from planned; a flow that has ended passes less.
func (t *tracer) compare(planned []onpath.TraceHop, ended bool) {
	t.note(t.out.Forward)
	want := &tracer{w: t.w, in: t.in, cl: t.cl, gate: t.gate, out: &onpath.Trace{}}
	want.note(planned)
	for _, c := range want.out.Chains {
		if !ended && !slices.Contains(t.out.Chains, c) {
			t.warn("chain %s selects the packet, but this flow does not pass it: it is older than the chain, or than its last change", c)
		}
	}
	for _, c := range t.out.Chains {
		if !slices.Contains(want.out.Chains, c) {
			t.warn("a new flow would not pass chain %s any more", c)
		}
	}
	got := map[string]bool{}
	for _, h := range t.out.Forward {
		got[h.Chain+"#"+fmt.Sprint(h.Element)] = true
		if h.Kind == onpath.HopElement && h.State != "" && h.State != string(onpath.InstanceReady) {
			t.warn("instance %s is %s", h.Name, h.State)
		}
	}
	for _, h := range planned {
		if !ended && h.Kind == onpath.HopElement && h.Mode != onpath.ModeMirror && slices.Contains(t.out.Chains, h.Chain) && !got[h.Chain+"#"+fmt.Sprint(h.Element)] && len(t.in.Silent) == 0 {
			t.warn("element %d of chain %s is in the plan but not on the way of this flow", h.Element+1, h.Chain)
		}
	}
}

func hostPrefix(a netip.Addr) []netip.Prefix { return []netip.Prefix{netip.PrefixFrom(a, a.BitLen())} }

// planned walks the gateway's tables as the first packet of a flow would.
func (t *tracer) planned() []onpath.TraceHop {
	g := t.gate
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
				at = n
			}
			hops = append(hops, hop)
			if stop {
				return hops
			}
			passed = passed || hop.Kind == onpath.HopElement
			id = grp.Then
		case onpath.ActionDrop:
			return append(hops, onpath.TraceHop{Kind: onpath.HopDrop, Node: at.name, Message: string(a.Reason)})
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
	if tenant := t.in.Request.Tenant; tenant != "" && !strings.HasPrefix(dep, tenant+"/") {
		return
	}
	for _, i := range t.w.instances {
		switch {
		case i.node == nil || !i.node.away || i.node.c != t.cl || i.dep.String() != dep:
		case i.node.dead:
			t.warn("node %s does not answer: new flows are not given to its instance %s", i.node.name, i.key)
		default:
			t.warn("the agent of node %s is away: its instance %s is as it was last known to be", i.node.name, i.key)
		}
	}
}

// plannedAnswer turns a planned way round: answers follow the flow's entries.
func (t *tracer) plannedAnswer(hops []onpath.TraceHop) []onpath.TraceHop {
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
		case onpath.HopTunnel:
			h.Node, h.Name = strings.TrimPrefix(h.Name, "to "), "to "+h.Node
		}
		out = append(out, h)
	}
	return out
}

func (t *tracer) edgeHop(n *node, kind onpath.HopKind, e *onpath.FlowEntry) onpath.TraceHop {
	h := onpath.TraceHop{Kind: kind, Node: n.name, Vport: n.obj.Status.Edge, Name: "uplinks", Live: e != nil || t.out.Live}
	h.Counters = t.counters(n, h.Vport)
	if e != nil {
		h.Flow, h.Tuple = tally(*e), &e.Tuple
	}
	return h
}

func tally(e onpath.FlowEntry) *onpath.Tally {
	return &onpath.Tally{Packets: e.Packets, Bytes: e.Bytes}
}

func (t *tracer) counters(n *node, v onpath.VportID) *onpath.VportCounters {
	if c := t.in.Counters[n.name]; c != nil {
		if vc, ok := c.Vports[v]; ok {
			return &vc
		}
	}
	return nil
}

// instanceHop describes the instance behind a vport, as an element of the path
// of entry e; behind is the entry by which the flow goes on.
func (t *tracer) instanceHop(v onpath.VportID, e onpath.FlowEntry, behind *onpath.FlowEntry, mode onpath.Mode) onpath.TraceHop {
	h := onpath.TraceHop{Kind: onpath.HopElement, Vport: v, Mode: mode, Live: true}
	i := t.w.byVport[v]
	if i == nil || i.node == nil {
		h.Message = "this vport is no instance's any more"
		return h
	}
	h.Node, h.Name = i.node.name, i.key.String()
	h.State = string(i.obj.Status.State)
	if i.report != nil {
		h.State = string(i.report.State)
	}
	if i.draining() {
		h.State = "draining"
	}
	if i.node.away {
		h.State = "away"
	}
	path := e.Path
	if behind != nil {
		h.Flow = tally(*behind)
		if !behind.Tuple.IsZero() {
			h.Tuple = &behind.Tuple
		}
		path = cmp.Or(e.Path, behind.Path)
	}
	h.Chain, h.Element = t.element(i, path)
	h.Counters = t.counters(i.node, v)
	return h
}

// element finds which element of which chain an instance is: of the path that
// the entry names, else (between two tiers the entry may name the other) of any.
func (t *tracer) element(i *instance, id onpath.PathID) (string, int) {
	x := t.gate.acked
	if p := x.path(id); p != nil {
		if k := slices.Index(p.Elements, i.dep.String()); k >= 0 {
			return p.Chain, k
		}
	}
	for _, p := range x.plan.Datapath.Paths {
		if k := slices.Index(p.Elements, i.dep.String()); k >= 0 && p.Ended.IsZero() {
			return p.Chain, k
		}
	}
	return "", 0
}

func (t *tracer) tunnel(from, to *node, hops *[]onpath.TraceHop, live bool) {
	if from != to {
		*hops = append(*hops, onpath.TraceHop{Kind: onpath.HopTunnel, Node: from.name, Name: "to " + to.name, Live: live})
	}
}
