package plan

import (
	"cmp"
	"fmt"
	"net/netip"

	"github.com/onpath/onpath"
)

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
	n := t.gateway
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
		if end, done := t.ends(n, e); done {
			if k := len(end) - 1; doubt != "" && end[k].Message == "" {
				end[k].Message = doubt
			}
			*hops = append(*hops, end...)
			return e
		}
		i := t.w.byVport[e.Next]
		if i == nil || i.node == nil {
			next, ok := t.throughLease(n, e, hops)
			if !ok {
				return e
			}
			e = next
			continue
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

// onlyCopied reports whether the entry has the kernel forward a flow that is to meet
// mirrors alone, and does.
func (t *tracer) onlyCopied(e onpath.FlowEntry) bool {
	return t.copied && e.Kind == onpath.NextPass && len(e.Mirrors) > 0
}

// ending are the last hops, if the entry leads out of the data path.
func (t *tracer) ends(n *node, e onpath.FlowEntry) ([]onpath.TraceHop, bool) {
	g := t.gateway
	if o := g.partner(); o != nil && e.Next != 0 && e.Next == o.obj.Status.Edge {
		g = o // packets of this direction come in there
	} else if h := t.w.edgeOf(e.Next); h != nil {
		g = h // whose machine they are for
	}
	edge := e.Next != 0 && e.Next == g.obj.Status.Edge
	switch {
	case e.Kind == onpath.NextExit:
		return []onpath.TraceHop{t.edgeHop(n, onpath.HopExit, nil)}, true
	case e.Kind == onpath.NextVport && edge:
		var hops []onpath.TraceHop
		t.tunnel(n, g, &hops, true)
		return append(hops, t.edgeHop(g, onpath.HopExit, nil)), true
	case t.onlyCopied(e):
		return []onpath.TraceHop{{Kind: onpath.HopKernel, Node: n.name, Live: true, Flow: tally(e), Message: "forwarded ordinarily; mirrors get copies"}}, true
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
		if o := t.gateway.partner(); o != nil && c.Entry == o.obj.Status.Edge {
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

// sentInVain is how many packets of a TCP flow nobody sends without an answer: a
// connection attempt is given up after seven.
const sentInVain = 10

// withoutReply says that a live TCP flow, from e at the edge to last, where it leaves,
// has answers that no data path sees.
func (t *tracer) withoutReply(e, last onpath.FlowEntry) {
	const tcp = 6
	if e.Tuple.Protocol != tcp || min(e.Packets, last.Packets) < sentInVain || len(t.in.Silent) > 0 {
		return
	}
	if p := t.gateway.acked.path(last.Path); p != nil && p.Forward || t.w.byVport[last.Next] != nil {
		return // answers are not for the chain, or packets do not come out of it
	}
	if last.Kind != onpath.NextExit && last.Kind != onpath.NextVport && !t.onlyCopied(last) {
		return
	}
	for _, list := range t.in.Flows {
		for _, a := range list {
			if a.Packets > 0 && (a.Tuple == e.Tuple.Reverse() || a.Tuple == last.Tuple.Reverse()) {
				return
			}
		}
	}
	t.warn("no answer has come by, to %d packets: answers may take a way past the gateway", last.Packets)
}

// answer follows the reverse direction from where the packet left.
func (t *tracer) answer(last onpath.FlowEntry) {
	if last.Kind == onpath.NextDrop || last.Kind == onpath.NextPass && !t.onlyCopied(last) {
		return
	}
	tu := last.Tuple.Reverse()
	if h := t.w.edgeOf(last.Next); h != nil && h.host() && h.acked != nil && h.acked.edge != 0 {
		t.gateway = h
	}
	t.enterAt(tu)
	g := t.gateway
	e, ok := t.entry(g, g.acked.edge, tu)
	// What a function readdresses leaves an entry for answers to its first addresses,
	// too, which none are sent to.
	edited, found := t.editedReply(g, last)
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
