package datapathtest

import (
	"net/netip"

	"github.com/onpath/onpath"
)

// hop is one element on the way of a packet, played by the exam.
type hop struct {
	at      *instance
	reverse bool
	// rewrite is what the function does to the packet; nil: nothing.
	rewrite func([]byte) []byte
	copied  bool // a mirror: gets a copy, gives nothing back
}

func forwards(is ...*instance) []hop  { return hops(false, is) }
func backwards(is ...*instance) []hop { return hops(true, is) }

func hops(reverse bool, is []*instance) []hop {
	out := make([]hop, len(is))
	for n, i := range is {
		out[n] = hop{at: i, reverse: reverse, copied: i.mirror}
	}
	return out
}

// sides are the devices by which a packet goes in and comes out.
func (h hop) sides() (in, out string) {
	in, out = onpath.DeviceName(h.at.vport), onpath.DeviceName(h.at.otherSide())
	if h.reverse {
		in, out = out, in
	}
	return in, out
}

// cross lets a packet that is on its way to the instance go through it, and
// gives it as it came out: one hop further if the instance is routed.
func (b *testbed) cross(h hop, p []byte) []byte {
	b.t.Helper()
	in, _ := h.sides()
	f := b.expect(h.at.node, in, p)
	if h.copied {
		return p
	}
	if h.at.back != 0 {
		b.constantMACs(h, f)
	} else {
		b.source(h, f)
	}
	return b.forwardsFrame(h, f, p)
}

// forwardsFrame lets an element forward a packet that it got in a frame.
func (b *testbed) forwardsFrame(h hop, f Frame, p []byte) []byte {
	b.t.Helper()
	_, out := h.sides()
	if h.at.back == 0 {
		p = withTTL(p, 1)
		f.Src, f.Dst = "", ""
	}
	if h.rewrite != nil {
		p = h.rewrite(p)
	}
	b.sendFrame(h.at.node, out, Frame{Src: f.Src, Dst: f.Dst, Packet: p})
	return p
}

// source checks what a routed element is told by the source of a frame.
func (b *testbed) source(h hop, f Frame) {
	b.t.Helper()
	want := onpath.HostMAC(h.at.vport)
	if h.at.tells != 0 {
		want = onpath.ChainMAC(h.at.tells, h.reverse)
	}
	if f.Src != want {
		b.t.Errorf("instance %s got a frame from %s, must be from %s", h.at.name, f.Src, want)
	}
}

// constantMACs checks what a bridged element sees.
func (b *testbed) constantMACs(h hop, f Frame) {
	b.t.Helper()
	here, there := h.at.vport, h.at.back
	if h.reverse {
		here, there = there, here
	}
	if f.Src != onpath.HostMAC(here) || f.Dst != onpath.HostMAC(there) {
		b.t.Errorf("bridged instance %s got a frame from %s to %s, must be from %s to %s",
			h.at.name, f.Src, f.Dst, onpath.HostMAC(here), onpath.HostMAC(there))
	}
}

// through sends p in at one uplink of the gateway, plays the elements, and sees
// it leave at the other uplink, one hop further; it gives what left.
func (b *testbed) through(in string, p []byte, out string, hs ...hop) []byte {
	b.t.Helper()
	b.send(gateway, in, p)
	for _, h := range hs {
		p = b.cross(h, p)
	}
	p = withTTL(p, 1)
	b.expect(gateway, out, p)
	return p
}

// forward and backward take one packet of t, whose source is a client, through
// instances, in the order in which they are met.
func (b *testbed) forward(t onpath.Tuple, is ...*instance) {
	b.t.Helper()
	b.through(clientNet, newPacket(t).bytes(), serverNet, forwards(is...)...)
}

func (b *testbed) backward(t onpath.Tuple, is ...*instance) {
	b.t.Helper()
	b.through(serverNet, answerTo(t).bytes(), clientNet, backwards(is...)...)
}

// answerTo is the server's first answer.
func answerTo(t onpath.Tuple) packet {
	p := newPacket(t.Reverse())
	if t.Protocol == tcp {
		p.flags = syn | ack
		p.ack = 1001
	}
	if t.Protocol == icmp {
		p.flags = echoReply
	}
	if t.Protocol == icmpv6 {
		p.icmpType = 129
	}
	return p
}

// untouched sends a packet that the kernel alone must carry across the gateway.
func (b *testbed) untouched(in string, p []byte, out string) {
	b.t.Helper()
	b.h.Send(gateway, in, Frame{Packet: p})
	f := b.receive(gateway, out)
	b.same(gateway, out, f.Packet, withTTL(p, 1))
}

// entry is the one flow entry of a node for a vport and tuple.
func (b *testbed) entry(node string, v onpath.VportID, t onpath.Tuple) (onpath.FlowEntry, bool) {
	b.t.Helper()
	for _, e := range b.flows(node, onpath.FlowFilter{Tuple: &t}) {
		if e.Vport == v && e.Tuple == t {
			return e, true
		}
	}
	return onpath.FlowEntry{}, false
}

// leads checks where an entry leads; next is ignored unless it is a vport.
func (b *testbed) leads(node string, v onpath.VportID, t onpath.Tuple, kind onpath.NextKind, next onpath.VportID) {
	b.t.Helper()
	e, ok := b.entry(node, v, t)
	switch {
	case !ok:
		b.t.Errorf("%s has no entry for %v at vport %d", node, t, v)
	case e.Kind != kind || (kind == onpath.NextVport && e.Next != next):
		b.t.Errorf("%s: the entry for %v at vport %d leads to %s %d, must be %s %d", node, t, v, e.Kind, e.Next, kind, next)
	}
}

func (b *testbed) noEntries() {
	b.t.Helper()
	for _, name := range b.joined() {
		if es := b.flows(name, onpath.FlowFilter{}); len(es) > 0 {
			b.t.Errorf("%s has %d flow entries, must have none", name, len(es))
		}
	}
}

// pathCounts checks a chain's counters at the gateway, in packets.
func (b *testbed) pathCounts(p onpath.PathID, steered, passed uint64) {
	b.t.Helper()
	c := b.counters(gateway).Paths[p]
	if c.Steered.Packets != steered || c.Passed.Packets != passed {
		b.t.Errorf("path %d: steered %d, passed %d packets; must be %d and %d",
			p, c.Steered.Packets, c.Passed.Packets, steered, passed)
	}
}

// pathBegan checks how many flows began in a chain at the gateway.
func (b *testbed) pathBegan(p onpath.PathID, flows uint64) {
	b.t.Helper()
	if got := b.counters(gateway).Paths[p].Begun; got != flows {
		b.t.Errorf("%d flows began in path %d, must be %d", got, p, flows)
	}
}

func tuple(protocol uint8, src netip.Addr, sport uint16, dst netip.Addr, dport uint16) onpath.Tuple {
	return onpath.Tuple{Protocol: protocol, Src: src, SrcPort: sport, Dst: dst, DstPort: dport}
}

func tcp4(sport uint16) onpath.Tuple { return tuple(tcp, client, sport, server, 80) }
func udp4(sport uint16) onpath.Tuple { return tuple(udp, client, sport, server, 53) }
func tcp6(sport uint16) onpath.Tuple { return tuple(tcp, client6, sport, server6, 80) }

// ping has the identifier in both ports.
func ping(id uint16) onpath.Tuple  { return tuple(icmp, client, id, server, id) }
func ping6(id uint16) onpath.Tuple { return tuple(icmpv6, client6, id, server6, id) }

// toServer selects what goes to the servers' networks, of both IP versions.
func toServer() onpath.Match {
	return onpath.Match{Dst: []netip.Prefix{netip.MustParsePrefix("10.9.0.0/16"), netip.MustParsePrefix("2001:db8:9::/48")}}
}

func ports(p onpath.PortRange) []onpath.PortRange { return []onpath.PortRange{p} }

func web() onpath.Match {
	m := toServer()
	m.Protocol = []uint8{tcp}
	m.DstPorts = ports(onpath.PortRange{First: 80, Last: 80})
	return m
}
