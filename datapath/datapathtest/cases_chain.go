package datapathtest

import (
	"net/netip"

	"github.com/onpath/onpath"
)

// tells: on the gateway and elsewhere, from the first packet on and for errors about it.
func tells(b *testbed) {
	here, plain, there := b.instance("here", gateway), b.instance("plain", gateway), b.instance("there", "n2")
	here.tells, there.tells = 5, 5
	b.apply(one(&chain{path: 5, match: toServer()}, here, plain, there))
	for _, t := range []onpath.Tuple{tcp4(1000), udp4(1000), tcp6(1000)} {
		for range 2 {
			b.forward(t, here, plain, there)
			b.backward(t, there, plain, here)
		}
	}
}

func untouched(b *testbed) {
	i := b.instance("idle", gateway)
	before := b.h.Forwarded(gateway)
	b.untouched(clientNet, newPacket(udp4(1)).bytes(), serverNet)
	b.apply(one(&chain{path: 1, match: web()}, i))
	for n := range uint16(5) {
		b.untouched(clientNet, newPacket(udp4(1000+n)).bytes(), serverNet)
		b.untouched(serverNet, newPacket(tuple(udp, server, 53, client, 1000+n)).bytes(), clientNet)
		b.untouched(clientNet, newPacket(tuple(udp, client6, n, server6, 53)).bytes(), serverNet)
	}
	if got := b.h.Forwarded(gateway) - before; got != 16 {
		b.t.Errorf("the kernel forwarded %d packets, must be 16", got)
	}
	b.noEntries()
	b.pathCounts(1, 0, 0)
}

func leftAlone(b *testbed) {
	i := b.instance("fw", gateway)
	l := one(&chain{path: 1, match: toServer()}, i)
	dns := toServer()
	dns.Protocol, dns.DstPorts = []uint8{udp}, ports(onpath.PortRange{First: 53, Last: 53})
	l.leave = []onpath.Match{dns, repliesTo(dns)}
	b.apply(l)
	before := b.h.Forwarded(gateway)
	for n := range uint16(3) {
		b.untouched(clientNet, newPacket(udp4(1000+n)).bytes(), serverNet)
		b.untouched(serverNet, newPacket(udp4(1000+n).Reverse()).bytes(), clientNet)
		b.untouched(clientNet, newPacket(tuple(udp, client6, n, server6, 53)).bytes(), serverNet)
	}
	if got := b.h.Forwarded(gateway) - before; got != 9 {
		b.t.Errorf("the kernel forwarded %d packets, must be 9", got)
	}
	b.noEntries()
	b.pathCounts(1, 0, 0)
	b.forward(tcp4(1000), i)
	b.backward(tcp4(1000), i)
}

func routed(b *testbed) {
	i := b.instance("fw", gateway)
	b.apply(one(&chain{path: 1, match: toServer()}, i))
	before := b.h.Forwarded(gateway)
	for _, t := range []onpath.Tuple{tcp4(1000), udp4(1000), ping(7), tcp6(1000), ping6(7),
		tuple(udp, client6, 9, server6, 53), tuple(gre, client, 0, server, 0)} {
		b.forward(t, i)
		b.leads(gateway, edgeVport, t, onpath.NextVport, i.vport)
		b.leads(gateway, i.vport, t, onpath.NextExit, 0)
		b.backward(t, i)
		b.leads(gateway, edgeVport, t.Reverse(), onpath.NextVport, i.vport)
		b.leads(gateway, i.vport, t.Reverse(), onpath.NextExit, 0)
		b.forward(t, i)
	}
	b.pathCounts(1, 21, 0)
	b.pathBegan(1, 7)
	if got := b.h.Forwarded(gateway) - before; got != 0 {
		b.t.Errorf("the kernel forwarded %d steered packets", got)
	}
}

// rewriting takes TCP through a routed, a bridged and a rewriting element, each
// on the given node. Clients dial the virtual address.
func rewriting(b *testbed, on ...string) {
	fw, br, nat := b.instance("fw", on[0]), b.bridged("br", on[1]), b.instance("nat", on[2])
	m := web()
	m.Dst = append(m.Dst, netip.PrefixFrom(virtual, 32))
	nat.packets = onpath.PacketsRewrite
	nat.emits = []emission{{path: 1, element: 2, match: web()}}
	b.apply(one(&chain{path: 1, match: m}, fw, br, nat))

	dialled, real := tuple(tcp, client, 1000, virtual, 80), tcp4(1000)
	out := hop{at: nat, rewrite: func(p []byte) []byte { return readdress(p, netip.Addr{}, server) }}
	back := hop{at: nat, reverse: true, rewrite: func(p []byte) []byte { return readdress(p, virtual, netip.Addr{}) }}
	for range 2 {
		b.through(clientNet, newPacket(dialled).bytes(), serverNet, append(forwards(fw, br), out)...)
		b.through(serverNet, answerTo(real).bytes(), clientNet, append([]hop{back}, backwards(br, fw)...)...)
	}
	b.leads(gateway, edgeVport, dialled, onpath.NextVport, fw.vport)
	b.leads(gateway, edgeVport, real.Reverse(), onpath.NextVport, nat.vport)
	b.leads(br.node, br.vport, dialled.Reverse(), onpath.NextVport, fw.vport)
	b.leads(br.node, br.back, dialled, onpath.NextVport, nat.vport)
	b.pathCounts(1, 4, 0)
	b.pathBegan(1, 1)

	// What the rewriting element leaves alone goes through as well, both
	// versions of IP.
	for _, t := range []onpath.Tuple{tcp4(2000), tcp6(2000)} {
		b.forward(t, fw, br, nat)
		b.backward(t, nat, br, fw)
	}
}

func threeOnOneNode(b *testbed)    { rewriting(b, gateway, gateway, gateway) }
func threeOnThreeNodes(b *testbed) { rewriting(b, "n2", sideNode, gateway) }
func threeElsewhere(b *testbed)    { rewriting(b, "n2", "n2", sideNode) }

// answers: an intrusion prevention system resets both ends; a proxy answers
// itself. Neither may write anything but on a flow it was given.
func answers(b *testbed) {
	fw, ips := b.instance("fw", "n2"), b.bridged("ips", sideNode)
	b.apply(one(&chain{path: 1, match: toServer()}, fw, ips))
	t := tcp4(1000)
	p := newPacket(t).bytes()
	b.send(gateway, clientNet, p)
	p = b.cross(hop{at: fw}, p)
	b.expect(ips.node, onpath.DeviceName(ips.vport), p)

	toClient := newPacket(t.Reverse())
	toClient.flags = rst | ack
	r := toClient.bytes()
	b.send(ips.node, onpath.DeviceName(ips.vport), r)
	r = b.cross(hop{at: fw, reverse: true}, r)
	b.expect(gateway, clientNet, withTTL(r, 1))

	toServer := newPacket(t)
	toServer.flags = rst
	b.send(ips.node, onpath.DeviceName(ips.back), toServer.bytes())
	b.expect(gateway, serverNet, withTTL(toServer.bytes(), 1))
}

// origins: a proxy opens connections of its own, from its own address and from
// its client's, and answers the client itself.
func origins(b *testbed) {
	for n, where := range []string{gateway, "n2"} {
		own := netip.AddrFrom4([4]byte{10, 1, 200, byte(n)})
		proxy, fw := b.instance("proxy", where), b.instance("fw", gateway)
		proxy.packets, proxy.own, proxy.routes = onpath.PacketsOriginate, []netip.Addr{own}, true
		m := web()
		proxy.emits = []emission{{path: 1, element: 0, match: m}}
		b.apply(one(&chain{path: 1, match: m}, proxy, fw))
		device := onpath.DeviceName(proxy.vport)

		asked := tcp4(1000 + uint16(n))
		b.send(gateway, clientNet, newPacket(asked).bytes())
		b.expect(where, device, newPacket(asked).bytes())
		r := answerTo(asked).bytes()
		b.send(where, device, r)
		b.expect(gateway, clientNet, withTTL(r, 1))

		for _, t := range []onpath.Tuple{
			tuple(tcp, own, 40000, server, 80), tuple(tcp, client, 40001, server, 80),
		} {
			p := newPacket(t).bytes()
			b.send(where, device, p)
			p = b.cross(hop{at: fw}, p)
			b.expect(gateway, serverNet, withTTL(p, 1))
			r := answerTo(t).bytes()
			b.send(gateway, serverNet, r)
			r = b.cross(hop{at: fw, reverse: true}, r)
			b.expect(where, device, r)
		}
	}
}

// spoofs: what an instance may not emit is dropped and counted, and steals no
// answers.
func spoofs(b *testbed) {
	keeper, other := b.instance("keeper", gateway), b.instance("other", gateway)
	owner, origin := b.instance("owner", "n2"), b.instance("origin", gateway)
	own := netip.MustParseAddr("10.1.200.9")
	owner.own = []netip.Addr{own}
	origin.packets = onpath.PacketsOriginate
	origin.emits = []emission{{path: 3, element: 0, match: web()}}
	dns := toServer()
	dns.Protocol = []uint8{udp}
	l := &layout{instances: []*instance{keeper, other, owner, origin}, chains: []*chain{
		{path: 1, match: dns, elements: []*element{{instances: []*instance{other}}}},
		{path: 2, match: tcpPort(443), elements: []*element{{instances: []*instance{keeper}}, {instances: []*instance{owner}}}},
		{path: 3, match: web(), elements: []*element{{instances: []*instance{origin}}}},
	}}
	b.apply(l)
	b.forward(udp4(5), other)
	for _, s := range []struct {
		from *instance
		t    onpath.Tuple
	}{
		{keeper, tcp4(77)},                            // unknown
		{keeper, udp4(5)},                             // delivered to another instance
		{keeper, udp4(5).Reverse()},                   // and its answers
		{keeper, tuple(tcp, own, 1, server, 443)},     // another's own address
		{owner, tuple(tcp, own, 1, server, 443)},      // its own, but it may not speak
		{origin, udp4(6)},                             // outside its chain's select
		{origin, tuple(tcp, server, 81, client, 9)},   // turned round, too
		{keeper, tuple(udp, client6, 1, server6, 53)}, // IPv6
		{keeper, tuple(icmp, client, 3, server, 3)},   // echo
	} {
		device := onpath.DeviceName(s.from.vport)
		b.send(s.from.node, device, newPacket(s.t).bytes())
		b.dropped(s.from.node, device, onpath.DropSpoofed)
	}
	b.backward(udp4(5), other)
	if _, ok := b.entry(gateway, edgeVport, tcp4(77).Reverse()); ok {
		b.t.Error("a forged packet wrote an entry for its answers")
	}
}

func tcpPort(port uint16) onpath.Match {
	m := toServer()
	m.Protocol = []uint8{tcp}
	m.DstPorts = ports(onpath.PortRange{First: port, Last: port})
	return m
}

// shared: one deployment stands in two chains, at different places.
func shared(b *testbed) {
	ids, fw := b.bridged("ids", "n2"), b.instance("fw", gateway)
	dns := toServer()
	dns.Protocol = []uint8{udp}
	b.apply(&layout{instances: []*instance{ids, fw}, chains: []*chain{
		{path: 1, match: web(), elements: []*element{{instances: []*instance{fw}}, {instances: []*instance{ids}}}},
		{path: 2, match: dns, elements: []*element{{instances: []*instance{ids}}}},
	}})
	for n := range uint16(3) {
		b.forward(tcp4(n), fw, ids)
		b.forward(udp4(n), ids)
		b.backward(udp4(n), ids)
		b.backward(tcp4(n), ids, fw)
	}
	b.pathCounts(1, 6, 0)
	b.pathCounts(2, 6, 0)
}

// tiers: the operator's chain wraps the tenant's, seen from whoever starts.
func tiers(b *testbed) {
	op, ten := b.instance("op", "n2"), b.bridged("ten", sideNode)
	b.apply(&layout{instances: []*instance{op, ten}, chains: []*chain{
		{path: 1, tier: onpath.TierOperator, match: toServer(), elements: []*element{{instances: []*instance{op}}}},
		{path: 2, match: toServer(), elements: []*element{{instances: []*instance{ten}}}},
	}})
	t := tcp4(1000)
	b.forward(t, op, ten)
	b.backward(t, ten, op)
	b.forward(t, op, ten)
	// Here the server starts: it meets the operator's chain first, and its
	// replies meet the tenant's first.
	s := tuple(udp, server, 500, client, 600)
	p := newPacket(s).bytes()
	b.through(serverNet, p, clientNet, backwards(op, ten)...)
	b.through(clientNet, newPacket(s.Reverse()).bytes(), serverNet, forwards(ten, op)...)
	b.through(serverNet, p, clientNet, backwards(op, ten)...)
}

// selects: flows that an element does not select skip it, wherever it stands.
func selects(b *testbed) {
	first, all, last := b.instance("first", gateway), b.instance("all", "n2"), b.bridged("last", gateway)
	p80, p443 := tcpPort(80), tcpPort(443)
	c := &chain{path: 1, match: toServer()}
	l := one(c, first, all, last)
	c.elements[0].match, c.elements[2].match = &p80, &p443
	b.apply(l)
	at443 := tuple(tcp, client, 9, server, 443)
	b.forward(tcp4(1), first, all)
	b.forward(at443, all, last)
	b.forward(udp4(1), all)
	b.backward(tcp4(1), all, first)
	b.backward(at443, last, all)
	b.backward(udp4(1), all)

	// A flow of the chain that no element selects is nobody's, and falls to no
	// chain of lower precedence.
	c.elements = c.elements[:1]
	l.chains = append(l.chains, &chain{path: 2, match: toServer(), elements: []*element{{instances: []*instance{all}}}})
	b.apply(l)
	b.untouched(clientNet, newPacket(udp4(2)).bytes(), serverNet)
	b.forward(tcp4(2), first)
	b.backward(tcp4(2), first)
}

// overlap: of two chains that select a packet, the one listed first takes it.
func overlap(b *testbed) {
	narrow, wide := b.instance("narrow", gateway), b.instance("wide", gateway)
	b.apply(&layout{instances: []*instance{narrow, wide}, chains: []*chain{
		{path: 7, match: web(), elements: []*element{{instances: []*instance{narrow}}}},
		{path: 3, match: toServer(), elements: []*element{{instances: []*instance{wide}}}},
	}})
	b.forward(tcp4(1), narrow)
	b.forward(udp4(1), wide)
	b.forward(tcp6(1), narrow)
	b.backward(tcp4(1), narrow)
	b.backward(udp4(1), wide)
	b.pathCounts(7, 3, 0)
	b.pathCounts(3, 2, 0)
	b.pathBegan(7, 2)
	b.pathBegan(3, 1)
}

// forwardOnly: of a chain with direction forward, replies are the kernel's.
func forwardOnly(b *testbed) {
	fw := b.instance("fw", gateway)
	b.apply(one(&chain{path: 1, match: toServer(), forward: true}, fw))
	b.forward(udp4(1), fw)
	b.untouched(serverNet, answerTo(udp4(1)).bytes(), clientNet)
	b.forward(udp4(1), fw)
}

// forwardBegun: nobody but the instance that began a flow, or changed its addresses,
// can take the answers; those to what it was given and left as it was are the
// kernel's.
func forwardBegun(b *testbed) {
	for n, where := range []string{gateway, "n2", gateway} {
		own := netip.AddrFrom4([4]byte{10, 1, 201, byte(n)})
		proxy, fw := b.instance("proxy", where), b.instance("fw", []string{gateway, gateway, "n2"}[n])
		proxy.packets, proxy.own, proxy.routes = onpath.PacketsOriginate, []netip.Addr{own}, true
		m := web()
		path := onpath.PathID(n + 1)
		proxy.emits = []emission{{path: path, match: m}}
		order := []*instance{proxy, fw}[:min(2, n+1)]
		b.apply(one(&chain{path: path, match: m, forward: true}, order...))
		device := onpath.DeviceName(proxy.vport)
		behind := forwards(order[1:]...)
		for _, t := range []onpath.Tuple{tuple(tcp, own, 40000, server, 80), tuple(tcp, client, 40001, server, 80)} {
			for range 3 {
				p := newPacket(t).bytes()
				b.send(where, device, p)
				for _, h := range behind {
					p = b.cross(h, p)
				}
				b.expect(gateway, serverNet, withTTL(p, 1))
				r := answerTo(t).bytes()
				b.send(gateway, serverNet, r)
				for _, h := range behind {
					r = b.cross(hop{at: h.at, reverse: true}, r)
				}
				b.expect(where, device, r)
			}
		}
		asked := tcp4(2000 + uint16(n))
		b.forward(asked, order...)
		b.untouched(serverNet, answerTo(asked).bytes(), clientNet)
		b.forward(asked, order...)
	}
}

// mirrors get copies of both directions, wherever they stand; what they emit is
// dropped.
func mirrors(b *testbed) {
	for _, where := range []string{gateway, "n2"} {
		m, fw, br := b.instance("mirror", where), b.instance("fw", gateway), b.bridged("br", sideNode)
		m.mirror = true
		for place := range 3 {
			order := []*instance{fw, br}
			order = append(order[:place:place], append([]*instance{m}, order[place:]...)...)
			c := &chain{path: onpath.PathID(b.generation + 1), match: toServer()}
			l := one(c, order...)
			c.elements[place].mode, c.elements[place].none = onpath.ModeMirror, onpath.NoneBypass
			b.apply(l)
			t := tcp4(1000 + uint16(b.generation))
			reversed := []*instance{order[2], order[1], order[0]}
			for range 2 {
				b.forward(t, order...)
				b.backward(t, reversed...)
			}
		}
		device := onpath.DeviceName(m.vport)
		b.send(where, device, newPacket(tcp4(1001)).bytes())
		b.dropped(where, device, onpath.DropMirror)
	}
}

// onlyMirrors: a chain of nothing but a mirror copies, and the traffic itself
// passes, whoever forwards it.
func onlyMirrors(b *testbed) {
	m := b.instance("mirror", "n2")
	m.mirror = true
	c := &chain{path: 1, match: toServer()}
	l := one(c, m)
	c.elements[0].mode, c.elements[0].none = onpath.ModeMirror, onpath.NoneBypass
	b.apply(l)
	b.looseEdge()
	for range 2 {
		b.forward(udp4(1), m)
		b.backward(udp4(1), m)
	}
	// Without an instance nothing is copied, and nothing is lost.
	m.state = onpath.VportClosed
	b.apply(l)
	b.forward(udp4(1))
	b.forward(udp4(2))
}

// exitLast: packets leave at the last element's node, and their answers come
// back by there.
func exitLast(b *testbed) {
	fw, last := b.instance("fw", gateway), b.instance("last", sideNode)
	m := toServer()
	m.Dst = append(m.Dst, netip.PrefixFrom(offRoute, 32))
	b.apply(one(&chain{path: 1, match: m, exitLast: true}, fw, last))
	t := tuple(udp, client, 1, offRoute, 53)
	for range 2 {
		p := newPacket(t).bytes()
		b.send(gateway, clientNet, p)
		for _, h := range forwards(fw, last) {
			p = b.cross(h, p)
		}
		b.expect(sideNode, sideNet, withTTL(p, 1))
	}
	b.leads(sideNode, sideVport, t.Reverse(), onpath.NextVport, last.vport)
}
