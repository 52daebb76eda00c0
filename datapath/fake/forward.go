package fake

import (
	"cmp"
	"encoding/binary"
	"slices"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/internal/packet"
)

// follow does with a packet what its entry says, which was there.
func (n *Node) follow(w *work, f *flow) {
	if !w.writes {
		c := *f // an error leaves no trace in entries
		f = &c
	}
	if f.kind != onpath.NextPending {
		w.followed = true
	}
	if f.kind == onpath.NextPending {
		if !n.classifyEgress(w, f) {
			return
		}
		f.decided(w, n.generation)
	}
	if w.writes {
		n.touch(w, f)
		n.promote(w, f)
	}
	n.steer(w, f)
}

// begin does with a flow's first packet what its new entry says.
func (n *Node) begin(w *work, f *flow) {
	n.touch(w, f)
	n.steer(w, f)
}

// touch counts a packet on its entry.
func (n *Node) touch(w *work, f *flow) {
	goesOn := f.rst && n.now().Unix() != f.seen.Unix() // the RST was somebody else's
	f.seen = n.now()
	f.heard = f.heard && !n.takes(f.next)
	f.packets += n.pieces()
	f.bytes += n.wire(w.h.Length)
	if w.h.Protocol == packet.TCP {
		f.rst = f.rst && !goesOn
		switch {
		case w.h.Flags&packet.SYN != 0:
			if (f.fin || f.rst) && n.portsAgain(w, f) {
				f.fin, f.rst = false, false
			}
		case w.h.Flags&(packet.FIN|packet.RST) != 0 && n.endFits(w, f):
			f.fin = f.fin || w.h.Flags&packet.FIN != 0
			f.rst = f.rst || w.h.Flags&packet.RST != 0
		}
		n.noteTCP(w, f)
	}
}

// handshakeAhead is how far behind what has to come an acknowledgement may be, in bytes.
const handshakeAhead = 1 << 20

// noteTCP notes TCP's acknowledgement number; an entry that is asked for another one keeps
// that until it comes.
func (n *Node) noteTCP(w *work, f *flow) {
	if w.h.Flags&packet.RST != 0 || w.h.Flags&packet.ACK == 0 || !w.h.Whole() {
		return
	}
	ack := binary.BigEndian.Uint32(w.b[w.h.L4+8:])
	if f.asked && ack-f.ack > handshakeAhead {
		return
	}
	f.ack, f.asked = ack, false
}

// askFor notes which acknowledgement number shows that a SYN's sender is where it says: the
// packet answers the SYN.
func (n *Node) askFor(w *work, k flowKey, f *flow) {
	f.ack, f.asked = binary.BigEndian.Uint32(w.b[w.h.L4+4:])+1, true
	if k.vport != n.edgeVport() {
		f.ack &^= 0xff // an entry elsewhere has no room for it
	}
}

// classifyEgress finds out where a packet goes that came out of an instance for the
// first time, and writes that into its entry.
func (n *Node) classifyEgress(w *work, f *flow) bool {
	g := n.groups[f.context]
	if g == nil {
		n.countDrop(w.key.vport, onpath.DropNoTable)
		return false
	}
	return n.goOn(w, f, g, !f.known && !w.h.Runs())
}

// goOn walks the Then table of g, which the packet has left or which is passed
// by, and lets the entry lead where the walk ends. What begins there, begins with the
// packet; or the flow only moves.
func (n *Node) goOn(w *work, f *flow, g *onpath.Group, begins bool) bool {
	from := atElement
	if w.uplink != "" {
		from = atEdge
	}
	d := n.walkOn(decision{path: g.Path, functions: f.functions[:len(f.functions):len(f.functions)]}, g.Then, w.key.tuple, &w.h, from, w.key.vport)
	if begins && w.writes && !n.mayBeginAll(w, d.begun, n.tenantOf(g.Path)) {
		n.countDrop(w.key.vport, onpath.DropNewFlows)
		return false
	}
	if d.adopted && from == atElement {
		n.countPassed(d.passed, w.h.Length)
	}
	if d.outcome == toReset && from == atElement && w.h.Flags&packet.RST != 0 { // as cut
		w.writes = false
		past := flow{entry: f.entry, context: f.context, path: g.Path, reverse: g.Reverse, mirrors: d.mirrors, functions: d.functions}
		n.aimAtExit(&past)
		n.steer(w, &past)
		return false
	}
	if d.outcome == toReset || d.outcome == toDrop { // the entry stays as it is: the next packet asks again
		if w.uplink != "" {
			n.countIn(w.key.vport, w.h.Length)
		}
		n.refuse(w, d)
		return false
	}
	f.functions = d.functions
	f.mirrors = append(f.mirrors[:len(f.mirrors):len(f.mirrors)], d.mirrors...)
	f.path, f.reverse, f.adopted = d.path, d.reverse, d.adopted && from == atElement
	if d.path == g.Path {
		f.reverse = g.Reverse
	}
	switch d.outcome {
	case toMember:
		f.kind, f.next, f.group = onpath.NextVport, d.member, d.group.ID
		if from == atElement && d.group.Lost == onpath.LostReset && w.h.Runs() {
			f.next = cmp.Or(n.home(d.group, w.key.tuple, 0), f.next)
		}
		if w.writes && f.next == d.member {
			noteAffinity(n, d.group, w.key.tuple, d.member)
		}
	case toExit:
		f.group, f.entry = 0, cmp.Or(d.leaves, f.entry)
		n.aimAtExit(f)
	case toRoute:
		f.kind, f.next, f.group, f.route = onpath.NextExit, n.edgeVport(), 0, true
	case toKernel, toPass: // nothing is left of the chain but passing by
		f.kind, f.next, f.group = onpath.NextPass, 0, 0
	}
	return true
}

// steer sends a packet where its entry leads.
func (n *Node) steer(w *work, f *flow) {
	fromEdge := w.uplink != ""
	if w.accepts {
		if fromEdge {
			n.countIn(w.key.vport, w.h.Length)
			n.tellPartner(w.key.tuple, w)
		}
		n.reset(w) // the next SYN begins anew
		return
	}
	if f.kind == onpath.NextVport && !n.takes(f.next) && !n.lost(w, f) {
		return
	}
	if fromEdge && w.writes {
		n.tellPartner(w.key.tuple, w)
	}
	if f.kind == onpath.NextPass {
		if len(f.mirrors) > 0 {
			n.countIn(w.key.vport, w.h.Length)
			n.copyToMirrors(w, f)
		}
		n.countPassed(f.path, w.h.Length)
		n.kernel(w.b, w.h)
		return
	}
	if fromEdge {
		n.countIn(w.key.vport, w.h.Length)
		if f.path != 0 {
			n.countSteered(f.path, w.h.Length)
		}
		if w.writes {
			n.learnStations(w.key.tuple)
		}
	}
	if !n.runFunctions(w, f) {
		return
	}
	if mtu := n.fits(f); mtu > 0 {
		if n.longest(&w.h) > mtu && !n.divisible(&w.h) {
			n.tooBig(w, mtu)
			return
		}
		packet.Clamp(w.b, &w.h, mtu)
	}
	n.copyToMirrors(w, f)
	if f.kind == onpath.NextExit {
		n.exit(w, f)
		return
	}
	n.hand(w, f)
}

// fits is how large packets of an entry may be: what its path says, which says nothing of
// an instance's own, and what the tunnel to where it leads can hold. 0: of any size.
func (n *Node) fits(f *flow) (mtu int) {
	if p := n.paths[f.path]; p != nil {
		mtu = p.MTU
	}
	v := n.vports[f.next]
	if f.kind != onpath.NextVport || v == nil || v.Kind != onpath.VportRemote {
		return mtu
	}
	p, around := n.peers[v.Peer], 50
	if p.Address.Is6() {
		around = 70
	}
	if held := p.MTU - around; held > 0 && (mtu == 0 || held < mtu) {
		return held
	}
	return mtu
}

// lost acts when the vport that an entry leads to takes nothing any more. It
// reports whether the packet goes on.
func (n *Node) lost(w *work, f *flow) bool {
	if n.leaveAtPeer(f) {
		return true
	}
	g := n.groups[f.group]
	running := w.h.Protocol == packet.TCP && w.h.Flags&(packet.SYN|packet.ACK) != packet.SYN
	why := onpath.DropClosed
	if g != nil {
		if g.Lost == onpath.LostReset && running && n.awaited(w, f) {
			return true
		} else if g.Lost == onpath.LostReset && running {
			why = onpath.DropReset
		} else if member, ok := n.pick(g, w.key.tuple); ok && n.function(member) == nil {
			f.next, f.heard, f.answered = member, false, 0
			return true
		} else if ok || g.None == onpath.NoneBypass {
			before := f.functions
			if ok {
				f.functions = append(slices.Clip(f.functions), inlined{member, g.None == onpath.NoneBypass, g.ID})
			}
			goes := n.goOn(w, f, g, false)
			if !goes {
				f.functions = before
			}
			if w.writes {
				n.rewritten(f)
			}
			return goes
		} else {
			why = onpath.DropNoInstance
		}
	}
	if g == nil && n.letGo(w, f) {
		n.again(w)
		return false
	}
	if w.uplink != "" {
		n.countIn(w.key.vport, w.h.Length)
	}
	if why == onpath.DropReset {
		n.reset(w)
		return false
	}
	n.countDrop(w.key.vport, why)
	return false
}

// awaited tells a connection that began through an instance while that was closed here,
// and whose node answers: it resets the connection if the instance is dead.
func (n *Node) awaited(w *work, f *flow) bool {
	known, v := n.find(w.key, w.tenant), n.vports[f.next]
	return known != nil && known.heard && known.next == f.next && v != nil && !v.Away
}

// hear marks an entry for the answers of a connection that begins by this packet, out of
// the vport that it leads to, if that is closed here. It is not where it is, or nothing
// would have come: this node has not heard yet.
func (n *Node) hear(w *work, e *flow, from onpath.VportID) {
	v := n.vports[from]
	if w.h.Begins() && e.kind == onpath.NextVport && e.next == from && v != nil && v.Kind == onpath.VportRemote && !n.takes(from) {
		e.heard = true
	}
}

// copyToMirrors makes the copies that an entry asks for. A mirror that is gone
// is chosen anew; one without instances is passed by.
func (n *Node) copyToMirrors(w *work, f *flow) {
	for i := range f.mirrors {
		m := &f.mirrors[i]
		if !n.takes(m.vport) {
			g := n.groups[m.group]
			if g == nil {
				continue
			}
			member, ok := n.pick(g, w.key.tuple)
			if !ok {
				continue
			}
			m.vport = member
		}
		c := *w
		c.b, c.writes = slices.Clone(w.b), false
		n.handTo(&c, m.vport, &flow{next: m.vport, entry: f.entry}, ByMirror)
	}
}

// hand gives a packet to the vport that its entry leads to, here or elsewhere.
func (n *Node) hand(w *work, f *flow) { n.handTo(w, f.next, f, BySteering) }

func (n *Node) handTo(w *work, to onpath.VportID, f *flow, by By) {
	v := n.vports[to]
	switch {
	case v == nil:
		n.countDrop(w.key.vport, onpath.DropClosed)
	case v.Kind == onpath.VportRemote:
		n.tunnelOut(w, v, f, by)
	case v.Kind == onpath.VportFunction: // what another node claims to come from lies here
		n.countDrop(w.key.vport, onpath.DropUnknownVport)
	case by == ByMirror:
		n.out(w, v, by)
	default:
		n.enter(w, f)
	}
}

// tunnelOut carries a packet to the node of a remote vport.
func (n *Node) tunnelOut(w *work, v *onpath.Vport, f *flow, by By) {
	p := n.peers[v.Peer]
	to := n.net.underlay[p.Address]
	if to == nil {
		n.countDrop(w.key.vport, onpath.DropNoNeighbour)
		return
	}
	n.countOut(v.ID, w.h.Length)
	group := f.group
	if v.ID == f.entry {
		group = f.context
	}
	prev := w.key.vport
	if k := len(f.functions); k > 0 {
		prev = f.functions[k-1].vport
		if g := f.functions[k-1].group; v.ID == f.entry && g != 0 {
			group = g
		}
		if w.writes {
			n.learnRelay(w, f, v)
		}
	}
	t := Tunnelled{From: n.underlay, Secret: p.Secret, Next: v.ID, Prev: prev, Entry: f.entry, Group: group, Packet: w.b}
	if f.adopted && v.ID == f.entry {
		t.Entry = 0
	}
	if n.net.onTunnel == nil || n.net.onTunnel(t, by) {
		to.tunnelIn(t)
	}
}

// learnRelay writes the entry by which answers from the other node run the
// functions that this packet has passed, and go where it came from.
func (n *Node) learnRelay(w *work, f *flow, v *onpath.Vport) {
	from := w.key.vport
	back := flowKey{v.ID, w.key.tuple.Reverse()}
	tenant := n.vports[f.functions[len(f.functions)-1].vport].Tenant // where answers will look
	if !n.outlived(n.find(back, tenant), f.path) && n.leads(w, back, from, tenant) {
		return
	}
	e := flow{kind: onpath.NextVport, next: from, entry: f.entry, path: f.path, reverse: !f.reverse, functions: n.repliedBy(w, f)}
	if g := n.groups[f.group]; g != nil {
		e.mirrors, e.group = n.replying(g, w.key.tuple, f, from)
	} else if g := n.groups[f.functions[len(f.functions)-1].group]; g != nil {
		e.mirrors, e.group = n.replying(g, w.key.tuple, f, from)
	}
	if e.group != 0 {
		e.path, _, _ = e.group.Split()
	}
	if from == n.edgeVport() {
		e.kind, e.group = onpath.NextExit, 0
	}
	n.repliesGo(w, back, e, tenant, f)
}

// enter delivers a packet to an instance on this node and writes the context in
// which it will come out again: f leads from w.key.vport to the instance.
func (n *Node) enter(w *work, f *flow) {
	v := n.vports[f.next]
	g := n.groups[f.group]
	if v.Mirror { // a copy that another node made, or by another node's word
		by := BySteering
		if w.tunnel != nil {
			by = ByMirror
		}
		n.outWithin(w, v, by)
		return
	}
	if w.writes && g != nil {
		n.learnContext(w, f, v, g)
	} else if known := n.find(flowKey{v.Other, w.key.tuple}, v.Tenant); w.writes && known != nil && f.group == 0 {
		n.moveGateway(known, f.entry) // from the other tier's element
	}
	if v.Tells {
		w.told = onpath.ChainMAC(f.path, f.reverse)
	}
	n.outWithin(w, v, BySteering)
}

// outWithin gives a packet to an instance's device, if its rate allows.
func (n *Node) outWithin(w *work, v *onpath.Vport, by By) {
	if !n.withinRate(v, true, w.h.Length) {
		n.countDrop(w.key.vport, onpath.DropRate)
		return
	}
	n.out(w, v, by)
}

// learnContext writes the two entries of a flow at an instance: what comes out
// behind goes on, what comes out in front goes back.
func (n *Node) learnContext(w *work, f *flow, v *onpath.Vport, g *onpath.Group) {
	n.learnReply(w, f, v, g)
	pending := flow{kind: onpath.NextPending, context: g.ID, entry: f.entry, path: g.Path, reverse: g.Reverse, known: w.followed}
	ahead := n.learn(w, flowKey{v.Other, w.key.tuple}, pending, v.Tenant)
	if ahead.context != g.ID && !ahead.counts && !f.counts { // of a path that the flow was in before
		pending.renew(ahead)
	} else {
		n.moveGateway(ahead, f.entry)
	}
}

// learnReply leads what comes out in front of an instance back to where the packet
// came from.
func (n *Node) learnReply(w *work, f *flow, v *onpath.Vport, g *onpath.Group) {
	t, from := w.key.tuple, w.key.vport
	back := flowKey{v.ID, t.Reverse()}
	if !n.outlived(n.find(back, v.Tenant), f.path) && n.leads(w, back, from, v.Tenant) {
		return
	}
	e := flow{learned: true, adopted: f.adopted, kind: onpath.NextVport, next: from, context: g.ID ^ 1, entry: f.entry, path: g.Path, reverse: !f.reverse}
	var group onpath.GroupID
	e.mirrors, group = n.replying(g, t, f, from)
	e.functions = n.repliedBy(w, f)
	switch from {
	case n.edgeVport():
		e.kind = onpath.NextExit
	case f.entry:
	default:
		if e.group = group; group != 0 {
			e.path, _, _ = group.Split()
		}
	}
	n.repliesGo(w, back, e, v.Tenant, f)
}

// leads tells whether an entry leads to next already, from where the packet comes, and
// marks it as seen.
func (n *Node) leads(w *work, k flowKey, next onpath.VportID, tenant string) bool {
	f := n.find(k, tenant)
	if f == nil {
		return false
	}
	w.before = f.seen
	f.seen = n.now()
	n.hear(w, f, next)
	n.noteReply(w, k, f, next)
	return f.next == next && f.kind != onpath.NextPending
}

// repliesGo lets the answers to a packet, by which f leads, go by e.
func (n *Node) repliesGo(w *work, back flowKey, e flow, tenant string, f *flow) {
	known := n.learn(w, back, e, tenant)
	n.turn(w, back, known, e, f)
	n.hear(w, known, e.next)
	n.noteReply(w, back, known, e.next)
}

// noteReply notes that a packet of the other direction has come out of a vport, and goes to
// where those of the entry come from; one of a handshake shows that the connection is with
// that, and its own sender has to acknowledge it.
func (n *Node) noteReply(w *work, k flowKey, f *flow, from onpath.VportID) {
	if f.noted && k.vport == n.edgeVport() && w.h.Protocol == packet.TCP && w.h.Flags&(packet.SYN|packet.ACK) == packet.SYN|packet.ACK {
		f.rst, w.accepts = true, true // as noteAccepting
	}
	f.replied = true
	if w.h.Protocol == packet.TCP && w.h.Flags&(packet.SYN|packet.ACK) == packet.SYN|packet.ACK && w.h.Whole() && f.place != nil {
		n.askFor(w, k, f)
	}
	if w.h.Protocol == packet.TCP && w.h.Flags&packet.SYN != 0 && f.kind == onpath.NextVport && f.next == from && !f.adopted {
		f.answered = from
	}
}

// replyFresh is how long an answer tells where a connection is that shows no packets.
const replyFresh = 4

// isWith reports whether a connection is known to have begun with the member that its entry
// leads to: of an element that resets what it loses, no other can take it over, but where
// a connection begins. An entry that rested, or whose connection has ended, may be of one
// before.
func (n *Node) isWith(w *work, k flowKey, f *flow) bool {
	g := n.groups[f.group]
	if w.h.Protocol != packet.TCP || w.h.Begins() || g == nil || g.Lost != onpath.LostReset || f.answered != f.next {
		return false
	}
	return !hasEnded(f, n.find(n.mateOf(k, f), f.tenant)) && n.now().Unix()-w.before.Unix() <= replyFresh
}

// turn lets an entry for answers lead to where the packets come from now, if it
// led nowhere yet, to another instance of the same element, or to one that is
// gone; never if an instance began the flow, be it with one packet, forged perhaps,
// by which f leads.
func (n *Node) turn(w *work, k flowKey, old *flow, e flow, f *flow) {
	if old.counts || f.counts {
		return
	}
	same := old.kind == e.kind && old.next == e.next
	if n.outlived(old, f.path) || !same && old.kind != onpath.NextPending && w.h.Begins() && (old.adopted || hasEnded(old, n.find(n.mateOf(k, old), old.tenant))) {
		e.renew(old)
		old.decided(w, n.generation)
		n.rewritten(old)
		return
	}
	if old.kind == onpath.NextPass || same {
		return
	}
	if n.peerGateway(old.next) != 0 && n.peerGateway(old.next) == e.next && !old.learned {
		return
	}
	g := n.groups[old.group]
	replaces := g != nil && old.kind == onpath.NextVport && old.group == e.group && hasMember(g, e.next) && !n.isWith(w, k, old) ||
		n.peerGateway(old.next) != 0 && n.peerGateway(old.next) == e.next
	if old.kind != onpath.NextPending && !replaces && n.takes(old.next) {
		if old.answered == old.next && e.kind == onpath.NextVport {
			old.seen = w.before // what another than that says is no use of it
		}
		return
	}
	e.renew(old)
	old.decided(w, n.generation)
	n.rewritten(old)
}

// renew writes f over an entry, which keeps what it counted and noted.
func (f flow) renew(old *flow) {
	f.seen, f.packets, f.bytes = old.seen, old.packets, old.bytes
	f.tenant, f.place, f.ack, f.asked, f.replied = old.tenant, old.place, old.ack, old.asked, old.replied
	f.generation, f.noted = old.generation, old.noted
	*old = f
}

// outlived reports whether an entry is of a path that has ended, and a packet of its
// flow goes by another.
func (n *Node) outlived(f *flow, path onpath.PathID) bool {
	if f == nil || f.path == 0 || f.path == path || n.paths[path] == nil {
		return false
	}
	p := n.paths[f.path]
	return p != nil && (p.Closed || !p.Ended.IsZero())
}

// letGo forgets an entry that leads to what is no more and that tells no group which
// would choose another. It reports whether the packet is to be decided anew; else the
// flow's next one is.
func (n *Node) letGo(w *work, f *flow) bool {
	known := n.find(w.key, w.tenant)
	if w.anew || !w.writes || n.vports[f.next] != nil || known == nil || known.next != f.next || (w.tunnel != nil && n.function(w.tunnel.Next) == nil) {
		return false
	}
	w.anew = true
	if w.uplink == "" && w.tunnel == nil && !known.counts && n.groups[known.context] != nil {
		known.kind, known.next, known.functions, known.mirrors, known.answered = onpath.NextPending, 0, nil, nil, 0
		return true
	}
	n.drop(w.key, known)
	translates := n.edge != nil && len(n.edge.NAT) > 0 // what was translated as it came in cannot be so once more
	return w.tunnel == nil && (f.path != 0 || !translates)
}

// out gives a packet to an instance's device.
func (n *Node) out(w *work, v *onpath.Vport, by By) {
	n.countOut(v.ID, w.h.Length)
	n.giveFrom(cmp.Or(w.told, v.HostMAC), w.b, v, by)
}

// give hands a packet to an instance's device without counting it.
func (n *Node) give(b []byte, v *onpath.Vport, by By) { n.giveFrom(v.HostMAC, b, v, by) }

// deliveryOf is a packet at an instance's device.
func (n *Node) deliveryOf(src string, b []byte, v *onpath.Vport, by By) Delivery {
	d := Delivery{Device: onpath.DeviceName(v.ID), By: by, Src: src, Dst: v.MAC, Packet: b}
	if o := n.vports[v.Other]; v.Attach == onpath.Bridged && o != nil {
		d.Dst = o.HostMAC
	}
	return d
}

func (n *Node) giveFrom(src string, b []byte, v *onpath.Vport, by By) {
	d := n.deliveryOf(src, b, v, by)
	n.show(v.ID, true, b)
	if v.Asleep {
		n.puntAsleep(v.ID, d)
		return
	}
	n.deliver(d)
}

func (n *Node) deliver(d Delivery) {
	d.Node = n.name
	n.net.emit(d)
}
