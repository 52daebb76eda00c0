package plan

import (
	"cmp"
	"slices"

	"github.com/onpath/onpath"
)

// entry finds a flow entry at a vport; of several that fit, the live one.
func (t *tracer) entry(n *node, v onpath.VportID, tu onpath.Tuple) (best onpath.FlowEntry, ok bool) {
	for _, e := range t.flowsOf(n) {
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

// live follows entries from one at the edge. What it cannot follow goes on by the plan.
func (t *tracer) live(e onpath.FlowEntry, plan []onpath.TraceHop, hops *[]onpath.TraceHop) followed {
	*hops = append(*hops, t.edgeHop(t.gateway, onpath.HopEdge, &e))
	return t.follow(t.gateway, e, plan, hops)
}

// followed is how far a flow could be followed.
type followed struct {
	last  onpath.FlowEntry // the last entry of it
	whole bool             // to where it leaves the data path
	// at is the instance behind which it is not known; nil: an ebpf function or a
	// publisher's engine, or it is whole.
	at *instance
}

// follow follows entries from one on a node.
func (t *tracer) follow(n *node, e onpath.FlowEntry, plan []onpath.TraceHop, hops *[]onpath.TraceHop) followed {
	for range 2 * (onpath.MaxElements + 1) {
		*hops = append(*hops, t.inlineHops(n, e)...)
		end, doubt, done := t.stopped(n, e)
		if done {
			*hops = append(*hops, end)
			e.Kind = onpath.NextDrop
			return followed{last: e}
		}
		for _, m := range e.Mirrors {
			*hops = append(*hops, t.instanceHop(m, e, nil, onpath.ModeMirror))
		}
		if end, done := t.ends(n, e); done {
			if k := len(end) - 1; doubt != "" && end[k].Message == "" {
				end[k].Message = doubt
			}
			*hops = append(*hops, end...)
			return followed{last: e, whole: true}
		}
		i := t.w.byVport[e.Next]
		if i == nil || i.node == nil {
			next, ok := t.throughLease(n, e, hops)
			if !ok {
				return followed{last: e}
			}
			e = next
			continue
		}
		came := t.edited(n, e)
		if !came.known {
			t.lose(e.Functions[len(e.Functions)-1], came, plan, hops)
			return followed{last: e}
		}
		e.Tuple = came.next.Tuple
		if came.note != "" {
			t.readdressed(*hops, e.Tuple)
		}
		t.tunnel(n, i.node, hops, true)
		n = i.node
		if p := across(i, e.Reverse); p != nil {
			return followAcross(t, i, p, e, plan, hops)
		}
		o := onward{}
		if i.inline() {
			o = t.relayed(n, e)
		} else {
			o = t.behind(i, e)
		}
		if !o.known && t.in.Silent[n.name] != "" {
			o = onward{unsure: true, note: "its node cannot be asked what comes next"}
		}
		if !i.inline() || !o.known {
			var next *onpath.FlowEntry
			if o.known {
				next = &o.next
			}
			*hops = append(*hops, t.instanceHop(e.Next, e, next, onpath.ModeInline))
		}
		if !o.known {
			t.lose(e.Next, o, plan, hops)
			return followed{last: e, at: i}
		}
		if !i.inline() {
			(*hops)[len(*hops)-1].Message = joinNotes((*hops)[len(*hops)-1].Message, o.note)
		}
		e = o.next
	}
	t.warn("the flow entries go in a circle")
	return followed{last: e}
}

// lose marks the last hop, an instance's, behind which a flow could not be followed, and
// adds what the plan says of the rest where it may go on.
func (t *tracer) lose(v onpath.VportID, o onward, plan []onpath.TraceHop, hops *[]onpath.TraceHop) {
	k := len(*hops) - 1
	for k > 0 && (*hops)[k].Vport != v {
		k--
	}
	h := &(*hops)[k]
	h.Message, h.Ends, h.Unsure = joinNotes(h.Message, o.note), !o.unsure, o.unsure
	if !o.unsure {
		return
	}
	same := func(p onpath.TraceHop) bool {
		return p.Kind == onpath.HopElement && p.Chain == h.Chain && p.Element == h.Element && p.Mode != onpath.ModeMirror
	}
	if at := slices.IndexFunc(plan, same); at >= 0 {
		*hops = append(*hops, slices.Clone(plan[at+1:])...)
	}
}

// onlyCopied reports whether the entry has the kernel forward a flow that is to meet
// mirrors alone, and does.
func (t *tracer) onlyCopied(e onpath.FlowEntry) bool {
	return t.copied && e.Kind == onpath.NextPass && len(e.Mirrors) > 0
}

// ends gives the last hops, if the entry leads out of the data path.
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
		t.warn("%s", bypasses(e))
		return []onpath.TraceHop{{Kind: onpath.HopKernel, Node: n.name, Live: true, Flow: tally(e), Message: "passed by"}}, true
	case e.Kind == onpath.NextDrop:
		return []onpath.TraceHop{{Kind: onpath.HopDrop, Node: n.name, Live: true, Flow: tally(e), Message: "the flow entry says drop"}}, true
	}
	return nil, false
}

// bypasses says what is known of why an entry has the kernel forward a flow.
func bypasses(e onpath.FlowEntry) string {
	if e.Adopted {
		return "the flow bypasses the chain: the connection is older than the chain"
	}
	return "the flow bypasses the chain: its flow entry says so, from before the chain's last change or because an element was bypassed"
}

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
	for _, k := range t.flows {
		for _, a := range k.list {
			if a.Packets > 0 && (a.Tuple == e.Tuple.Reverse() || a.Tuple == last.Tuple.Reverse()) {
				return
			}
		}
	}
	t.warn("no answer has come by, to %d packets: answers may take a way past the gateway", last.Packets)
}

// answer follows the answers to a flow that could be followed this far.
func (t *tracer) answer(there followed) {
	last, plan := there.last, t.plannedReply(t.plan)
	if there.at != nil {
		t.answerOf(there, plan)
		return
	}
	if !there.whole || last.Kind == onpath.NextDrop || last.Kind == onpath.NextPass && !t.onlyCopied(last) {
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
	if slices.ContainsFunc(last.Functions, t.rewrites) && (!ok || e.Packets == 0) {
		o := t.editedReply(g, last)
		if o.known {
			e, ok = o.next, true
			t.readdressed(t.out.Forward, e.Tuple.Reverse())
			t.live(e, plan, &t.out.Reverse)
			t.readdressed(t.out.Reverse, tu)
			return
		}
		if o.unsure {
			t.out.Reverse = []onpath.TraceHop{{Kind: onpath.HopEdge, Node: g.name, Unsure: true, Message: o.note}}
			return
		}
	}
	if ok {
		t.live(e, plan, &t.out.Reverse)
		return
	}
	if p := g.acked.path(last.Path); p != nil && p.Forward {
		t.out.Reverse = []onpath.TraceHop{{Kind: onpath.HopKernel, Node: g.name, Message: "chain " + p.Chain + " has direction: forward; answers are forwarded ordinarily"}}
		return
	}
	t.out.Reverse = []onpath.TraceHop{{Kind: onpath.HopEdge, Node: g.name, Message: "no answer has an entry here"}}
}

// answerOf follows what an instance, behind which a flow is not known, answers itself.
func (t *tracer) answerOf(there followed, plan []onpath.TraceHop) {
	i, e := there.at, there.last
	back, ok := t.at(i.node, e.Next, e.Tuple.Reverse())
	if i.inline() || !ok || !carries(back) || back.Packets == 0 {
		t.out.Reverse = []onpath.TraceHop{{Kind: onpath.HopEdge, Node: t.gateway.name, Live: true,
			Message: "no answer to the flow is known"}}
		return
	}
	h := t.instanceHop(e.Next, e, &back, onpath.ModeInline)
	h.Tuple, h.Message = &back.Tuple, "the answers come out of it"
	t.out.Reverse = append(t.out.Reverse, h)
	t.follow(i.node, back, plan, &t.out.Reverse)
}
