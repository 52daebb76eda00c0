package fake

import (
	"net/netip"
	"slices"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/internal/packet"
)

// exit lets a packet leave at this node's edge, and writes the entry by which
// its answers find back.
func (n *Node) exit(w *work, f *flow) {
	if w.writes && n.edgeVport() != 0 {
		if w.key.vport != n.edgeVport() && !w.edited && n.isLocal(w.key.tuple.Src) {
			from := w.key.vport
			if n.vports[from] == nil {
				from = 0
			}
			n.countDrop(from, onpath.DropSpoofed) // it would get the node's own answers
			return
		}
		if !n.learnReturn(w, f) {
			n.countDrop(w.key.vport, onpath.DropQuota)
			return
		}
		if w.accepts {
			n.reset(w)
			return
		}
		if w.key.vport != n.edgeVport() || len(f.functions) > 0 {
			n.tellPartner(w.key.tuple.Reverse(), w)
		}
	}
	n.leave(w, f)
}

// learnReturn leads answers that come in at the edge to the element that the
// packet came out of. It reports false if there is no room for that.
func (n *Node) learnReturn(w *work, f *flow) bool {
	edge, from := n.edgeVport(), w.key.vport
	if n.peerGateway(f.entry) == edge {
		f.entry = edge // the other gateway is gone
	}
	if p := n.paths[f.path]; f.path != 0 && (p == nil || p.Closed) {
		return true // the path ended: its answers go the ordinary way, or by the next one
	}
	if p := n.paths[f.path]; p != nil && p.Forward && !n.begun(w, f) {
		return true // its answers go the ordinary way
	}
	back := flowKey{edge, w.key.tuple.Reverse()}
	tenant, settle := n.tenantOfReply(w, f, back)
	if n.leads(w, back, from, tenant) || w.accepts {
		return true
	}
	e := flow{kind: onpath.NextVport, next: from, entry: edge, path: f.path, reverse: !f.reverse, functions: backwards(f.functions), learned: true, adopted: f.adopted}
	if from == edge { // only mirrors were passed
		e.kind = onpath.NextExit
		e.mirrors = n.reversed(f.mirrors, w.key.tuple)
	}
	switch g := n.groups[f.context]; {
	case g != nil:
		e.group, e.path = g.ID^1, g.Path
		if e.mirrors = n.behind(g, w.key.tuple); f.adopted { // none of the other tier's chain
			e.mirrors = slices.DeleteFunc(e.mirrors, func(m mirror) bool { return n.groups[m.group].Path != g.Path })
		}
	case n.relayed(w): // it came for functions here, and names their group alone
		if g := n.firstMet(back.tuple, from); g != nil {
			e.group, e.path = g.ID, g.Path
		}
		if k := len(f.functions); k > 0 && n.groups[f.functions[k-1].group] != nil {
			e.mirrors = n.behind(n.groups[f.functions[k-1].group], w.key.tuple)
		}
	}
	if settle && n.find(back, tenant) == nil {
		if !n.hasRoom(n.holder(&e), true) {
			return false
		}
		n.hear(w, &e, from)
		e.decided(w, n.generation)
		n.insertEstablished(back, &e, tenant)
		return true
	}
	n.repliesGo(w, back, e, tenant, f)
	return true
}

// begun reports whether an instance or a function began the flow or changed its
// tuple, so that nobody else can take the answers: what came in at this edge as it
// leaves has its entry here.
func (n *Node) begun(w *work, f *flow) bool {
	if f.counts {
		return true
	}
	k := flowKey{n.edgeVport(), w.key.tuple}
	return !f.route && f.entry == k.vport && n.find(k, n.tenantOf(n.firstPath(k.tuple))) == nil
}

// tenantOfReply tells in whose share an answer's entry at the edge stands: that of
// the path by whose rule the answer finds it while it is pending. What no rule takes
// must be established at once: it is the answer to an instance's own traffic.
func (n *Node) tenantOfReply(w *work, f *flow, back flowKey) (tenant string, settle bool) {
	if n.established(back) != nil {
		return nobody, false
	}
	first := n.firstPath(back.tuple)
	path := first
	if first == 0 {
		path = f.path
	}
	if n.paths[path] != nil {
		return n.paths[path].Tenant, first == 0
	}
	if v := n.local(w.key.vport); v != nil && w.tunnel == nil {
		return v.Tenant, first == 0
	}
	return nobody, first == 0
}

// firstPath is the path whose rule a packet at the edge matches first, or 0.
func (n *Node) firstPath(t onpath.Tuple) onpath.PathID {
	id := n.edge.Table
	for range maxTables {
		table := n.tables[id]
		if table == nil {
			return 0
		}
		action := table.Miss
		for i := range table.Rules {
			if r := &table.Rules[i]; matches(&r.Match, t, true, true) {
				if r.Path != 0 {
					return r.Path
				}
				action = r.Action
				break
			}
		}
		if action.Kind != onpath.ActionTable {
			return 0
		}
		id = action.Table
	}
	return 0
}

// firstMet is the group of the element that a packet at the edge meets first, by the
// rules, if the instance behind vport is of it; or nil.
func (n *Node) firstMet(t onpath.Tuple, vport onpath.VportID) *onpath.Group {
	id := n.edge.Table
	for range maxTables {
		table := n.tables[id]
		if table == nil {
			return nil
		}
		action := table.Miss
		if i := slices.IndexFunc(table.Rules, func(r onpath.Rule) bool { return matches(&r.Match, t, true, true) }); i >= 0 {
			action = table.Rules[i].Action
		}
		if action.Kind == onpath.ActionTable {
			id = action.Table
			continue
		}
		g := n.groups[action.Group]
		if action.Kind != onpath.ActionGroup || g == nil {
			return nil
		}
		if g.Mode == onpath.ModeMirror || n.isInline(g) && !hasMember(g, vport) {
			id = g.Then
			continue
		}
		if hasMember(g, vport) {
			return g
		}
		if _, ok := n.pick(g, t); ok || g.None != onpath.NoneBypass {
			return nil
		}
		id = g.Then
	}
	return nil
}

// behind walks the Then table of the last element that t left, to find which
// mirrors its answers must meet as they come back in at the edge.
func (n *Node) behind(g *onpath.Group, t onpath.Tuple) []mirror {
	if n.tables[g.Then] == nil {
		return nil
	}
	return n.reversed(n.walk(g.Then, t, nil, atElement, g.Path, 0).mirrors, t)
}

// reversed gives the mirrors that answers to t meet where t met these.
func (n *Node) reversed(met []mirror, t onpath.Tuple) []mirror {
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

// leave sends a packet out over a bridge, or by the node's routes.
func (n *Node) leave(w *work, f *flow) {
	from := w.key.vport
	if n.vports[from] == nil && from != n.edgeVport() {
		from = 0
	}
	if n.leaveBridge(w, f, from) {
		return
	}
	u := n.route(w.h.Tuple.Dst)
	if u == nil || n.isLocal(w.h.Tuple.Dst) || n.anycast(w.h.Tuple.Dst) {
		n.countDrop(from, onpath.DropNoRoute)
		if w.h.V6 {
			n.complain(w, 1, 0, 0)
		} else {
			n.complain(w, 3, 0, 0)
		}
		return
	}
	if u.MTU > 0 && n.longest(&w.h) > u.MTU {
		n.tooBig(w, u.MTU)
		return
	}
	if w.h.TTL <= 1 {
		n.expired(w)
		return
	}
	if n.edge != nil && len(n.edge.NAT) > 0 {
		if why := n.nat.out(n, w, u); why != "" {
			n.countDrop(from, why)
			return
		}
	}
	packet.Decrement(w.b, &w.h)
	if edge := n.edgeVport(); edge != 0 {
		n.countOut(edge, w.h.Length)
		n.show(edge, true, w.b)
	}
	n.deliver(Delivery{Device: u.Device, By: BySteering, Packet: w.b})
}

// anycast tells the address of all routers of a network that the node is in (RFC 4291
// §2.6.1): its own, too.
func (n *Node) anycast(a netip.Addr) bool {
	return a.Is6() && slices.ContainsFunc(n.options.Routes, func(r Route) bool {
		u := n.uplink(r.Device)
		return r.Prefix.Masked().Addr() == a && u != nil && slices.ContainsFunc(u.Addresses, r.Prefix.Contains)
	})
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

// kernel is ordinary forwarding, or crossing a bridge.
func (n *Node) kernel(b []byte, h packet.Header) {
	if n.bridged != nil {
		n.crossBridge(b, h)
		return
	}
	if h.Verdict == packet.Malformed {
		return
	}
	b = b[:h.Length]
	if n.isLocal(h.Tuple.Dst) || h.Confined() {
		n.deliver(Delivery{By: ByLocal, Packet: b})
		return
	}
	u := n.route(h.Tuple.Dst)
	if u == nil || h.TTL <= 1 {
		return
	}
	packet.Decrement(b, &h)
	n.forwarded++
	n.deliver(Delivery{Device: u.Device, By: ByKernel, Packet: b})
}
