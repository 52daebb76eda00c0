package datapathtest

import "github.com/onpath/onpath"

// tunnelTo puts a packet in at the gateway as another node sends it.
func (b *testbed) tunnelTo(from string, next, prev onpath.VportID, g onpath.GroupID, p []byte) {
	b.h.SendTunnel(gateway, TunnelPacket{
		From: b.nodes[from].spec.Underlay.Addr(), Secret: secret(gateway, from), Next: next, Prev: prev,
		Entry: edgeVport, Group: g, Packet: p,
	})
}

// passedBy: answers are known to come through the element that they left, not one that
// was passed by between. So where that one's instance dies, another of its own takes
// over, and what stands between is not walked once more.
func passedBy(b *testbed) {
	dies, heir := b.instance("dies", gateway), b.instance("heir", gateway)
	ids, none, behind := b.instance("ids", gateway), b.instance("none", gateway), b.instance("behind", gateway)
	ids.mirror, none.state, heir.state = true, onpath.VportClosed, onpath.VportDraining
	l := &layout{instances: []*instance{dies, heir, ids, none, behind}, chains: []*chain{{path: 1, match: toServer(), elements: []*element{
		{instances: []*instance{dies, heir}},
		{instances: []*instance{ids}, mode: onpath.ModeMirror, none: onpath.NoneBypass},
		{instances: []*instance{none}, none: onpath.NoneBypass},
		{instances: []*instance{behind}},
	}}}}
	b.apply(l)
	for _, t := range []onpath.Tuple{udp4(1), tcp6(1)} {
		dies.state, heir.state = onpath.VportUp, onpath.VportDraining
		b.apply(l)
		b.forward(t, dies, ids, behind)
		b.backward(t, behind, ids, dies)
		dies.state, heir.state = onpath.VportClosed, onpath.VportUp
		b.apply(l)
		b.backward(t, behind, ids, heir)
		b.forward(t, heir, ids, behind)
	}
}

// betweenNodes: what nodes tell each other with packets, and must not.
func betweenNodes(b *testbed) {
	relayRepick(b)
	relayOwn(b)
	errorsBetween(b)
	groupOfNobody(b)
	refusedElsewhere(b)
}

// relayRepick: an instance elsewhere stands in two chains, before a function of this
// node in the one. That its packets of the other get another instance here leads them
// past the function in neither.
func relayRepick(b *testbed) {
	x, f := b.instance("x", "n2"), b.inline("f", gateway)
	dies, heir := b.instance("dies", gateway), b.instance("heir", gateway)
	mortals := []*instance{dies, heir}
	l := &layout{instances: []*instance{x, f, dies, heir}, chains: []*chain{
		{path: 1, match: toServer(), elements: []*element{{instances: []*instance{x}}, {instances: []*instance{f}}, {instances: mortals}}},
		{path: 2, match: web(), elements: []*element{{instances: []*instance{x}}, {instances: mortals}}},
	}}
	p := newPacket(udp4(1)).bytes()
	relayed := func(to *instance) {
		b.t.Helper()
		b.tunnelTo("n2", f.vport, x.vport, onpath.GroupOf(1, 1, false), p)
		b.expect(gateway, onpath.DeviceName(to.vport), b.runs(p, false, f))
	}
	direct := func() {
		b.t.Helper()
		b.tunnelTo("n2", dies.vport, x.vport, onpath.GroupOf(2, 1, false), p)
		b.expect(gateway, onpath.DeviceName(heir.vport), p)
	}
	for _, first := range []*instance{heir, dies} {
		dies.state, heir.state = onpath.VportClosed, onpath.VportUp
		if first == dies {
			dies.state, heir.state = onpath.VportUp, onpath.VportDraining
		}
		b.apply(l)
		p = newPacket(udp4(uint16(first.vport))).bytes()
		relayed(first)
		back := newPacket(udp4(uint16(first.vport)).Reverse()).bytes() // and the flow is known to live
		b.send(gateway, onpath.DeviceName(first.vport), back)
		b.expect("n2", onpath.DeviceName(x.vport), b.runs(back, true, f))
		relayed(first)
		dies.state, heir.state = onpath.VportClosed, onpath.VportUp
		b.apply(l)
		direct()
		relayed(heir)
	}
}

// relayOwn: a packet that comes for a function from another node, but by that node's
// word out of a vport of this one, leaves no entry there, by which it would answer for
// what does come out there, or in at the edge; nor is it led by one.
func relayOwn(b *testbed) {
	f, fw, ids := b.inline("f", gateway), b.instance("fw", gateway), b.instance("ids", gateway)
	ids.mirror = true
	b.apply(&layout{instances: []*instance{f, fw, ids}, chains: []*chain{
		{path: 1, match: toServer(), elements: []*element{{instances: []*instance{f}}}},
		{path: 2, match: web(), elements: []*element{
			{instances: []*instance{fw}}, {instances: []*instance{ids}, mode: onpath.ModeMirror, none: onpath.NoneBypass}}},
	}})
	for n, prev := range []onpath.VportID{edgeVport, ids.vport, fw.vport} {
		t := udp4(uint16(200 + n))
		p := newPacket(t).bytes()
		b.tunnelTo("n2", f.vport, prev, onpath.GroupOf(1, 0, false), p)
		b.expect(gateway, serverNet, withTTL(b.runs(p, false, f), 1))
		if e, ok := b.entry(gateway, prev, t); ok {
			b.t.Errorf("another node wrote what becomes of %v out of vport %d here: %s %d", t, prev, e.Kind, e.Next)
		}
	}
	device := onpath.DeviceName(ids.vport)
	b.send(gateway, device, newPacket(udp4(201)).bytes())
	b.dropped(gateway, device, onpath.DropMirror)
}

// errorsBetween: ICMP errors cross functions of other nodes like the flow they are
// about, there and back.
func errorsBetween(b *testbed) {
	f, fw := b.inline("f", "n2"), b.instance("fw", gateway)
	b.apply(one(&chain{path: 1, match: toServer()}, f, fw))
	for _, t := range []onpath.Tuple{udp4(300), tcp6(300)} {
		p := newPacket(t).bytes()
		b.send(gateway, clientNet, p)
		left := b.cross(hop{at: fw}, b.runs(p, false, f))
		b.expect(gateway, serverNet, withTTL(left, 1))
		p = answerTo(t).bytes()
		b.send(gateway, serverNet, p)
		back := b.cross(hop{at: fw, reverse: true}, p)
		b.expect(gateway, clientNet, withTTL(b.runs(back, true, f), 1))

		e := icmpError(t.Dst, 3, 1, withTTL(left, 1)).bytes()
		if t.Src.Is6() {
			e = icmpError(t.Dst, 1, 0, withTTL(left, 1)).bytes()
		}
		b.send(gateway, serverNet, e)
		e = b.cross(hop{at: fw, reverse: true}, e)
		b.given(f, e)
		b.expect(gateway, clientNet, withTTL(e, 1))
	}
}

// given notes that a function let an ICMP error pass unchanged.
func (b *testbed) given(f *instance, p []byte) {
	add(&b.want(f.node, f.vport).Out, p)
	add(&b.want(f.node, f.vport).In, p)
}

// groupOfNobody: what another node sends by a group that this one does not have goes
// where it should, but leaves no entry, whatever the group's number.
func groupOfNobody(b *testbed) {
	fw := b.instance("fw", "n2")
	b.apply(one(&chain{path: 1, match: toServer()}, fw))
	for n, g := range []onpath.GroupID{5, 63, onpath.GroupOf(40, 0, false), onpath.GroupOf(1, 7, false)} {
		t := udp4(uint16(400 + n))
		p := newPacket(t).bytes()
		b.tunnelTo("n2", edgeVport, fw.vport, g, p)
		b.expect(gateway, serverNet, withTTL(p, 1))
		if e, ok := b.entry(gateway, edgeVport, t.Reverse()); ok {
			b.t.Errorf("by group %d, which there is not, answers were led to %s %d", g, e.Kind, e.Next)
		}
	}
}

// refusedElsewhere: the reset of a function on a node without an edge comes from the
// function, not from the element that the packet did not reach.
func refusedElsewhere(b *testbed) {
	f, fw := b.inline("f", "n2"), b.instance("fw", gateway)
	b.apply(one(&chain{path: 1, match: toServer()}, f, fw))
	t := tuple(tcp, client, 500, server, refusedPort)
	p := newPacket(t).bytes()
	b.send(gateway, clientNet, p)
	add(&b.want("n2", f.vport).Out, p)
	if r := tupleOf(b.receive(gateway, clientNet).Packet); r != t.Reverse() {
		b.t.Errorf("a refused connection is answered by %v, must be by %v", r, t.Reverse())
	}
	if in := b.counters(gateway).Vports[f.vport].In.Packets; in != 1 {
		b.t.Errorf("from the function's vport came %d packets, must be its reset", in)
	}
	b.nodes[gateway].loose[edgeVport] = true
}
