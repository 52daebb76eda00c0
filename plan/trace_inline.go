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
			h.Message = dropsInWords(c)
		}
		hops = append(hops, h)
	}
	return hops
}

// dropsInWords says what a function dropped; nobody counts that for each flow.
func dropsInWords(c onpath.FunctionCounters) string {
	switch n, answered := c.Dropped.Packets+c.Answered.Packets, c.Answered.Packets; {
	case n == 0:
		return ""
	case answered == 0:
		return fmt.Sprintf("of all flows it dropped %d packets", n)
	default:
		return fmt.Sprintf("of all flows it dropped %d packets, %d of them with an answer", n, answered)
	}
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
		return slices.ContainsFunc(t.in.Flows[n.name], func(c onpath.FlowEntry) bool { return c.Vport == v && c.Tuple == tu })
	}
	i := t.w.byVport[e.Next]
	switch {
	case e.Kind == onpath.NextExit:
		return t.answered(n, e)
	case e.Kind != onpath.NextVport || i == nil || i.node == nil || t.in.Silent[i.node.name] != "":
		return false, false
	case i.inline():
		_, ok := t.relayed(i.node, e)
		return ok, true
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
	return i != nil && i.fn.Packets != onpath.PacketsKeep && i.fn.Packets != ""
}

// relayed finds the entry by which the node of an ebpf function goes on with packets
// that entry e of another node sends there. It stands under the vport that they come
// from, which lies on that other node.
func (t *tracer) relayed(n *node, e onpath.FlowEntry) (onpath.FlowEntry, bool) {
	from := e.Vport
	if k := len(e.Functions); k > 0 {
		from = e.Functions[k-1]
	}
	next, _, ok := t.continuing(n, from, e)
	return next, ok
}

// editedReply finds the answers' entry at the edge behind functions that change
// addresses: it has an end point in common with what came to them, that of who began
// the flow rather than the other, which many flows have. Entries that no packet has
// used tell nothing: each flow leaves one for answers to its first addresses.
func (t *tracer) editedReply(g *node, last onpath.FlowEntry) (best onpath.FlowEntry, ok bool) {
	if !slices.ContainsFunc(last.Functions, t.rewrites) {
		return best, false
	}
	want, score := last, 0
	want.Tuple = last.Tuple.Reverse()
	for _, c := range t.in.Flows[g.name] {
		if c.Vport != g.acked.edge || c.Reverse == last.Reverse || c.Packets == 0 || !slices.ContainsFunc(c.Functions, t.rewrites) {
			continue
		}
		if s := likeReply(want, c); s > 0 && (s > score || s == score && livelier(c, best)) {
			best, score, ok = c, s, true
		}
	}
	return best, ok
}

// likeReply says how probably c has the answers that were expected as want, to or
// from another address; 0: it has not.
func likeReply(want, c onpath.FlowEntry) int {
	a, b := want.Tuple, c.Tuple
	switch {
	case a == b, likeness(want, c) < sameEnd:
		return 0
	case a.Dst == b.Dst && a.DstPort == b.DstPort:
		return 3
	case a.Src == b.Src && a.SrcPort == b.SrcPort && a.Dst != b.Dst:
		return 2
	}
	return 1
}

// readdressed notes at the last function of hops that changes addresses what it makes
// of the flow's.
func (t *tracer) readdressed(hops []onpath.TraceHop, tu onpath.Tuple) {
	for k := range slices.Backward(hops) {
		h := &hops[k]
		if i := t.w.byVport[h.Vport]; h.Kind != onpath.HopElement || i == nil || !i.inline() || !t.rewrites(h.Vport) {
			continue
		}
		h.Tuple, h.Message = &tu, strings.Join(slices.DeleteFunc([]string{goesOn(tu), h.Message}, func(s string) bool { return s == "" }), "; ")
		return
	}
}
