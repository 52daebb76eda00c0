package fake

import (
	"github.com/onpath/onpath"
)

// otherGate is the other edge of a pair of gateways if id is one of them, else 0.
func (n *Node) otherGate(id onpath.VportID) onpath.VportID {
	switch {
	case id == 0:
		return 0
	case id == n.gates[0]:
		return n.gates[1]
	case id == n.gates[1]:
		return n.gates[0]
	}
	return 0
}

// leaveBeside lets a packet leave at the other gateway of a pair if the one where
// it would leave is gone.
func (n *Node) leaveBeside(f *flow) bool {
	other := n.otherGate(f.next)
	if other == 0 || !n.takes(other) {
		return false
	}
	f.entry = other
	n.aimAtExit(f)
	return true
}

// moveGate lets packets of an entry at an instance leave where they come in now.
func (n *Node) moveGate(f *flow, entry onpath.VportID) {
	if entry == 0 || n.otherGate(f.entry) != entry {
		return
	}
	leaves := f.next == f.entry && (f.kind == onpath.NextExit || f.kind == onpath.NextVport)
	f.entry, f.learned = entry, false
	if leaves {
		n.aimAtExit(f)
	}
}

// tellPartner tells the other gateway of a pair where packets of a tuple go that
// come in here; syn: by a packet that begins a connection.
func (n *Node) tellPartner(t onpath.Tuple, syn bool) {
	v := n.vports[n.otherGate(n.edgeVport())]
	f := n.anywhere(flowKey{n.edgeVport(), t})
	if v == nil || v.State == onpath.VportClosed || f == nil {
		return
	}
	if len(f.functions) == 0 && f.kind != onpath.NextVport && f.kind != onpath.NextPass {
		return
	}
	if to := n.net.underlay[n.peers[v.Peer].Address]; to != nil {
		to.hearPartner(t, *f, syn)
	}
}

// hearPartner takes over what the other gateway says of a flow, if this one knows
// nothing of it, or the connection begins there. The mirrors on the way are its own
// choice, and so is the way of what meets a function first: that runs at one of the two.
func (n *Node) hearPartner(t onpath.Tuple, told flow, syn bool) {
	k := flowKey{n.edgeVport(), t}
	ruled := len(told.functions) > 0 || n.function(told.next) != nil
	if len(told.functions) > 0 {
		told.next = told.functions[0].vport
	}
	if k.vport == 0 || told.next != 0 && !n.takes(told.next) {
		return
	}
	if f := n.anywhere(k); f != nil {
		if f.kind == onpath.NextVport && told.next != 0 && len(f.functions) == 0 && !ruled && (syn || !n.takes(f.next)) {
			f.next, f.context = told.next, 0
		}
		return
	}
	if p := n.paths[told.path]; told.path != 0 && (p == nil || p.Closed) {
		return
	}
	f := flow{kind: told.kind, next: told.next, group: told.group, entry: k.vport, path: told.path, reverse: told.reverse}
	if n.tables[n.edge.Table] != nil {
		d := n.walk(n.edge.Table, t, nil, atElement, 0, 0)
		if ruled && !n.byRules(&f, d) {
			return
		}
		if d.group != nil && d.group.ID == f.group {
			f.mirrors, f.functions = d.mirrors, d.functions
		}
	}
	first := n.firstPath(t)
	if n.paths[first] == nil {
		first = f.path
	}
	n.insert(k, &f, n.tenantOf(first), t.Protocol == protoTCP)
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

// begins reports whether the packet begins a TCP connection.
func (h *header) begins() bool {
	return h.protocol == protoTCP && h.flags&(flagSYN|flagACK) == flagSYN
}
