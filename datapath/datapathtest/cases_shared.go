package datapathtest

import "github.com/onpath/onpath"

// sharedInstance: an instance serves two chains. What comes to it by the one turns no
// answers of a flow that the other chain leads past another instance.
func sharedInstance(b *testbed) {
	first, shared := b.instance("first", gateway), b.instance("shared", gateway)
	shared.state = onpath.VportDraining
	b.apply(&layout{instances: []*instance{first, shared}, chains: []*chain{
		{path: 1, match: toServer(), elements: []*element{{instances: []*instance{first, shared}}}},
		{path: 2, match: web(), elements: []*element{{instances: []*instance{shared}}}},
	}})
	t := udp4(1)
	b.forward(t, first)
	b.backward(t, first)
	p := newPacket(t).bytes()
	b.h.SendTunnel(gateway, TunnelPacket{
		From: b.nodes[sideNode].spec.Underlay.Addr(), Secret: secret(gateway, sideNode), Next: shared.vport, Prev: sideVport,
		Entry: edgeVport, Group: onpath.GroupOf(2, 0, false), Packet: p,
	})
	b.expect(gateway, onpath.DeviceName(shared.vport), p)
	b.send(gateway, onpath.DeviceName(shared.vport), p)
	b.expect(gateway, serverNet, withTTL(p, 1))
	b.leads(gateway, edgeVport, t.Reverse(), onpath.NextVport, first.vport)
	b.backward(t, first)
}

// enteredHere: a flow that came in at another gateway leaves at this one. What answers
// it comes in here, and so leaves here again where it must turn back.
func enteredHere(b *testbed) {
	fw := b.instance("fw", "n2")
	b.apply(one(&chain{path: 1, match: toServer()}, fw))
	t := udp4(1)
	p := newPacket(t).bytes()
	b.h.SendTunnel(gateway, TunnelPacket{
		From: b.nodes["n2"].spec.Underlay.Addr(), Secret: secret(gateway, "n2"), Next: edgeVport, Prev: fw.vport,
		Entry: sideVport, Group: onpath.GroupOf(1, 0, false), Packet: p,
	})
	b.expect(gateway, serverNet, withTTL(p, 1))
	b.leads(gateway, edgeVport, t.Reverse(), onpath.NextVport, fw.vport)
	if e, _ := b.entry(gateway, edgeVport, t.Reverse()); e.Entry != edgeVport {
		b.t.Errorf("answers enter at %d, must enter at %d", e.Entry, edgeVport)
	}
}
