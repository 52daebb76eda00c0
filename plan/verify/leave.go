package verify

import (
	"fmt"
	"slices"

	"github.com/onpath/onpath"
)

// leave ends a walk out of the data path.
func (w *walker) leave(st state, s set, kind onpath.ActionKind) *failure {
	if st.next < len(w.cl.wants) {
		n := w.cl.wants[st.next]
		st.on = n.p
		how := "leaves"
		if st.inline == 0 {
			how = "goes on by ordinary forwarding"
		}
		return w.fail(st, s, "%s without crossing element %d (%s) of chain %s", how, n.k+1, n.step().deployment, named(n.p.key))
	}
	if w.cl.emits != 0 && len(w.cl.parts) == 0 {
		return w.fail(st, s, "is let out, although no chain of the instance's selects it")
	}
	if f := w.takenFor(st, s); f != nil {
		return f
	}
	if n := len(w.cl.parts); n > 0 && w.cl.parts[n-1].sealed() {
		return w.fail(st, s, "goes on in clear beside its pair")
	}
	if w.ends() {
		return w.fail(st, s, "leaves, and its path ends at the last element (exit: none)")
	}
	if st.inline == 0 && (kind != onpath.ActionRoute || w.routes()) {
		if st.next == 0 || st.on == nil || !st.strict {
			return nil // nothing was to be crossed
		}
		if f := w.steers(st, s, st.at); f != nil || st.on.forwardOnly() {
			return f
		}
		return w.returning(st, s, st.at) // copies only
	}
	switch last := w.routes(); {
	case kind == onpath.ActionRoute && !last:
		return w.fail(st, s, "leaves by the routes of node %s instead of where it entered", st.at.node)
	case kind == onpath.ActionRoute:
		return nil
	case last && !st.bypassed && w.crossed():
		return w.fail(st, s, "goes back to where it entered instead of leaving at its last element (exit: last)")
	}
	return w.exit(st, s)
}

// takenFor checks that what leaves is taken for a flow of its own chains: others
// adopt, cut and count it, and lead its answers.
func (w *walker) takenFor(st state, s set) *failure {
	if st.path == 0 {
		return nil
	}
	chain := st.at.chainOf(st.path)
	if slices.ContainsFunc(w.cl.parts, func(t *traffic) bool { return t.p.key == chain && t.reverse == st.reversed }) {
		return nil
	}
	if slices.ContainsFunc(w.cl.parts, func(t *traffic) bool { return t.p.key == chain }) {
		return w.fail(st, s, "is taken for chain %s's as if it ran the other way", named(chain))
	}
	return w.fail(st, s, "is taken for path %d of chain %q, which does not select it", st.path, named(chain))
}

// routes reports whether the class is to leave at its last element's node.
func (w *walker) routes() bool {
	if len(w.cl.parts) == 0 {
		return false
	}
	t := w.cl.parts[len(w.cl.parts)-1]
	return t.p.exitLast() && !t.reverse && t.p.tier != onpath.TierOperator
}

// ends reports whether nothing of the class is to leave.
func (w *walker) ends() bool {
	if len(w.cl.parts) == 0 {
		return false
	}
	t := w.cl.parts[len(w.cl.parts)-1]
	return t.p.exitNone() && !t.reverse || t.sealed()
}

// crossed reports whether an inline element of the last promise is among the
// wants: else nothing of it was crossed that could be last.
func (w *walker) crossed() bool {
	t := w.cl.parts[len(w.cl.parts)-1]
	if t.after >= 0 {
		return true
	}
	return slices.ContainsFunc(w.cl.wants, func(n wanted) bool { return n.p == t.p && !n.step().mirror })
}

// exit carries a set back to the edge where it entered.
func (w *walker) exit(st state, s set) *failure {
	entry := w.cl.entry
	if st.deliver != 0 && st.inline > 0 {
		if f := w.delivered(st, s); f != nil {
			return f
		}
		entry = st.deliver
	}
	if entry == 0 {
		return w.lose(st, s, "is dropped: the node does not know where flows that start here leave")
	}
	if st.on == nil || !st.on.forwardOnly() {
		if f := w.leaveAtPeer(st, s); f != nil {
			return f
		}
	}
	if st.at.edge == entry {
		return w.comesBack(st, s, st.at)
	}
	to, f := w.send(st, s, entry)
	if f != nil || to == nil {
		return f
	}
	if to.edge != entry {
		return w.lose(st, s, "is dropped at node %s: vport %d is not its edge", to.node, entry)
	}
	return w.comesBack(st, s, to)
}

// comesBack checks that answers which come in at an edge find the way back, and meet
// the mirrors that they ought to.
func (w *walker) comesBack(st state, s set, edge *site) *failure {
	if !st.strict || st.on == nil {
		return nil
	}
	if f := w.steers(st, s, edge); f != nil || st.on.forwardOnly() {
		return f
	}
	if why := edge.unreachable(st.via, st.at); why != "" {
		return w.lose(st, s, "has an answer that is dropped where it comes in: %s", why)
	}
	if st.jumped {
		return nil // no table leads answers there: they go back as the packets came
	}
	return w.returning(st, s, edge)
}

// steers checks that a node leads the answers back which come in at its edge, as the
// direction of the chain wants it.
func (w *walker) steers(st state, s set, edge *site) *failure {
	id := st.path
	if st.context != 0 {
		id, _, _ = st.context.Split()
	}
	p, wanted := edge.paths[id], st.on.forwardOnly()
	if p == nil {
		return w.lose(st, s, "has an answer that goes the ordinary way: node %s, where it comes in, does not have path %d", edge.node, id)
	}
	for _, t := range w.cl.parts {
		if t.p.key == p.Chain {
			wanted = t.p.forwardOnly()
		}
	}
	switch {
	case p.Forward != wanted && p.Forward:
		return w.lose(st, s, "has an answer that goes the ordinary way: path %d is steered one way at node %s", id, edge.node)
	case p.Forward != wanted:
		return w.lose(st, s, "has an answer that is steered, too, at node %s, against the chain's direction", edge.node)
	}
	return nil
}

// send carries a set to the node of a remote vport. Nil and no failure: it does
// not get there, and that does not count.
func (w *walker) send(st state, s set, v onpath.VportID) (*site, *failure) {
	p := st.at.vports[v]
	if p == nil {
		return nil, w.lose(st, s, "is dropped: node %s does not know vport %d", st.at.node, v)
	}
	if p.Kind != onpath.VportRemote {
		return st.at, nil
	}
	to := w.c.sites[p.Peer]
	if to == nil {
		return nil, &failure{at: st.at.node, unknown: true,
			message: fmt.Sprintf("the plan of node %s, to which node %s sends, is not known", p.Peer, st.at.node)}
	}
	if why := st.at.tunnel(to); why != "" {
		return nil, w.lose(st, s, "%s", why)
	}
	return to, nil
}
