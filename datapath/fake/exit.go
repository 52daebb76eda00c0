package fake

import (
	"net/netip"
	"slices"

	"github.com/onpath/onpath"
)

// exit lets a packet leave at this node's edge, and writes the entry by which
// its answers find back.
func (n *Node) exit(w *work, f *flow) {
	if w.writes && n.edgeVport() != 0 {
		n.learnReturn(w, f)
		if w.key.vport != n.edgeVport() {
			n.tellPartner(w.key.tuple.Reverse())
		}
	}
	n.leave(w)
}

// learnReturn leads answers that come in at the edge to the element that the
// packet came out of.
func (n *Node) learnReturn(w *work, f *flow) {
	edge, from := n.edgeVport(), w.key.vport
	if n.otherGate(f.entry) == edge {
		f.entry = edge // the other gateway is gone
	}
	back := flowKey{edge, w.key.tuple.Reverse()}
	if n.leads(back, from) {
		return
	}
	e := flow{kind: onpath.NextVport, next: from, entry: edge, path: f.path, reverse: !f.reverse, functions: backwards(f.functions)}
	if from == edge { // only mirrors were passed
		e.kind = onpath.NextExit
		e.mirrors = n.turned(f.mirrors, w.key.tuple)
	}
	if g := n.groups[f.context]; g != nil {
		e.group, e.path, e.reverse = g.ID^1, g.Path, !g.Reverse
		e.mirrors = n.behind(g, w.key.tuple)
	}
	if p := n.paths[e.path]; p != nil && p.Forward && (f.context != 0 || from == edge) {
		return
	}
	n.turn(n.learn(back, e), e)
}

// behind walks the Then table of the last element that t left, to find which
// mirrors its answers must meet as they come back in at the edge.
func (n *Node) behind(g *onpath.Group, t onpath.Tuple) []mirror {
	if n.tables[g.Then] == nil {
		return nil
	}
	return n.turned(n.walk(g.Then, t, nil, atElement, g.Path, 0).mirrors, t)
}

// turned gives the mirrors that answers to t meet where t met these.
func (n *Node) turned(met []mirror, t onpath.Tuple) []mirror {
	var mirrors []mirror
	for _, m := range slices.Backward(met) {
		sibling := n.groups[m.group^1]
		if sibling == nil {
			continue
		}
		if member, ok := n.pick(sibling, t.Reverse()); ok {
			mirrors = append(mirrors, mirror{sibling.ID, member})
		}
	}
	return mirrors
}

// leave sends a packet out by the node's routes.
func (n *Node) leave(w *work) {
	from := w.key.vport
	if n.vports[from] == nil && from != n.edgeVport() {
		from = 0
	}
	u := n.route(w.h.tuple.Dst)
	if u == nil || n.isLocal(w.h.tuple.Dst) {
		n.countDrop(from, onpath.DropNoRoute)
		return
	}
	if u.MTU > 0 && w.h.length > u.MTU {
		n.tooBig(w, u.MTU)
		return
	}
	if w.h.ttl <= 1 {
		n.expired(w)
		return
	}
	if n.edge != nil && len(n.edge.NAT) > 0 && within(n.edge.NAT, w.h.tuple.Src) && !n.nat.out(n, w, u) {
		n.countDrop(from, onpath.DropNATPorts)
		return
	}
	decrement(w.b, &w.h)
	if edge := n.edgeVport(); edge != 0 {
		n.countOut(edge, w.h.length)
		n.show(edge, true, w.b)
	}
	n.deliver(Delivery{Device: u.Device, By: BySteering, Packet: w.b})
}

// route finds the uplink by which an address is reached.
func (n *Node) route(a netip.Addr) *Uplink {
	for _, r := range n.options.Routes {
		if r.Prefix.Contains(a) {
			return n.uplink(r.Device)
		}
	}
	return nil
}

func (n *Node) uplink(device string) *Uplink {
	for i := range n.options.Uplinks {
		if n.options.Uplinks[i].Device == device {
			return &n.options.Uplinks[i]
		}
	}
	return nil
}

// address is one of the node's on an uplink, of the wanted version.
func (u *Uplink) address(v6 bool) (netip.Addr, bool) {
	for _, a := range u.Addresses {
		if a.Is6() == v6 {
			return a, true
		}
	}
	return netip.Addr{}, false
}

// kernel is ordinary forwarding.
func (n *Node) kernel(b []byte, h header) {
	if h.verdict == malformed {
		return
	}
	b = b[:h.length]
	if n.isLocal(h.tuple.Dst) || quietKind(&h) {
		n.deliver(Delivery{By: ByLocal, Packet: b})
		return
	}
	u := n.route(h.tuple.Dst)
	if u == nil || h.ttl <= 1 {
		return
	}
	decrement(b, &h)
	n.forwarded++
	n.deliver(Delivery{Device: u.Device, By: ByKernel, Packet: b})
}
