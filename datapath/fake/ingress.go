package fake

import (
	"cmp"
	"net/netip"
	"slices"
	"time"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/internal/packet"
)

// work is one packet on its way through one node.
type work struct {
	edited bool         // a function changed the tuple
	came   onpath.Tuple // what it was
	// outside is its destination before translation, if that was translated.
	outside netip.AddrPort
	anew    bool // decided for a second time, as its entry led nowhere
	// accepts: it answers a SYN that was led past a chain with an older connection.
	accepts bool
	// followed: it went by an entry that was there.
	followed bool
	// asked: the other gateway has given it back.
	asked bool
	b     []byte
	h     packet.Header
	// key is what entries are looked up by: the packet's own tuple, or for ICMP
	// errors the reverse of the one they quote.
	key flowKey
	// writes is false for ICMP errors: they follow entries and make none.
	writes bool
	// tenant is in whose share the packet's entry is, unless it is established.
	tenant string
	// uplink is the device by which the packet came in, if by one.
	uplink string
	// tunnel is how it came from another node, if it did.
	tunnel *Tunnelled
	// told is the source of its frame to an instance that is told the chain; "": the vport's.
	told string
	// before is when the entry for its answers was in use last, but for this packet.
	before time.Time
}

// nowhere is the path of packets whose group this node does not have.
const nowhere = onpath.PathID(1 << 18)

func (n *Node) newWork(b []byte, h packet.Header, in onpath.VportID) *work {
	w := &work{b: b[:h.Length], h: h, key: flowKey{in, h.Tuple}, writes: !h.IsError}
	if h.IsError && h.Quotes {
		w.key.tuple = h.Quoted.Reverse()
	}
	return w
}

// frameIn takes a frame at a device.
func (n *Node) frameIn(device string, f frame) {
	u := n.edgeUplink(device)
	foreign := u != nil && u.Attach != onpath.AttachBridge && u.Attach != onpath.AttachTap && f.inVLAN()
	if f.isIP() && u != nil && (u.Attach == onpath.AttachRouter || u.Attach == onpath.AttachArm) && f.dst[0]&1 != 0 {
		n.toAll(f.payload)
		return
	}
	if f.isIP() && u != nil && u.Attach == onpath.AttachBridge {
		n.bridge(u, f)
		return
	}
	if f.isIP() && !foreign {
		n.packetIn(device, f.payload)
		return
	}
	if n.devices[device] != 0 {
		return // what is not IP stays between an instance and its own kernel
	}
	if u != nil && n.edge.Table != 0 && encapsulating(f.etherType) {
		n.counters.Encapsulated++
	}
	n.deliver(Delivery{By: ByLocal, Packet: f.payload})
}

// toAll takes a packet whose frame is for several machines: none forwards it.
func (n *Node) toAll(b []byte) {
	if h := packet.Parse(b); h.Verdict != packet.Malformed && (n.isLocal(h.Tuple.Dst) || h.Confined()) {
		n.kernel(b, h)
	}
}

// packetIn takes an IP packet at a device.
func (n *Node) packetIn(device string, b []byte) {
	h := packet.Parse(b)
	if id := n.devices[device]; id != 0 {
		defer n.about(&h)()
		n.show(id, false, b)
		n.fromInstance(n.vports[id], b, h)
		return
	}
	if n.edgeUplink(device) == nil || n.edge.Vport == 0 {
		n.kernel(b, h)
		return
	}
	defer n.about(&h)()
	n.show(n.edge.Vport, false, b)
	n.fromUplink(device, b, h)
}

func (n *Node) edgeUplink(device string) *onpath.Uplink {
	if n.edge == nil {
		return nil
	}
	for i := range n.edge.Uplinks {
		if n.edge.Uplinks[i].Device == device {
			return &n.edge.Uplinks[i]
		}
	}
	return nil
}

// encapsulating tells MPLS and PPPoE.
func encapsulating(etherType uint16) bool {
	return etherType == 0x8847 || etherType == 0x8848 || etherType == 0x8864
}

// wraps tells the IP protocols that carry whole packets: IPv4, IPv6, GRE,
// EtherIP, MPLS.
func wraps(protocol uint8) bool {
	return slices.Contains([]uint8{4, 41, 47, 97, 137}, protocol)
}

// fromUplink decides on a packet from outside.
func (n *Node) fromUplink(device string, b []byte, h packet.Header) {
	edge := n.edge.Vport
	if h.Verdict == packet.Malformed || h.OfLink {
		n.kernel(b, h)
		return
	}
	n.defragment(edge, &h)
	if n.tunnelled(&h) {
		n.countIn(edge, h.Length)
		n.countDrop(edge, onpath.DropTunnelSource)
		return
	}
	if n.punted(device, b, &h) {
		return
	}
	if h.SourceRouted {
		n.refuseRouted(n.newWork(b, h, edge))
		return
	}
	came := h.Tuple
	n.nat.in(n, b, &h)
	w := n.newWork(b, h, edge)
	if !h.IsError && h.Tuple != came {
		w.outside = netip.AddrPortFrom(came.Dst, came.DstPort)
	}
	w.uplink = device
	known := h.Verdict == packet.Fine && (h.Quotes || !h.IsError)
	if f := n.established(w.key); f != nil && known && !n.begunAnew(w, f) {
		n.follow(w, f)
		return
	}
	t := w.key.tuple
	if h.IsError { // what it quotes, and so its key, is its sender's choice
		n.errorFromUplink(w, known)
		return
	}
	if w.outside.IsValid() && n.pendingAtEdge(w, n.firstPath(t)) == nil { // what is translated is nobody's else
		n.countIn(edge, h.Length)
		n.countDrop(edge, onpath.DropClosed)
		return
	}
	if n.unsteered(w, h.Verdict == packet.Fine) {
		n.kernel(b, h)
		return
	}
	if n.bridged != nil && n.isLocal(t.Src) { // this machine's own, which crosses
		n.kernel(b, h)
		return
	}
	if n.isLocal(t.Src) || packet.Confined(t.Src) {
		n.refuseSource(w)
		return
	}
	if h.Verdict == packet.Unreadable {
		n.withoutPorts(b, h)
		return
	}
	if n.edge.Table == 0 {
		if f := n.pendingAtEdge(w, n.firstPath(t)); f != nil && known {
			n.follow(w, f)
			return
		}
		n.leaveAlone(w)
		return
	}
	n.classify(w)
}

// errorFromUplink decides on an ICMP error from outside without an established entry;
// known is whether it could be read what it is about.
func (n *Node) errorFromUplink(w *work, known bool) {
	if f := n.pendingAtEdge(w, n.firstPath(w.key.tuple)); f != nil && known {
		n.follow(w, f)
		return
	}
	if n.orphanError(&w.h) {
		n.countIn(n.edge.Vport, w.h.Length)
		n.countDrop(n.edge.Vport, onpath.DropUnclassified)
		return
	}
	n.leaveAlone(w)
}

// protocolUnknown is no protocol's number (IANA: reserved).
const protocolUnknown = 255

// orphanError tells an ICMP error about no flow that is known here and to or from what a
// strict chain protects. Of a chain with direction forward, flows may be of the other one;
// and the other gateway of a pair may know of the flow.
func (n *Node) orphanError(h *packet.Header) bool {
	if n.edge.Table == 0 || n.gateways[0] != 0 || n.isLocal(h.Tuple.Dst) {
		return false
	}
	// Nobody knows what flow it is about: rules for protocols take none.
	of := *h
	of.Tuple.Protocol = protocolUnknown
	path, strict := n.unclassified(&of)
	return strict && !n.paths[path].Forward
}

// pendingAtEdge finds the pending entry of a packet from outside, which stands with
// the tenant of the path whose rule it matches first.
func (n *Node) pendingAtEdge(w *work, first onpath.PathID) *flow {
	w.tenant = nobody
	if n.paths[first] == nil {
		return nil
	}
	w.tenant = n.tenantOf(first)
	if f := n.find(w.key, w.tenant); f != nil && f.kind != onpath.NextPending && !n.begunAnew(w, f) {
		return f
	}
	return nil
}

// leaveAlone gives a packet that is nobody's to the kernel.
func (n *Node) leaveAlone(w *work) {
	if n.edge.Table != 0 && wraps(w.h.Protocol) {
		n.counters.Encapsulated++
	}
	n.kernel(w.b, w.h)
}

// withoutPorts decides on a packet from outside whose ports cannot be read.
func (n *Node) withoutPorts(b []byte, h packet.Header) {
	passed, strict := n.unclassified(&h)
	switch {
	case strict:
		n.countIn(n.edge.Vport, h.Length)
		n.countDrop(n.edge.Vport, onpath.DropUnclassified)
		return
	case passed != 0:
		n.countPassed(passed, h.Length)
	}
	n.kernel(b, h)
}

// again decides on a packet whose entry led nowhere and is gone, as on one of a flow
// that is not known.
func (n *Node) again(w *work) {
	if f := n.find(w.key, w.tenant); f != nil {
		n.follow(w, f)
		return
	}
	if w.uplink == "" {
		v := n.vports[w.key.vport]
		n.emission(w, v, slices.Contains(v.Own, w.h.Tuple.Src))
		return
	}
	switch {
	case n.unsteered(w, true):
		n.kernel(w.b, w.h)
	case n.edge.Table == 0:
		n.leaveAlone(w)
	default:
		n.classify(w)
	}
}

// unsteered tells what no chain takes at the edge where it has no entry: what is for the
// node itself, or an error about that, and what no chain may take anywhere.
func (n *Node) unsteered(w *work, ports bool) bool {
	t := w.key.tuple
	return n.isLocal(t.Dst) || neverSelected(t, ports)
}

// refuseSource drops a packet from outside whose source is the node's own address, or must
// not leave its link, if a chain selects it.
func (n *Node) refuseSource(w *work) {
	if n.walk(n.edge.Table, w.key.tuple, &w.h, atEdge, 0, n.edge.Vport).first == 0 {
		n.kernel(w.b, w.h)
		return
	}
	n.countIn(n.edge.Vport, w.h.Length)
	n.countDrop(n.edge.Vport, onpath.DropSpoofed)
}

// refuseRouted drops a packet from outside that names routers which it is to pass, if a
// chain selects it: the kernel, which may refuse such, does not see what a chain takes.
func (n *Node) refuseRouted(w *work) {
	t := w.key.tuple
	if n.isLocal(t.Dst) || packet.Confined(t.Dst) || n.walk(n.edge.Table, t, &w.h, atEdge, 0, n.edge.Vport).first == 0 {
		n.kernel(w.b, w.h)
		return
	}
	n.countIn(n.edge.Vport, w.h.Length)
	n.countDrop(n.edge.Vport, onpath.DropSourceRoute)
}

// classify takes a packet from outside that has no entry through the tables.
func (n *Node) classify(w *work) {
	edge := n.edge.Vport
	d := n.walk(n.edge.Table, w.key.tuple, &w.h, atEdge, 0, edge)
	known := n.pendingAtEdge(w, d.first)
	if known == nil && n.asks(w, d) {
		n.askPartner(w)
		if known = n.established(w.key); known == nil {
			known = n.pendingAtEdge(w, d.first)
		}
	}
	if known != nil {
		n.follow(w, known)
		return
	}
	if !n.mayBeginAll(w, d.begun, "") {
		n.countIn(edge, w.h.Length)
		n.countDrop(edge, onpath.DropNewFlows)
		return
	}
	f := flow{path: d.path, reverse: d.reverse, entry: edge, mirrors: d.mirrors, functions: d.functions, adopted: d.adopted}
	switch d.outcome {
	case toKernel:
		n.leaveAlone(w)
		return
	case toPass:
		f.kind, f.path = onpath.NextPass, d.passed
		ahead := n.learn(w, w.key, f, w.tenant)
		back := f
		back.reverse = !f.reverse
		n.passesToo(w, flowKey{edge, w.key.tuple.Reverse()}, back, &f)
		n.begin(w, ahead)
		return
	case toMember:
		f.kind, f.next, f.group = onpath.NextVport, d.member, d.group.ID
		noteAffinity(n, d.group, w.key.tuple, d.member)
		n.countBegun(w, f.path)
	case toExit, toRoute:
		f.kind, f.next = onpath.NextExit, edge
		if d.adopted {
			n.countPassed(d.passed, w.h.Length)
		}
		if len(f.functions) > 0 {
			n.countBegun(w, f.path)
			n.beginFunctions(w, f)
			return
		}
	case toReset:
		n.cut(w, d)
		return
	default:
		n.countIn(edge, w.h.Length)
		n.refuse(w, d)
		return
	}
	ahead := n.learn(w, w.key, f, w.tenant)
	if w.h.Flags&(packet.SYN|packet.ACK) == packet.SYN|packet.ACK {
		n.promote(w, ahead) // the SYN's entry is asked, though this one is new
	}
	n.begin(w, ahead)
}

// cut resets a connection that is older than a chain which cuts such: the end that speaks
// by an answer, the other one by what it sent, made a RST. A RST passes the chain, by what the
// operator's chain before has chosen, and leaves no entry by which others would pass.
func (n *Node) cut(w *work, d decision) {
	if w.h.Flags&packet.RST == 0 {
		n.countIn(n.edge.Vport, w.h.Length)
		n.reset(w)
		if w.asked {
			return
		}
		c := *w
		c.b = slices.Clone(w.b[:w.h.Length])
		flags := c.b[w.h.L4+12 : w.h.L4+14] // with the header's length: words are summed up
		old := slices.Clone(flags)
		flags[1] |= packet.RST
		packet.Patch(c.b[w.h.L4+16:w.h.L4+18], old, flags)
		w = &c
	}
	if len(d.functions)+len(d.mirrors) == 0 {
		n.kernel(w.b, w.h)
		return
	}
	w.writes = false
	n.steer(w, &flow{
		kind: onpath.NextExit, next: n.edge.Vport, entry: n.edge.Vport, path: d.path, reverse: d.reverse, mirrors: d.mirrors, functions: d.functions,
	})
}

// beginFunctions takes up a flow that meets functions alone: both directions are
// known before they run.
func (n *Node) beginFunctions(w *work, f flow) {
	ahead := n.learn(w, w.key, f, w.tenant)
	back := f
	back.reverse, back.functions, back.mirrors = !f.reverse, backwards(f.functions), n.reversed(f.mirrors, w.key.tuple)
	back.learned = true
	n.passesToo(w, flowKey{f.next, w.key.tuple.Reverse()}, back, &f)
	n.begin(w, ahead)
}

// passesToo lets the answers to what f leads past, or through functions alone, go alike.
func (n *Node) passesToo(w *work, k flowKey, back flow, f *flow) {
	known := n.learn(w, k, back, w.tenant)
	n.turn(w, k, known, back, f)
	n.noteReply(w, k, known, back.next)
}

// refuse ends a packet that a walk dropped or reset.
func (n *Node) refuse(w *work, d decision) {
	if d.outcome == toReset {
		n.reset(w)
		return
	}
	n.countDrop(w.key.vport, d.reason)
}

// fromInstance decides on a packet that came out of an instance.
func (n *Node) fromInstance(v *onpath.Vport, b []byte, h packet.Header) {
	about := h.Tuple // what an error quotes, turned round, as entries see it
	if h.IsError && h.Quotes {
		about = h.Quoted
	}
	if h.Verdict != packet.Malformed && (packet.Confined(about.Src) || packet.Confined(about.Dst) || h.OfLink) {
		return
	}
	length := h.Length
	if h.Verdict == packet.Malformed {
		length = len(b)
	}
	n.countIn(v.ID, length)
	own := h.Verdict != packet.Malformed && slices.Contains(v.Own, h.Tuple.Src)
	if h.Verdict != packet.Malformed {
		n.defragment(v.ID, &h)
	}
	switch {
	case h.Verdict == packet.Malformed:
		n.countDrop(v.ID, onpath.DropMalformed)
		return
	case n.tunnelled(&h):
		n.countDrop(v.ID, onpath.DropTunnelSource)
		return
	case !n.withinRate(v, false, length):
		n.countDrop(v.ID, onpath.DropRate)
		return
	case v.Mirror && !own:
		n.countDrop(v.ID, onpath.DropMirror)
		return
	}
	w := n.newWork(b, h, v.ID)
	if h.Verdict == packet.Unreadable {
		w.writes = false
		if own && v.Routes {
			n.ownError(w, v, own)
			return
		}
		n.countDrop(v.ID, onpath.DropUnclassified)
		return
	}
	w.tenant = v.Tenant
	if f := n.find(w.key, v.Tenant); f != nil && (h.Quotes || !h.IsError) {
		if !n.begunAnew(w, f) || n.find(w.key, v.Tenant) == f {
			n.follow(w, f)
			return
		}
	}
	if !w.writes || h.IsError {
		n.ownError(w, v, own)
		return
	}
	n.emission(w, v, own)
}

// restore writes the entry anew of a packet that the instance was given and gives back,
// and whose entry is gone: that of the other direction, at the instance's other side,
// tells by which group it came. It returns nil if there is none.
func (n *Node) restore(w *work, v *onpath.Vport) *flow {
	mate := n.find(flowKey{v.Other, w.key.tuple.Reverse()}, v.Tenant)
	if v.Other == 0 || w.anew || mate == nil || mate.context == 0 || mate.counts {
		return nil
	}
	g := n.groups[mate.context^1]
	if g == nil {
		return nil
	}
	w.anew = true
	return n.learn(w, w.key, flow{kind: onpath.NextPending, context: g.ID, entry: mate.entry, path: g.Path, reverse: g.Reverse, known: true}, v.Tenant)
}

// ownError decides on an ICMP error about nothing that the instance was given.
func (n *Node) ownError(w *work, v *onpath.Vport, own bool) {
	if !own || !v.Routes {
		n.countDrop(v.ID, onpath.DropSpoofed)
		return
	}
	f := flow{entry: v.Entry}
	n.aimAtExit(&f)
	n.steer(w, &f)
}

// emission decides on a packet that an instance emits and that belongs to
// nothing it was given.
func (n *Node) emission(w *work, v *onpath.Vport, own bool) {
	d := decision{outcome: unselected}
	if v.Emit != 0 {
		from := atPretender
		if own {
			from = atEmitter
		}
		d = n.walk(v.Emit, w.key.tuple, &w.h, from, 0, v.ID)
	}
	if d.outcome == unselected && (!own || !v.Routes) {
		if f := n.restore(w, v); f != nil {
			n.follow(w, f)
			return
		}
		n.countDrop(v.ID, onpath.DropSpoofed)
		return
	}
	if !n.mayBegin(w, v.Tenant) || !n.mayBeginAll(w, d.begun, v.Tenant) {
		n.countDrop(v.ID, onpath.DropNewFlows)
		return
	}
	f := flow{
		path: d.path, reverse: d.reverse, mirrors: d.mirrors, functions: d.functions, entry: v.Entry, counts: true,
	}
	switch d.outcome {
	case toMember:
		f.kind, f.next, f.group = onpath.NextVport, d.member, d.group.ID
		noteAffinity(n, d.group, w.key.tuple, d.member)
	case toExit:
		f.entry = cmp.Or(d.leaves, f.entry)
		n.aimAtExit(&f)
	case toRoute:
		f.kind, f.next, f.route = onpath.NextExit, n.edgeVport(), true
	case unselected:
		n.aimAtExit(&f)
	default:
		n.refuse(w, d)
		return
	}
	if n.paths[d.path] != nil {
		f.context = n.member[membership{v.Other, d.path, d.reverse}]
	}
	s := n.share(v.Tenant)
	if s.mayCause > 0 && s.caused >= s.mayCause || !n.hasRoom(v.Tenant, true) {
		n.countDrop(v.ID, onpath.DropQuota)
		return
	}
	n.begin(w, n.learn(w, w.key, f, v.Tenant))
}

// aimAtExit lets an entry lead to the edge at which its flow entered.
func (n *Node) aimAtExit(f *flow) {
	f.kind, f.next = onpath.NextVport, f.entry
	if f.entry == n.edgeVport() {
		f.kind = onpath.NextExit
	}
}

// tunnelIn takes a packet from the underlay.
func (n *Node) tunnelIn(t Tunnelled) {
	secret, known := n.secrets[t.From]
	switch {
	case !known:
		n.countDrop(0, onpath.DropTunnelSource)
		return
	case secret != t.Secret:
		n.countDrop(0, onpath.DropTunnelSecret)
		return
	}
	prev := t.Prev
	if v := n.vports[prev]; v == nil || v.Kind != onpath.VportRemote || n.peers[v.Peer].Address != t.From {
		prev = 0
	}
	h := packet.Parse(t.Packet)
	if h.Verdict == packet.Malformed {
		n.countDrop(prev, onpath.DropMalformed)
		return
	}
	defer n.about(&h)()
	n.countIn(prev, h.Length)
	n.defragment(t.Prev, &h)
	if prev == 0 {
		n.stranger = t.Prev
		defer func() { n.stranger = 0 }()
	}
	adopted := t.Entry == 0 && t.Next != 0 && t.Next == n.edgeVport()
	if adopted {
		t.Entry = t.Next
	}
	w := n.newWork(t.Packet, h, t.Prev)
	w.tunnel = &t
	w.writes = w.writes && h.Verdict == packet.Fine
	f := flow{kind: onpath.NextVport, next: t.Next, group: t.Group, entry: t.Entry, adopted: adopted}
	f.path, _, f.reverse = t.Group.Split()
	if t.Group != 0 && n.groups[t.Group] == nil {
		f.path = nowhere
	}
	switch {
	case t.Next != 0 && t.Next == n.edgeVport():
		f.kind, f.context, f.group = onpath.NextExit, t.Group, 0
		n.steer(w, &f)
	case n.function(t.Next) != nil:
		n.relay(w, t)
	case n.local(t.Next) == nil:
		n.countDrop(prev, onpath.DropUnknownVport)
	default:
		g := n.groups[t.Group]
		known := n.anywhere(flowKey{t.Next, w.key.tuple.Reverse()}) != nil
		if n.takes(t.Next) && !known && g != nil && g.Lost == onpath.LostReset && h.Runs() && h.Verdict == packet.Fine {
			f.next = n.home(g, h.Tuple, t.Next)
		}
		n.steer(w, &f)
	}
}

var loopback4 = netip.AddrFrom4([4]byte{127, 0, 0, 1})

// isLocal tells the node's own addresses, and its networks' broadcast addresses.
func (n *Node) isLocal(a netip.Addr) bool {
	if a == n.underlay || a == loopback4 || a == netip.IPv6Loopback() {
		return a.IsValid()
	}
	for i := range n.options.Uplinks {
		if slices.Contains(n.options.Uplinks[i].Addresses, a) {
			return true
		}
	}
	return slices.Contains(n.broadcasts, a)
}

// broadcastsOf lists the broadcast addresses of the networks that a machine is in.
func broadcastsOf(o *Options) (list []netip.Addr) {
	for _, u := range o.Uplinks {
		for _, r := range o.Routes {
			in := func(a netip.Addr) bool { return r.Prefix.Contains(a) }
			if r.Device != u.Device || !r.Prefix.Addr().Is4() || r.Prefix.Bits() > 30 || r.Prefix.Bits() == 0 || !slices.ContainsFunc(u.Addresses, in) {
				continue
			}
			last := r.Prefix.Masked().Addr().As4()
			for bit := r.Prefix.Bits(); bit < 32; bit++ {
				last[bit/8] |= 0x80 >> (bit % 8)
			}
			list = append(list, netip.AddrFrom4(last))
		}
	}
	return list
}

// tunnelled tells packets that want to be taken for tunnel packets: to the
// tunnels' port of this node or of a peer, but not on the underlay.
func (n *Node) tunnelled(h *packet.Header) bool {
	if h.Protocol != packet.UDP || h.Verdict != packet.Fine || h.Tuple.DstPort != n.port {
		return false
	}
	_, peer := n.secrets[h.Tuple.Dst]
	return peer || n.isLocal(h.Tuple.Dst)
}

// neverSelected tells what no chain may take: what goes to addresses of a link only or to
// nobody's, and DHCP, which both ports tell.
func neverSelected(t onpath.Tuple, ports bool) bool {
	if packet.Confined(t.Dst) {
		return true
	}
	if t.Protocol != packet.UDP || !ports {
		return false
	}
	first := uint16(67)
	if t.Src.Is6() {
		first = 546
	}
	return t.SrcPort-first <= 1 && t.DstPort-first <= 1
}
