package fake

import (
	"slices"

	"github.com/onpath/onpath"
)

// peerGateway is the other edge of a pair of gateways if id is one of them, else 0.
func (n *Node) peerGateway(id onpath.VportID) onpath.VportID {
	switch {
	case id == 0:
		return 0
	case id == n.gateways[0]:
		return n.gateways[1]
	case id == n.gateways[1]:
		return n.gateways[0]
	}
	return 0
}

// leaveAtPeer lets a packet leave at the other gateway of a pair if the one where
// it would leave is gone.
func (n *Node) leaveAtPeer(f *flow) bool {
	other := n.peerGateway(f.next)
	if other == 0 || !n.takes(other) {
		return false
	}
	f.entry = other
	n.aimAtExit(f)
	return true
}

// moveGateway lets packets of an entry at an instance leave where they come in now.
func (n *Node) moveGateway(f *flow, entry onpath.VportID) {
	if entry == 0 || n.peerGateway(f.entry) != entry {
		return
	}
	leaves := f.next == f.entry && (f.kind == onpath.NextExit || f.kind == onpath.NextVport)
	f.entry, f.learned = entry, false
	if leaves {
		n.aimAtExit(f)
	}
}

// tellPartner tells the other gateway of a pair where packets of a tuple go that
// come in here, by the packet at hand.
func (n *Node) tellPartner(t onpath.Tuple, by *work) {
	v := n.vports[n.peerGateway(n.edgeVport())]
	f := n.anywhere(flowKey{n.edgeVport(), t})
	if v == nil || v.State == onpath.VportClosed || f == nil {
		return
	}
	if len(f.functions) == 0 && f.kind != onpath.NextVport && f.kind != onpath.NextPass {
		return
	}
	if to := n.net.underlay[n.peers[v.Peer].Address]; to != nil {
		to.hearPartner(t, *f, by)
	}
}

// hearPartner takes over what the other gateway says of a flow, if this one knows
// nothing of it, or the connection begins there. The mirrors on the way are its own
// choice, and so is the way of what meets a function first: that runs at one of the two.
func (n *Node) hearPartner(t onpath.Tuple, told flow, by *work) {
	k := flowKey{n.edgeVport(), t}
	w := &work{key: k, h: by.h, b: by.b}
	syn := w.h.Begins()
	ruled := len(told.functions) > 0 || n.function(told.next) != nil
	if len(told.functions) > 0 {
		told.next = told.functions[0].vport
	}
	if k.vport == 0 || told.next != 0 && !n.takes(told.next) {
		return
	}
	switch f := n.anywhere(k); {
	case f == nil:
	case n.begunAnew(w, f):
	case f.kind == onpath.NextVport && told.next != 0 && len(f.functions) == 0 && !ruled && (syn || !n.takes(f.next)):
		f.next, f.context, f.heard, f.answered = told.next, 0, false, 0
		return
	default:
		return
	}
	if p := n.paths[told.path]; told.path != 0 && (p == nil || p.Closed) {
		return
	}
	f := flow{kind: told.kind, next: told.next, group: told.group, entry: k.vport, path: told.path, reverse: told.reverse, learned: told.learned, adopted: told.adopted, noted: told.adopted && syn}
	if n.tables[n.edge.Table] != nil && !n.hearWay(&f, t, ruled) {
		return
	}
	first := n.firstPath(t)
	if n.paths[first] == nil {
		first = f.path
	}
	if !f.adopted {
		f.decided(w, n.generation)
	}
	n.insert(k, &f, n.tenantOf(first))
}

// hearWay finds what the packets of an entry pass on their way, as the rules say from
// the edge on or, as answers meet the tenant's chain first, by that tier's.
func (n *Node) hearWay(f *flow, t onpath.Tuple, ruled bool) bool {
	d := n.walk(n.edge.Table, t, nil, atElement, 0, 0)
	g := n.groups[f.group^1]
	switch {
	case ruled:
		if !n.byRules(f, d) && !n.byRules(f, n.walk(onpath.ClassifierTable(onpath.TierTenant), t, nil, atElement, 0, 0)) {
			return false
		}
		f.asRelayed(n, n.anywhere(flowKey{n.peerGateway(f.entry), t}))
	case f.learned && f.group != 0 && g != nil:
		f.mirrors = n.behind(g, t.Reverse())
	case d.group != nil && d.group.ID == f.group && len(d.functions) == 0:
		f.mirrors = d.mirrors
	}
	return true
}

// asRelayed lets packets that meet a function of this node first go on as an entry
// says by which the other gateway has asked for it, or which it was told of.
func (f *flow) asRelayed(n *Node, known *flow) {
	first := f.next
	if len(f.functions) > 0 {
		first = f.functions[0].vport
	}
	if known == nil || len(known.functions) == 0 || known.functions[0].vport != first {
		return
	}
	f.kind, f.next, f.group, f.functions, f.path, f.reverse = known.kind, known.next, known.group, known.functions, known.path, known.reverse
	if f.next == n.edgeVport() || n.peerGateway(f.next) != 0 {
		f.group = 0
		n.aimAtExit(f)
	}
}

// asks reports whether the other gateway may know what the rules do not tell of a
// packet without an entry: answers meet the tenant's chain before the operator's, and
// a young chain passes by what seems older than it.
func (n *Node) asks(w *work, d decision) bool {
	if n.gateways[0] == 0 || w.h.Begins() || w.h.TTL <= 1 {
		return false
	}
	tenants := onpath.ClassifierTable(onpath.TierTenant)
	return d.adopted || n.edge.Table != tenants && n.takesUp(n.edge.Table, w.key.tuple) && n.takesUp(tenants, w.key.tuple)
}

// takesUp reports whether a rule of a table matches.
func (n *Node) takesUp(id onpath.TableID, t onpath.Tuple) bool {
	table := n.tables[id]
	return table != nil && slices.ContainsFunc(table.Rules, func(r onpath.Rule) bool { return matches(&r.Match, t, true, true) })
}

// askPartner has the other gateway tell what it knows of a flow.
func (n *Node) askPartner(w *work) {
	v := n.vports[n.peerGateway(n.edgeVport())]
	if v == nil || v.State == onpath.VportClosed {
		return
	}
	if to := n.net.underlay[n.peers[v.Peer].Address]; to != nil {
		to.tellPartner(w.key.tuple, w)
		w.asked = true
	}
}

// byRules lets an entry lead where the rules do, if they lead first to the function
// that it names.
func (n *Node) byRules(f *flow, d decision) bool {
	first := d.member
	if len(d.functions) > 0 {
		first = d.functions[0].vport
	}
	if first != f.next {
		return false
	}
	f.path, f.reverse, f.mirrors, f.functions = d.path, d.reverse, d.mirrors, d.functions
	switch d.outcome {
	case toMember:
		f.kind, f.next, f.group = onpath.NextVport, d.member, d.group.ID
	case toExit, toRoute:
		f.kind, f.next, f.group, f.route = onpath.NextExit, n.edgeVport(), 0, d.outcome == toRoute
	default:
		return false
	}
	return true
}
