package datapathtest

import (
	"net/netip"

	"github.com/onpath/onpath"
)

// toldLate: an instance knows of a flow whose first packets went no further, as soon
// as one comes to it: also if that is at once.
func toldLate(b *testbed) {
	fw := b.instance("fw", gateway)
	b.apply(one(&chain{path: 1, match: toServer(), mtu: 1400}, fw))
	b.nodes[gateway].loose[edgeVport] = true
	for n, t := range []onpath.Tuple{udp4(1), tuple(udp, client6, 1, server6, 53)} {
		p := newPacket(t)
		p.payload = make([]byte, 1401-[]int{28, 48}[n])
		b.send(gateway, clientNet, p.bytes())
		b.dropped(gateway, clientNet, onpath.DropTooBig)
		b.isTooBig(clientNet, p.bytes(), 1400)
		b.forward(t, fw)
		b.backward(t, fw)
	}
}

// nodesOwn: an instance may emit others' addresses as its chains say, never the
// node's own: it would get the node's answers.
func nodesOwn(b *testbed) {
	nat := b.instance("nat", gateway)
	nat.packets = onpath.PacketsRewrite
	nat.emits = []emission{{path: 1, match: toServer()}}
	b.apply(one(&chain{path: 1, match: toServer()}, nat))
	device := onpath.DeviceName(nat.vport)
	for _, a := range b.nodes[gateway].spec.Uplinks[0].Addresses {
		to := server
		if a.Addr().Is6() {
			to = server6
		}
		for _, protocol := range []uint8{udp, tcp} {
			t := tuple(protocol, a.Addr(), 4000, to, 53)
			for range 2 {
				b.send(gateway, device, newPacket(t).bytes())
				b.dropped(gateway, device, onpath.DropSpoofed)
			}
			if e, ok := b.entry(gateway, edgeVport, t.Reverse()); ok {
				b.t.Errorf("answers to the node's own %v lead to %s %d", t, e.Kind, e.Next)
			}
		}
	}
	t := udp4(4001) // a stranger's: that is what the chain is for
	b.send(gateway, device, newPacket(t).bytes())
	b.expect(gateway, serverNet, withTTL(newPacket(t).bytes(), 1))
}

// errorsFromNobody: an ICMP error from an address that no router forwards from leads
// nowhere, whatever it quotes.
func errorsFromNobody(b *testbed) {
	fw := b.instance("fw", gateway)
	b.apply(one(&chain{path: 1, match: toServer()}, fw))
	b.forward(udp4(1), fw)
	b.forward(tuple(udp, client6, 1, server6, 53), fw)
	device := onpath.DeviceName(fw.vport)
	for _, from := range []string{"224.0.0.5", "127.0.0.1", "ff0e::5", "fe80::9"} {
		a, quoted, kind := netip.MustParseAddr(from), udp4(1), byte(3)
		if a.Is6() {
			quoted, kind = tuple(udp, client6, 1, server6, 53), 1
		}
		b.h.Send(gateway, device, Frame{Packet: icmpError(a, kind, 0, newPacket(quoted).bytes()).bytes()})
	}
	b.quiet()
}

// roomForFew: a tenant's established flows stay within its share, and what finds no
// room there is steered all the same, both ways.
func roomForFew(b *testbed) {
	const most, n = 8, 20
	fw, other := b.instance("fw", gateway), b.instance("other", gateway)
	other.tenant = "other"
	dns := toServer()
	dns.Protocol = []uint8{udp}
	b.apply(&layout{instances: []*instance{fw, other}, chains: []*chain{
		{path: 1, maxFlows: most, match: dns, elements: []*element{{instances: []*instance{fw}}}},
		{path: 2, tenant: "other", match: web(), elements: []*element{{instances: []*instance{other}}}},
	}})
	b.forward(tcp4(1), other)
	b.backward(tcp4(1), other)
	b.forward(tcp4(1), other)
	was := b.counters(gateway).Tenants["other"]
	for range 3 {
		for k := range uint16(n) {
			b.forward(udp4(k+1), fw)
			b.backward(udp4(k+1), fw)
		}
	}
	c := b.counters(gateway).Tenants
	if t := c["exam"]; t.Limit != most || t.Established > most || t.Established < most/2 || t.Pending == 0 || t.Deferred == 0 {
		b.t.Errorf("of %d flows with a share of %d entries: %+v", n, most, t)
	}
	if t := c["other"]; t.Established != was.Established || t.Deferred != 0 {
		b.t.Errorf("another tenant's share was %+v and is %+v", was, t)
	}
}

// heldBy: where an operator's chain wraps a tenant's, established entries at the edge count
// to the tenant whose path they are of, answers' as well, though by the rules these would
// meet the operator's chain first. Who looks again finds the same.
func heldBy(b *testbed) {
	op, ten := b.instance("op", gateway), b.instance("ten", gateway)
	op.tenant, ten.tenant = onpath.OperatorTenant, "inner"
	b.apply(&layout{instances: []*instance{op, ten}, chains: []*chain{
		{path: 1, tenant: onpath.OperatorTenant, tier: onpath.TierOperator, match: toServer(), elements: []*element{{instances: []*instance{op}}}},
		{path: 2, tenant: "inner", match: toServer(), elements: []*element{{instances: []*instance{ten}}}},
	}})
	flows := []onpath.Tuple{udp4(1), udp4(2), tuple(udp, client6, 1, server6, 53)}
	for _, t := range flows {
		for range 2 {
			b.forward(t, op, ten)
			b.backward(t, ten, op)
		}
	}
	for _, tenant := range []string{onpath.OperatorTenant, "inner"} {
		// Two at the instance, one at the edge.
		if held := b.counters(gateway).Tenants[tenant].Established; held != 3*uint64(len(flows)) {
			b.t.Errorf("%s holds %d established entries; must be %d", tenant, held, 3*len(flows))
		}
	}
}

// wrappedRest: at an operator's instance, from where connections go on by a tenant's chain,
// one direction may be established while the other is not: a RST that does not fit what that
// has acknowledged ends nothing there. And what an instance begins by another tier's chain
// counts to its own tenant, also when it begins anew.
func wrappedRest(b *testbed) {
	op, ten, wall := b.instance("op", gateway), b.instance("ten", gateway), b.instance("wall", gateway)
	op.tenant, ten.tenant, wall.tenant = onpath.OperatorTenant, "inner", "inner"
	for n, i := range []*instance{op, ten} {
		i.packets, i.own, i.routes, i.maxFlows = onpath.PacketsOriginate, []netip.Addr{netip.AddrFrom4([4]byte{10, 1, 200, byte(n)})}, true, 8
		i.emits = []emission{{path: onpath.PathID(n + 1), match: toServer()}}
	}
	young := &chain{path: 3, tenant: "inner", match: toServer(), elements: []*element{{instances: []*instance{wall}}}}
	l := &layout{instances: []*instance{op, ten, wall}, chains: []*chain{
		{path: 1, tenant: onpath.OperatorTenant, tier: onpath.TierOperator, match: toServer(), elements: []*element{{instances: []*instance{op}}}},
		{path: 2, tenant: "inner", match: toServer(), elements: []*element{{instances: []*instance{ten}}}},
	}}
	b.apply(l)
	t, answer := tcp4(1), hop{at: op, reverse: true}
	b.says(t, false, syn, op, ten)
	held := answerTo(t).bytes()
	b.send(gateway, serverNet, held)
	held = b.cross(hop{at: ten, reverse: true}, held)
	in, out := answer.sides()
	b.expect(gateway, in, held)
	b.says(t, false, ack, op, ten) // as if it had come another way
	b.says(t, false, ack, op, ten)
	held = withTTL(held, 1)
	b.send(gateway, out, held)
	b.expect(gateway, clientNet, withTTL(held, 1))
	b.forges(t, false, rst, 1<<31, op, ten)

	begins := func(i *instance, flags byte, is ...*instance) {
		b.t.Helper()
		p := newPacket(tuple(tcp, i.own[0], 5000, server, 80))
		p.flags = flags
		sent := p.bytes()
		b.send(gateway, onpath.DeviceName(i.vport), sent)
		for _, at := range is {
			sent = b.cross(hop{at: at}, sent)
		}
		b.expect(gateway, serverNet, withTTL(sent, 1))
	}
	begins(ten, syn)
	for _, flags := range []byte{syn, rst, syn} {
		begins(op, flags, ten)
	}
	for _, tenant := range []string{onpath.OperatorTenant, "inner"} {
		if caused := b.counters(gateway).Tenants[tenant].Caused; caused != 1 {
			b.t.Errorf("%s's instances have caused %d flows; must be 1", tenant, caused)
		}
	}
	l.chains = append([]*chain{young}, l.chains...)
	b.apply(l)
	b.says(t, false, syn, op, ten)
	b.says(tcp4(2), false, syn, op, wall)
}
