package plan

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/onpath/onpath"
)

// onward is how a flow goes on behind a place that its packets came to.
type onward struct {
	// next is the entry by which it goes on, if known.
	next  onpath.FlowEntry
	known bool
	// unsure: whether it goes on, and as which flow, cannot be told. Neither known nor
	// unsure: it does not go on.
	unsure bool
	// note says why, or as which flow it goes on.
	note string
}

const (
	noneCame = "no packet of the flow is known to have come to it"
	noneLeft = "no packet of the flow has come out of it"
	noneElse = "no packet of the flow has come out of it, nor under other addresses"
)

// knownFlows are the flow entries of a node.
type knownFlows struct {
	list []onpath.FlowEntry // each once, though the node was asked for it twice
	at   map[flowPlace]int
}

func knownFlowsOf(list []onpath.FlowEntry) *knownFlows {
	k := &knownFlows{at: make(map[flowPlace]int, len(list))}
	for _, e := range list {
		at := flowPlace{e.Vport, e.Tuple}
		if i, ok := k.at[at]; ok {
			k.list[i] = e
			continue
		}
		k.at[at] = len(k.list)
		k.list = append(k.list, e)
	}
	return k
}

// flowPlace is where a flow entry stands.
type flowPlace struct {
	vport onpath.VportID
	tuple onpath.Tuple
}

// flowsOf are the flow entries of a node.
func (t *tracer) flowsOf(n *node) []onpath.FlowEntry {
	if k := t.flows[n.name]; k != nil {
		return k.list
	}
	return nil
}

// at finds the entry of a tuple at a vport.
func (t *tracer) at(n *node, v onpath.VportID, tu onpath.Tuple) (e onpath.FlowEntry, ok bool) {
	k := t.flows[n.name]
	if k == nil {
		return e, false
	}
	i, ok := k.at[flowPlace{v, tu}]
	if !ok {
		return e, false
	}
	return k.list[i], true
}

// carries reports whether packets have gone by an entry. An entry for answers stands
// before the first of them comes, and one of context only before a packet comes out.
func carries(e onpath.FlowEntry) bool {
	return e.Kind != onpath.NextPending && (!e.Learned || e.Packets > 0)
}

// behind finds out how a flow goes on behind an instance that entry e leads to. The same
// tuple behind the instance is the same flow. Another tuple is this flow's only where the
// instance may change tuples, and entries leave no other choice.
func (t *tracer) behind(i *instance, e onpath.FlowEntry) onward {
	s := t.sides(i, e)
	if c, ok := t.at(i.node, s.exit, e.Tuple); ok && carries(c) {
		return onward{next: c, known: true, note: rested(i, e, c)}
	}
	began, ok := t.at(i.node, s.entrance, e.Tuple.Reverse())
	switch {
	case !s.known[e.Tuple] && (!ok || !began.Emitted):
		return onward{note: noneCame}
	case !rewrites(i):
		return onward{note: noneLeft}
	case ok && began.Emitted:
		return t.answersTo(i, e, s)
	}
	tu, v := s.became(e.Tuple)
	if originates(i) && v == matched {
		v = unclear
	}
	if c, ok := t.at(i.node, s.exit, tu); ok && v == matched {
		return onward{next: c, known: true, note: joinNotes(goesOn(tu), rested(i, e, c))}
	}
	if v == absent {
		return onward{note: noneElse}
	}
	return onward{unsure: true, note: s.doubt(i, e.Tuple)}
}

// rewrites reports whether an instance may send packets of a flow under another tuple.
func rewrites(i *instance) bool {
	return i.fn.Packets != "" && i.fn.Packets != onpath.PacketsKeep
}

// originates reports whether it may begin flows of its own. Which of them carries another
// flow on, entries do not say: such a flow may have been kept for later, be shared, or be
// a probe's.
func originates(i *instance) bool { return i.fn.Packets == onpath.PacketsOriginate }

// rested says that packets come to an instance and none has come out for a while. What
// ends connections itself need not send for each packet that it gets.
func rested(i *instance, e, next onpath.FlowEntry) string {
	const while = onpath.Duration(5 * time.Second)
	if next.Idle < e.Idle+while || i.fn.State == onpath.StateTerminates {
		return ""
	}
	round := func(d onpath.Duration) time.Duration { return time.Duration(d).Round(time.Second) }
	return fmt.Sprintf("the last packet of the flow came to it %s ago, and the last one came out %s ago", round(e.Idle), round(next.Idle))
}

// sides is what the node of an instance knows of flows there, seen from one that goes
// in and comes out: which came in and did not come out as they were, and which the
// instance began.
type sides struct {
	entrance, exit onpath.VportID
	matching
}

func (t *tracer) sides(i *instance, e onpath.FlowEntry) sides {
	exit := e.Next
	if i.bridged() {
		exit = i.obj.Spec.Vport + i.obj.Spec.Back - e.Next
	}
	return t.flowsAt(i.node, e.Next, exit, e.Reverse)
}

// flowsAt are the flows of one direction at an instance.
func (t *tracer) flowsAt(n *node, entrance, exit onpath.VportID, reverse bool) sides {
	s := sides{entrance: entrance, exit: exit, matching: newMatching(source)}
	cameIn := func(tu onpath.Tuple, idle onpath.Duration) {
		out, ok := t.at(n, exit, tu)
		began, answer := t.at(n, entrance, tu.Reverse())
		if ok && carries(out) || answer && began.Emitted {
			return // it came out as it was, or answers what the instance began
		}
		s.cameIn(tu, idle)
	}
	for _, c := range t.flowsOf(n) {
		switch {
		case c.Vport == exit && c.Emitted && c.Reverse == reverse && carries(c):
			s.cameOut(c.Tuple, c.Idle)
		case c.Vport == exit && c.Kind == onpath.NextPending && c.Reverse == reverse:
			cameIn(c.Tuple, c.Idle)
		case c.Vport == entrance && c.Learned && c.Reverse != reverse:
			cameIn(c.Tuple.Reverse(), c.Idle)
		}
	}
	return s
}

// answersTo finds out as which flow an instance sends on the answers, which come with
// e's tuple, to a flow that it began.
func (t *tracer) answersTo(i *instance, e onpath.FlowEntry, s sides) onward {
	of := t.flowsAt(i.node, s.exit, s.entrance, !e.Reverse)
	tu, v := of.was(e.Tuple.Reverse())
	switch {
	case originates(i):
		return onward{unsure: true, note: "it began this connection itself: for which flow, if for one, cannot be told"}
	case v == matched:
		if c, ok := t.at(i.node, s.exit, tu.Reverse()); ok && carries(c) {
			return onward{next: c, known: true, note: joinNotes(goesOn(c.Tuple), rested(i, e, c))}
		}
		return onward{note: noneLeft}
	}
	return onward{unsure: true, note: "it changes addresses: to which flow these answers belong cannot be told"}
}

// doubt says why it cannot be told as which flow one goes on.
func (s *sides) doubt(i *instance, tu onpath.Tuple) string {
	toward, all := 0, 0
	for _, flows := range s.out {
		for _, f := range flows {
			if all++; destination(f.tuple) == destination(tu) {
				toward++
			}
		}
	}
	if originates(i) {
		return fmt.Sprintf("it has flows of its own, %d of them to %s: which one carries this flow on, if one does, cannot be told",
			toward, end(destination(tu)))
	}
	return fmt.Sprintf("it changes addresses: which of %d flows behind it is this one, if one is, cannot be told", all)
}

// joinNotes puts what is said of a hop one after the other.
func joinNotes(notes ...string) string {
	return strings.Join(slices.DeleteFunc(notes, func(s string) bool { return s == "" }), "; ")
}
