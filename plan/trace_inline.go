package plan

import (
	"fmt"
	"slices"
	"strings"

	"github.com/onpath/onpath"
)

// inline reports whether an instance is an ebpf function, which the data path of
// its node runs on the way from one vport to the next.
func (i *instance) inline() bool { return i.fn.Inline() }

// inlineHops are the ebpf functions that an entry's packets pass on a node, in the
// order of travel. What is counted of the flow is what came to the first of them.
func (t *tracer) inlineHops(n *node, e onpath.FlowEntry) (hops []onpath.TraceHop) {
	for _, v := range e.Functions {
		h := t.instanceHop(v, e, nil, onpath.ModeInline)
		h.Flow = tally(e)
		if c, ok := t.functionCounters(n, v); ok && h.Message == "" {
			h.Message = answersInWords(c)
		}
		hops = append(hops, h)
	}
	return hops
}

// answersInWords says how many packets a function dropped with an answer; nobody counts
// that for each flow.
func answersInWords(c onpath.FunctionCounters) string {
	if c.Answered.Packets == 0 {
		return ""
	}
	return fmt.Sprintf("of all flows' packets that it dropped, it answered %d", c.Answered.Packets)
}

func (t *tracer) functionCounters(n *node, v onpath.VportID) (onpath.FunctionCounters, bool) {
	if c := t.in.Counters[n.name]; c != nil {
		f, ok := c.Functions[v]
		return f, ok
	}
	return onpath.FunctionCounters{}, false
}

// stopped is the end of a flow of which no packet has passed the functions of an
// entry, if one of them is known to drop packets; doubt says so where that cannot be
// told.
func (t *tracer) stopped(n *node, e onpath.FlowEntry) (end onpath.TraceHop, doubt string, done bool) {
	var names []string
	closed := false // one of them lets nothing pass
	for _, v := range e.Functions {
		c, _ := t.functionCounters(n, v)
		i := t.w.byVport[v]
		if c.Dropped.Packets+c.Answered.Packets == 0 || i == nil {
			continue
		}
		names = append(names, i.key.String())
		closed = closed || c.Passed.Packets+c.Bypassed.Packets == 0
	}
	passed, known := t.outlives(n, e)
	switch {
	case len(names) == 0 || e.Packets == 0 || passed:
		return end, "", false
	case !known && !closed:
		return end, strings.Join(names, " or ") + " may have dropped its packets: that is not counted for each flow", false
	}
	h := t.instanceHop(e.Functions[0], e, nil, "")
	h = onpath.TraceHop{Kind: onpath.HopDrop, Node: n.name, Chain: h.Chain, Element: h.Element, Live: true, Flow: tally(e)}
	h.Message = "the flow ends here: none of its packets has passed " + names[0]
	if len(names) > 1 {
		h.Message = "the flow ends here: none of its packets has passed all of " + strings.Join(names, ", ")
	}
	return h, "", true
}

// outlives tells whether packets of a flow have come out of an entry's functions:
// the place that they go to next then has learnt of it. Not known where that place
// cannot be asked, learns nothing, or sees other addresses.
func (t *tracer) outlives(n *node, e onpath.FlowEntry) (passed, known bool) {
	if slices.ContainsFunc(e.Functions, t.mayMislead) {
		return false, false
	}
	answer := e.Tuple.Reverse()
	seen := func(n *node, v onpath.VportID, tu onpath.Tuple) bool {
		return slices.ContainsFunc(t.flowsOf(n), func(c onpath.FlowEntry) bool { return c.Vport == v && c.Tuple == tu })
	}
	i := t.w.byVport[e.Next]
	switch {
	case e.Kind == onpath.NextExit:
		return t.answered(n, e)
	case e.Kind != onpath.NextVport || i == nil || i.node == nil || t.in.Silent[i.node.name] != "":
		return false, false
	case i.inline():
		o := t.relayed(i.node, e)
		return o.known, !o.unsure
	}
	out := e.Next
	if i.bridged() {
		out = i.obj.Spec.Vport + i.obj.Spec.Back - e.Next
	}
	return seen(i.node, out, e.Tuple) || seen(i.node, e.Next, answer), true
}

// answered is outlives where packets leave at the edge. What came in there has its
// answers' entry from the beginning, which counts; other packets write it on leaving.
func (t *tracer) answered(n *node, e onpath.FlowEntry) (passed, known bool) {
	p := t.gateway.acked.path(e.Path)
	if n.acked == nil || p == nil || p.Forward {
		return false, false
	}
	back, ok := t.entry(n, n.acked.edge, e.Tuple.Reverse())
	if e.Vport == n.acked.edge {
		return ok && (e.Reverse || back.Packets > 0), false
	}
	return ok, true
}

// mayMislead reports whether a function may send packets elsewhere than their entry
// says, or under another tuple: its own code may redirect them.
func (t *tracer) mayMislead(v onpath.VportID) bool {
	i := t.w.byVport[v]
	if i == nil {
		return true
	}
	fn := i.fn.Traits()
	return !fn.Inline || fn.KernelCode || t.rewrites(v)
}

func (t *tracer) rewrites(v onpath.VportID) bool {
	i := t.w.byVport[v]
	return i != nil && rewrites(i)
}

// cameFrom is the vport that packets of an entry come from at the next place: that of
// the last function that they pass, or the entry's own.
func cameFrom(e onpath.FlowEntry) onpath.VportID {
	if k := len(e.Functions); k > 0 {
		return e.Functions[k-1]
	}
	return e.Vport
}

// relayed finds the entry by which the node of an ebpf function goes on with packets
// that entry e of another node sends there. It stands under the vport that they come
// from, which lies on that other node.
func (t *tracer) relayed(n *node, e onpath.FlowEntry) onward {
	if c, ok := t.at(n, cameFrom(e), e.Tuple); ok && carries(c) {
		return onward{next: c, known: true}
	}
	return onward{note: noneCame}
}

// edited finds the tuple that packets of an entry have behind its functions, as the next
// place knows them, if one of the functions changes addresses. A note says that another
// tuple was found.
func (t *tracer) edited(n *node, e onpath.FlowEntry) onward {
	i := t.w.byVport[e.Next]
	if !slices.ContainsFunc(e.Functions, t.rewrites) || i == nil || i.node == nil {
		return onward{next: e, known: true}
	}
	m := newMatching(beganBy(e))
	for _, c := range t.flowsOf(n) {
		if c.Reverse == e.Reverse && c.Next == e.Next && carries(c) && slices.Equal(c.Functions, e.Functions) {
			m.cameIn(c.Tuple, c.Idle)
		}
	}
	same := false
	for _, c := range t.flowsOf(i.node) {
		tu := c.Tuple
		switch {
		case i.inline() && c.Vport == cameFrom(e) && c.Reverse == e.Reverse && carries(c):
		case !i.inline() && c.Vport == e.Next && c.Reverse != e.Reverse && !c.Emitted && c.Kind != onpath.NextPending:
			tu = tu.Reverse()
		default:
			continue
		}
		same = same || tu == e.Tuple
		m.cameOut(tu, c.Idle)
	}
	if same {
		return onward{next: e, known: true}
	}
	return m.onward(e)
}

// onward is as which flow an ebpf function sends on that of an entry.
func (m *matching) onward(e onpath.FlowEntry) onward {
	tu, v := m.became(e.Tuple)
	switch v {
	case matched:
		e.Tuple = tu
		return onward{next: e, known: true, note: goesOn(tu)}
	case absent:
		return onward{note: noneElse}
	}
	return onward{unsure: true, note: "it changes addresses: which flow behind it is this one, if one is, cannot be told"}
}

// editedReply finds the answers' entry at the edge behind functions that change
// addresses. Entries that no packet has used tell nothing: each flow leaves one for
// answers to its first addresses.
func (t *tracer) editedReply(g *node, last onpath.FlowEntry) onward {
	m := newMatching(beganBy(last))
	for _, c := range t.flowsOf(g) {
		if !slices.ContainsFunc(c.Functions, t.rewrites) || c.Packets == 0 || c.Kind == onpath.NextPending {
			continue
		}
		if c.Reverse == last.Reverse && c.Vport == last.Vport {
			m.cameIn(c.Tuple, c.Idle)
		} else if c.Reverse != last.Reverse && c.Vport == g.acked.edge {
			m.cameOut(c.Tuple.Reverse(), c.Idle)
		}
	}
	o := m.onward(last)
	if o.known {
		o.next, o.known = t.at(g, g.acked.edge, o.next.Tuple.Reverse())
	}
	return o
}

// readdressed notes at the last function of hops that changes addresses what it makes
// of the flow's.
func (t *tracer) readdressed(hops []onpath.TraceHop, tu onpath.Tuple) {
	for k := range slices.Backward(hops) {
		h := &hops[k]
		if i := t.w.byVport[h.Vport]; h.Kind != onpath.HopElement || i == nil || !i.inline() || !t.rewrites(h.Vport) {
			continue
		}
		h.Tuple, h.Message = &tu, joinNotes(goesOn(tu), h.Message)
		return
	}
}
