package datapathtest

import (
	"net/netip"

	"github.com/onpath/onpath"
)

// icmpErrors follow the reverse of the packet they quote, and write nothing.
func icmpErrors(b *testbed) {
	fw, br := b.instance("fw", "n2"), b.bridged("br", gateway)
	b.apply(one(&chain{path: 1, match: toServer()}, fw, br))
	for _, v := range []struct {
		t          onpath.Tuple
		router     netip.Addr // beyond the gateway, at the servers' side
		kind, code byte
	}{
		{udp4(1), netip.MustParseAddr("10.9.0.254"), 3, 1},
		{tcp4(1), netip.MustParseAddr("10.9.0.254"), 11, 0},
		{ping(4), netip.MustParseAddr("10.9.0.254"), 3, 4},
		{tcp6(1), netip.MustParseAddr("2001:db8:9::fe"), 1, 4},
		{ping6(4), netip.MustParseAddr("2001:db8:9::fe"), 2, 0},
	} {
		p := newPacket(v.t).bytes()
		left := b.through(clientNet, p, serverNet, forwards(fw, br)...)
		b.backward(v.t, br, fw)
		before := b.allFlows()
		// From outside, about what left: back through all elements.
		e := icmpError(v.router, v.kind, v.code, left).bytes()
		b.through(serverNet, e, clientNet, backwards(br, fw)...)
		// From the clients' side, about an answer: the forward way.
		reply := answerTo(v.t).bytes()
		e = icmpError(v.t.Src, v.kind, v.code, reply).bytes()
		b.through(clientNet, e, serverNet, forwards(fw, br)...)
		// From an element itself, with an address of its own.
		self := netip.MustParseAddr("10.1.250.1")
		if v.t.Src.Is6() {
			self = netip.MustParseAddr("2001:db8:1::250")
		}
		e = icmpError(self, v.kind, v.code, p).bytes()
		b.send(fw.node, onpath.DeviceName(fw.vport), e)
		b.expect(gateway, clientNet, withTTL(e, 1))
		if after := b.allFlows(); after != before {
			b.t.Errorf("ICMP errors wrote %d flow entries", after-before)
		}
	}
	// Where the flow it is about has not been yet, an error may get stuck, but
	// leaves nothing behind.
	t := udp4(50)
	p := newPacket(t).bytes()
	b.send(gateway, clientNet, p)
	b.expect(fw.node, onpath.DeviceName(fw.vport), p)
	before := b.allFlows()
	e := icmpError(t.Src, 3, 3, answerTo(t).bytes()).bytes()
	b.send(gateway, clientNet, e)
	e = b.cross(hop{at: fw}, e)
	b.expect(br.node, onpath.DeviceName(br.vport), e)
	if after := b.allFlows(); after != before {
		b.t.Errorf("an ICMP error ahead of its flow wrote %d flow entries", after-before)
	}
	// An error about a packet that no chain had is the kernel's; an instance
	// may not send one.
	strange := newPacket(tuple(udp, server, 9, client, 9)).bytes()
	b.untouched(clientNet, icmpError(client, 3, 3, newPacket(tuple(udp, server, 9, client, 9)).bytes()).bytes(), serverNet)
	device := onpath.DeviceName(fw.vport)
	b.send(fw.node, device, icmpError(client, 3, 3, strange).bytes())
	b.dropped(fw.node, device, onpath.DropSpoofed)
}

// orphanErrors: an ICMP error about no flow that anybody has seen gets past no firewall,
// whatever it quotes. One about a flow does, and so do those to others and to the node.
func orphanErrors(b *testbed) {
	fw := b.instance("fw", gateway)
	c := &chain{path: 1, match: toServer(), strict: true}
	l := one(c, fw)
	b.apply(l)
	about := func(t onpath.Tuple) []byte { return icmpError(t.Src, 3, 3, newPacket(t.Reverse()).bytes()).bytes() }
	cut := icmpError(client, 11, 0, newPacket(udp4(5).Reverse()).bytes()[:24]) // quotes no ports
	cut.tuple.Dst = server
	six := icmpError(client6, 1, 4, newPacket(tcp6(5).Reverse()).bytes()).bytes()
	quotes := func(t onpath.Tuple) []byte { // an error to the server, whatever it quotes
		e := icmpError(client, 3, 3, newPacket(t).bytes())
		e.tuple.Dst = server
		return e.bytes()
	}
	self := b.nodes[gateway].spec.Uplinks[0].Addresses[0].Addr()
	dhcp := tuple(udp, server, 68, client, 67)
	confined := tuple(udp, server, 9, netip.MustParseAddr("224.0.0.1"), 9)
	own := tuple(udp, self, 9, client, 9)
	to := tuple(udp, server, 9, self, 9)
	for _, e := range [][]byte{about(udp4(5)), cut.bytes(), six, quotes(dhcp), quotes(confined), quotes(own), quotes(to)} {
		b.send(gateway, clientNet, e)
		b.dropped(gateway, clientNet, onpath.DropUnclassified)
	}
	b.quiet()
	b.forward(udp4(5), fw)
	e := icmpError(client, 3, 3, answerTo(udp4(5)).bytes()).bytes()
	b.through(clientNet, e, serverNet, forwards(fw)...)
	elsewhere := tuple(udp, netip.MustParseAddr("10.8.0.1"), 7, client, 7)
	b.untouched(serverNet, icmpError(elsewhere.Src, 3, 3, newPacket(elsewhere.Reverse()).bytes()).bytes(), clientNet)
	c.match.Protocol = []uint8{1, tcp} // pings, and not what errors are about
	b.apply(l)
	b.untouched(clientNet, about(udp4(6)), serverNet)
	c.match.Protocol = nil
	c.forward = true // then the servers' own flows are not the chain's
	b.apply(l)
	b.untouched(clientNet, about(udp4(7)), serverNet)
	c.forward, c.strict = false, false
	b.apply(l)
	b.untouched(clientNet, about(udp4(8)), serverNet)
}

func (b *testbed) allFlows() int {
	n := 0
	for _, name := range b.joined() {
		n += len(b.flows(name, onpath.FlowFilter{}))
	}
	return n
}
