package datapathtest

import (
	"maps"
	"slices"
	"time"

	"github.com/onpath/onpath"
)

// The pair of gateways: the gateway, with an uplink to either side, and the side
// node, whose one uplink leads to both.

// bothOrders is where a flow's two directions may come in.
var bothOrders = [][2]string{{gateway, gateway}, {gateway, sideNode}, {sideNode, gateway}, {sideNode, sideNode}}

// pairOf is a pool of instances between the two, one element.
func (b *testbed) pairOf(on ...string) (*layout, []*instance) {
	var is []*instance
	for _, n := range on {
		is = append(is, b.instance("fw", n))
	}
	c := &chain{path: 1, match: toServer(), elements: []*element{{instances: slices.Clone(is)}}}
	return &layout{chains: []*chain{c}, instances: slices.Clone(is), pair: true}, is
}

// enters sends p in at a gateway's uplink, finds the instance that gets it, and
// sees it leave at the same or another gateway.
func (b *testbed) enters(node, in string, p []byte, leaves, out string, is ...*instance) *instance {
	b.t.Helper()
	b.send(node, in, p)
	i, p := b.met(p, is...)
	p = withTTL(p, 1)
	b.expect(leaves, out, p)
	return i
}

// met finds which of the instances gets p, and lets it cross.
func (b *testbed) met(p []byte, is ...*instance) (*instance, []byte) {
	b.t.Helper()
	deadline := time.Now().Add(patience)
	for {
		for _, i := range is {
			d := onpath.DeviceName(i.vport)
			f, ok := b.h.Receive(i.node, d, time.Millisecond)
			if !ok {
				continue
			}
			b.same(i.node, d, f.Packet, p)
			add(&b.want(i.node, i.vport).Out, p)
			p = withTTL(p, 1)
			b.sendFrame(i.node, d, Frame{Packet: p})
			return i, p
		}
		if time.Now().After(deadline) {
			b.t.Fatalf("no instance got\n  %x", p)
		}
	}
}

// gatewaysAsymmetric: the forward direction comes in at one gateway, the answers at
// the other; both cross the same instance, wherever it is.
func gatewaysAsymmetric(b *testbed) {
	l, is := b.pairOf("n2", gateway, sideNode)
	b.apply(l)
	for n := range uint16(24) {
		t := tcp4(1000 + n)
		there := b.enters(gateway, clientNet, newPacket(t).bytes(), gateway, serverNet, is...)
		for range 2 {
			if back := b.enters(sideNode, sideNet, answerTo(t).bytes(), sideNode, sideNet, is...); back != there {
				b.t.Errorf("%v met instance %d, its answer %d", t, there.vport, back.vport)
			}
			p := newPacket(t)
			p.flags = ack
			if again := b.enters(gateway, clientNet, p.bytes(), gateway, serverNet, is...); again != there {
				b.t.Errorf("%v met instance %d, and then %d", t, there.vport, again.vport)
			}
		}
	}
}

// gatewaysMatrix: instances go on by the weights for where a flow comes from, which the
// gateway at which answers come in does not know by itself.
func gatewaysMatrix(b *testbed) {
	u := []*instance{b.instance("u0", "n2"), b.instance("u1", sideNode)}
	v := []*instance{b.instance("v0", "n2"), b.instance("v1", gateway), b.instance("v2", sideNode)}
	rows := []onpath.WeightRow{{From: u[0].key, Weights: []uint32{1000, 1, 1}}, {From: u[1].key, Weights: []uint32{1, 1, 1000}}}
	c := &chain{path: 1, match: toServer(), elements: []*element{{instances: slices.Clone(u)}, {instances: slices.Clone(v), rows: rows}}}
	b.apply(&layout{chains: []*chain{c}, instances: slices.Concat(u, v), pair: true})
	stayed := 0
	for n := range uint16(24) {
		t := tcp4(1000 + n)
		p := newPacket(t).bytes()
		b.send(gateway, clientNet, p)
		first, p := b.met(p, u...)
		second, p := b.met(p, v...)
		b.expect(gateway, serverNet, withTTL(p, 1))
		if first.node == second.node {
			stayed++
		}
		p = answerTo(t).bytes()
		b.send(sideNode, sideNet, p)
		last, p := b.met(p, v...)
		before, p := b.met(p, u...)
		b.expect(sideNode, sideNet, withTTL(p, 1))
		if last != second || before != first {
			b.t.Errorf("%v met instances %d and %d, its answer %d and %d", t, first.vport, second.vport, last.vport, before.vport)
		}
	}
	if stayed < 20 {
		b.t.Errorf("%d of 24 flows stayed on the node of the first instance, must be nearly all", stayed)
	}
}

// gatewaysTold: flows stay at their instances though weights change, and whichever
// gateway their packets come in at.
func gatewaysTold(b *testbed) {
	l, is := b.pairOf("n2", "n2", "n2")
	b.apply(l)
	before := map[onpath.Tuple]*instance{}
	for n := range uint16(40) {
		t := udp4(1000 + n)
		before[t] = b.enters(gateway, clientNet, newPacket(t).bytes(), gateway, serverNet, is...)
		b.leads(sideNode, sideVport, t, onpath.NextVport, before[t].vport)
		b.leads(sideNode, sideVport, t.Reverse(), onpath.NextVport, before[t].vport)
	}
	for n := range is {
		is[n].weight = 1
	}
	is[0].weight = 100
	b.apply(l)
	back, there := map[onpath.Tuple]*instance{}, map[onpath.Tuple]*instance{}
	for t := range before {
		back[t] = b.enters(sideNode, sideNet, answerTo(t).bytes(), sideNode, sideNet, is...)
	}
	b.mustStick("coming in at the other gateway", before, back)
	for t := range before {
		there[t] = b.enters(sideNode, sideNet, newPacket(t).bytes(), sideNode, sideNet, is...)
	}
	b.mustStick("moving to the other gateway", before, there)
	if n := count(before); len(n) < 2 {
		b.t.Errorf("all flows met one instance: %v", slices.Collect(maps.Keys(n)))
	}
}

// gatewaysUntold: the other gateway was away when connections began, and chooses
// otherwise by the weights of now. The next SYN tells it.
func gatewaysUntold(b *testbed) {
	l, is := b.pairOf("n2", "n2", "n2")
	l.dead = sideNode
	b.apply(l)
	before, back := map[onpath.Tuple]*instance{}, map[onpath.Tuple]*instance{}
	for n := range uint16(40) {
		t := tcp4(1000 + n)
		before[t] = b.enters(gateway, clientNet, newPacket(t).bytes(), gateway, serverNet, is...)
	}
	for n := range is {
		is[n].weight = 1
	}
	is[0].weight = 100
	l.dead = ""
	b.apply(l)
	for t := range before { // the answer is there first, and meets whom it may
		b.enters(sideNode, sideNet, answerTo(t).bytes(), sideNode, sideNet, is...)
	}
	time.Sleep(1100 * time.Millisecond) // what is sent again within a second changes nothing
	for t, i := range before {
		if again := b.enters(gateway, clientNet, newPacket(t).bytes(), gateway, serverNet, is...); again != i {
			b.t.Errorf("%v met instance %d, and then %d", t, i.vport, again.vport)
		}
		back[t] = b.enters(sideNode, sideNet, answerTo(t).bytes(), sideNode, sideNet, is...)
	}
	b.mustStick("told by the next SYN", before, back)
}

// gatewaysFunctions: a function runs at one gateway of the pair, whichever of them a
// direction comes in at; each leaves where it came in.
func gatewaysFunctions(b *testbed) {
	f, fw, atPeer := b.inline("f", sideNode), b.instance("fw", "n2"), b.instance("beside", sideNode)
	t := uint16(1000)
	for n, es := range [][]*instance{{f}, {fw, f}, {f, fw}, {atPeer, f}, {f, atPeer}, {fw, f, atPeer}, {fw, atPeer}} {
		l := one(&chain{path: onpath.PathID(n + 1), match: toServer()}, es...)
		l.instances, l.pair = []*instance{f, fw, atPeer}, true
		b.apply(l)
		for _, protocol := range []func(uint16) onpath.Tuple{tcp4, udp4, tcp6} {
			for _, gateways := range bothOrders {
				t++
				b.talks(protocol(t), gateways, alone(es)...)
			}
		}
	}
}

// alone makes elements of one instance each.
func alone(is []*instance) (elements [][]*instance) {
	for _, i := range is {
		elements = append(elements, []*instance{i})
	}
	return elements
}

// gatewaysTiers: a tenant's chain within the operator's; whichever gateway a direction
// comes in at, it crosses both, through the same instances.
func gatewaysTiers(b *testbed) {
	op, op2, opHere, opAtPeer := b.instance("op", "n2"), b.instance("op2", "n2"), b.instance("op-here", gateway), b.instance("op-beside", sideNode)
	fw, fw2, here, atPeer := b.instance("fw", "n2"), b.instance("fw2", "n2"), b.instance("here", gateway), b.instance("beside", sideNode)
	opf, opfHere, f, fHere := b.inline("opf", sideNode), b.inline("opf-here", gateway), b.inline("f", sideNode), b.inline("f-here", gateway)
	tap := b.instance("tap", "n2")
	tap.mirror = true
	all := []*instance{op, op2, opHere, opAtPeer, fw, fw2, here, atPeer, opf, opfHere, f, fHere, tap}
	port, path := uint16(1000), onpath.PathID(1)
	for _, tiers := range [][2][][]*instance{
		{{{op, op2}}, {{fw, fw2}}},
		{{{opHere}}, {{atPeer}}},
		{{{opAtPeer}}, {{here}}},
		{{{op}}, {{f}}},
		{{{op}}, {{fHere}}},
		{{{op}}, {{tap}}},
		{{{opf}}, {{fw}}},
		{{{opfHere}}, {{atPeer}}},
		{{{opf}}, {{fHere}}},
		{{{opf}}, {{f}}},
		{{{op}, {opf}}, {{fw}, {f}, {tap}}},
		{{{opf}, {op}}, {{f}, {here, fw}}},
	} {
		b.applyTiers(path, tiers, all)
		path += 2
		for _, protocol := range []func(uint16) onpath.Tuple{tcp4, udp4, ping, tcp6, ping6} {
			for _, gateways := range bothOrders {
				port++
				b.talks(protocol(port), gateways, slices.Concat(tiers[0], tiers[1])...)
			}
		}
	}
}

// applyTiers makes an operator's chain and a tenant's of a pair of gateways.
func (b *testbed) applyTiers(path onpath.PathID, tiers [2][][]*instance, all []*instance) *layout {
	b.t.Helper()
	guard := &chain{path: path, tier: onpath.TierOperator, tenant: "operator", match: toServer()}
	web := &chain{path: path + 1, match: toServer()}
	guard.through(tiers[0])
	web.through(tiers[1])
	l := &layout{chains: []*chain{guard, web}, instances: all, pair: true}
	if len(tiers[0]) == 0 {
		l.chains = l.chains[1:]
	}
	b.apply(l)
	return l
}

// gatewaysAsked: answers are faster than what tells of their flow, which comes late or is
// lost. The other gateway is asked, and they cross what the packets have crossed, also
// while the chains are young. What neither gateway knows goes by its rules.
func gatewaysAsked(b *testbed) {
	op, op2, fw, fw2, f := b.instance("op", "n2"), b.instance("op2", "n2"), b.instance("fw", "n2"), b.instance("fw2", sideNode), b.inline("f", gateway)
	all := []*instance{op, op2, fw, fw2, f}
	port := uint16(1000)
	for n, tiers := range [][2][][]*instance{
		{{{op, op2}}, {{fw, fw2}}},
		{{{op, op2}}, {{fw, fw2}, {f}}},
		{{{op}}, {{f}}},
		{{}, {{fw, fw2}}},
	} {
		l := b.applyTiers(onpath.PathID(2*n+1), tiers, all)
		for _, c := range l.chains {
			c.began, c.adopt = time.Now(), time.Hour
		}
		for _, protocol := range []func(uint16) onpath.Tuple{tcp4, udp4, ping, tcp6, ping6} {
			port++
			t, elements := protocol(port), slices.Concat(tiers[0], tiers[1])
			taken := make([]*instance, len(elements))
			l.dead = sideNode
			b.apply(l)
			b.passes(gateway, false, newPacket(t).bytes(), elements, taken)
			l.dead = ""
			b.apply(l)
			for range 2 {
				b.passes(sideNode, true, answerTo(t).bytes(), elements, taken)
			}
		}
		b.knownToNone(port+100*uint16(n+1), l, tiers)
	}
}

// knownToNone: connections older than the chains pass by, or are cut; others go by the
// rules of where they come in.
func (b *testbed) knownToNone(port uint16, l *layout, tiers [2][][]*instance) {
	b.t.Helper()
	for _, t := range []onpath.Tuple{tcp4(port), tcp6(port)} {
		p := newPacket(t)
		p.flags, p.ack = ack, 77
		for range 2 {
			b.h.Send(sideNode, sideNet, Frame{Packet: p.bytes()})
			b.same(sideNode, sideNet, b.receive(sideNode, sideNet).Packet, withTTL(p.bytes(), 1))
		}
	}
	for _, c := range l.chains {
		c.cut = true
	}
	b.apply(l)
	p := newPacket(tcp4(port + 1))
	p.flags, p.ack = ack, 77
	b.send(sideNode, sideNet, p.bytes())
	b.dropped(sideNode, sideNet, onpath.DropReset)
	b.nodes[sideNode].loose[sideVport] = true
	if r := b.receive(sideNode, sideNet).Packet; tupleOf(r) != tcp4(port+1).Reverse() || r[33]&rst == 0 {
		b.t.Errorf("the connection was answered by %x, must be by a reset", r)
	}
	elements := slices.Concat(tiers[0], tiers[1])
	b.passes(sideNode, false, newPacket(udp4(port+2)).bytes(), elements, make([]*instance, len(elements)))
}

// through gives a chain elements.
func (c *chain) through(elements [][]*instance) {
	for _, is := range elements {
		e := &element{instances: is}
		if is[0].mirror {
			e.mode = onpath.ModeMirror
		}
		c.elements = append(c.elements, e)
	}
}

// talks sends a connection's first packets by the gateways that its directions come in at,
// through elements of which each is one of several instances, the same for all packets.
func (b *testbed) talks(t onpath.Tuple, gateways [2]string, elements ...[]*instance) {
	b.t.Helper()
	taken := make([]*instance, len(elements))
	for n := range 3 {
		p := newPacket(t)
		if n > 0 && t.Protocol == tcp {
			p.flags = ack
		}
		b.passes(gateways[0], false, p.bytes(), elements, taken)
		p = answerTo(t)
		if n > 0 && t.Protocol == tcp {
			p.flags = ack
		}
		b.passes(gateways[1], true, p.bytes(), elements, taken)
	}
}

// passes has a packet come in at a gate of the pair, cross the elements, each at the
// instance that its flow has taken before, and leave where it came in.
func (b *testbed) passes(node string, reverse bool, packet []byte, elements [][]*instance, taken []*instance) {
	b.t.Helper()
	in, out := clientNet, serverNet
	if reverse {
		in, out = out, in
	}
	if node == sideNode {
		in, out = sideNet, sideNet
	}
	b.send(node, in, packet)
	for n := range elements {
		if reverse {
			n = len(elements) - 1 - n
		}
		switch is := elements[n]; {
		case is[0].inline != nil:
			packet = b.runs(packet, reverse, is[0])
		case taken[n] != nil:
			packet = b.cross(hop{at: taken[n], reverse: reverse, copied: taken[n].mirror}, packet)
		case is[0].mirror || is[0].back != 0:
			packet = b.cross(hop{at: is[0], reverse: reverse, copied: is[0].mirror}, packet)
		default:
			taken[n], packet = b.met(packet, is...)
		}
	}
	b.expect(node, out, withTTL(packet, 1))
}

// gatewaysBehind: what has come in at the side node and goes on from a function of the
// gateway to an instance there tells its answers that the function stands before the
// side node's edge: so does the side node then, and has no copies made for mirrors
// behind the function.
func gatewaysBehind(b *testbed) {
	f, ids, fw := b.inline("f", gateway), b.instance("ids", gateway), b.instance("fw", gateway)
	ids.mirror = true
	device, copies := onpath.DeviceName(fw.vport), onpath.DeviceName(ids.vport)
	mirror := &element{instances: []*instance{ids}, mode: onpath.ModeMirror, none: onpath.NoneBypass}
	for n, es := range [][]*element{
		{{instances: []*instance{f}}, mirror, {instances: []*instance{fw}}},
		{{instances: []*instance{fw}}, mirror, {instances: []*instance{f}}},
	} {
		path, reverse := onpath.PathID(n+1), n == 1 // at the side node comes in what meets f first
		b.apply(&layout{instances: []*instance{f, ids, fw}, chains: []*chain{{path: path, match: toServer(), elements: es}}, pair: true})
		for _, t := range []onpath.Tuple{udp4(700), tcp6(700)} {
			p, answer := newPacket(t).bytes(), answerTo(t).bytes()
			if reverse {
				p, answer = answer, p
			}
			b.h.SendTunnel(gateway, TunnelPacket{
				From: b.nodes[sideNode].spec.Underlay.Addr(), Secret: secret(gateway, sideNode), Next: f.vport, Prev: sideVport,
				Entry: sideVport, Group: onpath.GroupOf(path, 2*n, reverse), Packet: p,
			})
			meets := func() {
				b.t.Helper()
				p := b.runs(p, reverse, f)
				b.expect(gateway, copies, p)
				b.expect(gateway, device, p)
			}
			meets()
			b.send(gateway, device, answer)
			b.expect(gateway, copies, answer)
			b.expect(sideNode, sideNet, withTTL(b.runs(answer, !reverse, f), 1))
			b.send(sideNode, sideNet, p)
			meets()
		}
	}
}

// gatewaysAdopted: a connection that passed by at one gateway is known to the other; what
// begins by its ports there crosses the instance, and its answers at the first, once the end
// that accepts it has shown that the connection is no more.
func gatewaysAdopted(b *testbed) {
	l, is := b.pairOf("n2")
	l.chains[0].began, l.chains[0].adopt = b.h.Now().Add(-time.Second), time.Hour
	b.apply(l)
	for n, gateways := range [][2]string{{sideNode, gateway}, {gateway, sideNode}} {
		t := tcp4(uint16(1000 + n))
		b.passesBy(t, 3)
		there, back := [2]string{clientNet, serverNet}, [2]string{serverNet, clientNet}
		devices := func(node string, d [2]string) (string, string) {
			if node == sideNode {
				return sideNet, sideNet
			}
			return d[0], d[1]
		}
		in, out := devices(gateways[0], there)
		from, to := devices(gateways[1], back)
		if gateways[0] == gateway { // it has seen answers: the connection may live
			b.says(t, false, syn)
		} else {
			b.enters(gateways[0], in, newPacket(t).bytes(), gateways[0], out, is...)
		}
		b.send(gateways[1], from, answerTo(t).bytes())
		b.dropped(gateways[1], from, onpath.DropReset)
		isResetAt(b, gateways[1], from, t.Reverse(), 1001)
		b.enters(gateways[0], in, newPacket(t).bytes(), gateways[0], out, is...)
		b.enters(gateways[1], from, answerTo(t).bytes(), gateways[1], to, is...)
	}
}

// gatewaysDead: the gateway where flows came in is gone; they go on through the other,
// and leave there.
func gatewaysDead(b *testbed) {
	l, is := b.pairOf("n2", sideNode, "n2")
	b.apply(l)
	before := map[onpath.Tuple]*instance{}
	for n := range uint16(20) {
		t := tcp4(1000 + n)
		before[t] = b.enters(gateway, clientNet, newPacket(t).bytes(), gateway, serverNet, is...)
		b.enters(gateway, serverNet, answerTo(t).bytes(), gateway, clientNet, before[t])
	}
	l.dead = gateway
	b.apply(l)
	for t, i := range before {
		p := newPacket(t)
		p.flags = ack
		for range 2 {
			b.enters(sideNode, sideNet, answerTo(t).bytes(), sideNode, sideNet, i)
			b.enters(sideNode, sideNet, p.bytes(), sideNode, sideNet, i)
		}
	}
}

// gatewaysReset: a node without an edge finds an instance gone before the gateway does,
// and resets its connections.
func gatewaysReset(b *testbed) {
	l, is := b.pairOf("n2")
	l.chains[0].elements[0].lost = onpath.LostReset
	b.apply(l)
	t := tcp4(1000)
	b.enters(gateway, clientNet, newPacket(t).bytes(), gateway, serverNet, is...)
	is[0].state = onpath.VportClosed
	b.generation++
	b.configs["n2"] = b.config("n2", l)
	b.configure("n2", b.configs["n2"])
	p := newPacket(t)
	p.flags, p.ack = ack, 77
	for range 2 {
		b.send(gateway, clientNet, p.bytes())
		r := b.receive(gateway, clientNet).Packet
		if tupleOf(r) != t.Reverse() || r[33]&rst == 0 {
			b.t.Errorf("the connection was answered by %x, must be by a reset", r)
		}
	}
	b.nodes[gateway].loose[edgeVport] = true
}
