package datapathtest

import (
	"bytes"
	"net/netip"

	"github.com/onpath/onpath"
)

// carried: a rule may route what it matches. The data path carries it, and the
// kernel's own forwarding sees none of it.
func carried(b *bed) {
	b.apply(one(&chain{path: 1, match: toServer()}))
	before := b.h.Forwarded(gateway)
	tuples := []onpath.Tuple{tcp4(1), udp4(1), ping(4), tcp6(1), tuple(udp, client6, 1, server6, 53), ping6(4)}
	packets := uint64(0)
	for _, t := range tuples {
		for range 3 {
			b.forward(t)
			b.backward(t)
			packets += 2
		}
		for _, way := range []onpath.Tuple{t, t.Reverse()} {
			b.leads(gateway, edgeVport, way, onpath.NextExit, 0)
			if e, ok := b.entry(gateway, edgeVport, way); ok && (e.Packets != 3 || e.Path != 1 || e.Reverse != (way != t)) {
				b.t.Errorf("the entry for %v has %d packets, path %d, reverse %v; must have 3, 1, %v", way, e.Packets, e.Path, e.Reverse, way != t)
			}
		}
	}
	b.pathCounts(1, packets, 0)
	if n := b.h.Forwarded(gateway) - before; n != 0 {
		b.t.Errorf("the kernel forwarded %d packets by itself", n)
	}

	// A chain for the same traffic takes new flows only.
	fw := b.instance("fw", gateway)
	l := one(&chain{path: 2, match: toServer()}, fw)
	l.chains = append(l.chains, &chain{path: 1, match: toServer(), ended: true})
	b.apply(l)
	b.forward(udp4(1))
	b.backward(udp4(1))
	b.forward(udp4(2), fw)
	b.backward(udp4(2), fw)
}

// carriedOddities: what only the slower parts of a driver can deal with comes
// out as it should from the middle of a flow that a faster part carries.
func carriedOddities(b *bed) {
	b.apply(one(&chain{path: 1, match: toServer(), mtu: 1400}))
	b.nodes[gateway].loose[edgeVport] = true // ICMP errors count as out
	for n, t := range []onpath.Tuple{tcp4(1), udp4(1), ping(4), tcp6(1), tuple(udp, client6, 1, server6, 53), ping6(4)} {
		flow := func(change func(*packet)) packet {
			p := newPacket(t)
			p.flags, p.ack = ack, 77
			change(&p)
			return p
		}
		b.forward(t)
		b.backward(t)
		pass := func(change func(*packet)) {
			b.t.Helper()
			p := flow(change)
			b.through(clientNet, p.bytes(), serverNet)
			b.through(clientNet, flow(func(*packet) {}).bytes(), serverNet)
		}
		pass(func(p *packet) {})
		pass(func(p *packet) { p.payload = nil })
		pass(func(p *packet) { p.payload = make([]byte, 1300) })
		pass(func(p *packet) { p.flags = fin | ack })
		pass(func(p *packet) { p.flags = rst | ack })
		pass(func(p *packet) { p.flags = syn })
		if t.Src.Is4() {
			pass(func(p *packet) { p.options = []byte{1, 1, 1, 0} })
		} else {
			pass(func(p *packet) { p.ext, p.extType = []byte{t.Protocol, 0, 1, 4, 0, 0, 0, 0}, 60 })
		}
		whole := flow(func(p *packet) { p.payload, p.id = bytes.Repeat([]byte("fragment"), 15), uint32(5000+n) })
		first, rest := whole, whole
		first.more, rest.offset = true, 64
		b.through(clientNet, first.bytes(), serverNet)
		b.through(clientNet, rest.bytes(), serverNet)

		tooLong := flow(func(p *packet) { p.payload = make([]byte, 1400) }).bytes()
		b.send(gateway, clientNet, tooLong)
		b.dropped(gateway, clientNet, onpath.DropTooBig)
		b.isTooBig(clientNet, tooLong, 1400)
		b.send(gateway, clientNet, flow(func(p *packet) { p.ttl = 1 }).bytes())
		b.dropped(gateway, clientNet, onpath.DropTTL)
		b.receive(gateway, clientNet) // says so

		// A VLAN is another network; a priority is none.
		p := flow(func(*packet) {}).bytes()
		b.h.Send(gateway, clientNet, Frame{Tags: []uint16{5}, Packet: p})
		b.quiet()
		b.sendFrame(gateway, clientNet, Frame{Tags: []uint16{0}, Packet: p})
		b.expect(gateway, serverNet, withTTL(p, 1))

		// Errors about the flow cross as well.
		router := netip.MustParseAddr("10.9.0.254")
		if t.Src.Is6() {
			router = netip.MustParseAddr("2001:db8:9::fe")
		}
		kind := byte(3)
		if t.Src.Is6() {
			kind = 1
		}
		e := icmpError(router, kind, 1, withTTL(p, 1)).bytes()
		b.through(serverNet, e, clientNet)
	}
}
