package datapathtest

import (
	"net/netip"

	"github.com/onpath/onpath"
)

// hostile: an instance that forges what it can gets no answer that is another's,
// evicts no flow, and each packet of the attempt is counted with its reason.
func hostile(b *testbed) {
	const connections, mayCause, flood = 5, 8, 200
	own := netip.MustParseAddr("10.1.200.9")
	victim, sibling, bad := b.instance("victim", gateway), b.instance("sibling", gateway), b.instance("bad", gateway)
	victim.tenant, sibling.tenant, bad.tenant = "victim", "bad", "bad"
	dns := toServer()
	dns.Protocol = []uint8{udp}
	bad.packets, bad.own, bad.routes, bad.maxFlows = onpath.PacketsRewrite, []netip.Addr{own}, true, mayCause
	bad.emits = []emission{{path: 2, match: dns}}
	b.apply(&layout{instances: []*instance{victim, sibling, bad}, chains: []*chain{
		{path: 1, tenant: "victim", match: web(), elements: []*element{{instances: []*instance{victim}}}},
		{path: 2, tenant: "bad", match: dns, elements: []*element{{instances: []*instance{sibling, bad}}}},
	}})
	for n := range uint16(connections) {
		b.connect(tcp4(n+1), victim)
	}
	theirs := b.atSibling(sibling, bad)
	held := b.counters(gateway).Tenants["victim"]

	device := onpath.DeviceName(bad.vport)
	refused := func(t onpath.Tuple, why onpath.DropReason) {
		b.t.Helper()
		b.send(gateway, device, newPacket(t).bytes())
		b.dropped(gateway, device, why)
	}
	for n := range uint16(connections) { // of another tenant's connections
		refused(tcp4(n+1), onpath.DropSpoofed)
		refused(tcp4(n+1).Reverse(), onpath.DropSpoofed)
	}
	for _, name := range nodes { // as if it were a node
		refused(tuple(udp, own, 5, b.nodes[name].spec.Underlay.Addr(), onpath.DefaultTunnelPort), onpath.DropTunnelSource)
	}
	for _, t := range theirs { // what its chain lets it emit, but another instance has
		b.send(gateway, device, newPacket(t).bytes())
		b.expect(gateway, serverNet, withTTL(newPacket(t).bytes(), 1))
	}
	for n := range uint16(flood) {
		t := tuple(udp, own, 2000+n, server, 9000)
		if int(n) >= mayCause-len(theirs) {
			refused(t, onpath.DropQuota)
			continue
		}
		b.send(gateway, device, newPacket(t).bytes())
		b.expect(gateway, serverNet, withTTL(newPacket(t).bytes(), 1))
	}

	for _, t := range theirs {
		b.backward(t, sibling)
	}
	for n := range uint16(connections) {
		b.backward(tcp4(n+1), victim)
		b.forward(tcp4(n+1), victim)
	}
	if now := b.counters(gateway).Tenants["victim"]; now != held {
		b.t.Errorf("the other tenant held %+v and holds %+v", held, now)
	}
}

// connect takes a connection through its handshake, past an instance.
func (b *testbed) connect(t onpath.Tuple, i *instance) {
	b.t.Helper()
	b.forward(t, i)
	b.backward(t, i)
	p := newPacket(t)
	p.flags = ack
	b.through(clientNet, p.bytes(), serverNet, forwards(i)...)
}

// atSibling gives three flows that are the first instance's.
func (b *testbed) atSibling(sibling, bad *instance) []onpath.Tuple {
	b.t.Helper()
	met := b.spread(flows(0, 20), false, sibling, bad)
	b.finishFirst(met)
	var theirs []onpath.Tuple
	for t, i := range met {
		if i == sibling && len(theirs) < 3 {
			theirs = append(theirs, t)
		}
	}
	if len(theirs) < 3 {
		b.t.Fatalf("of 20 flows %d came to one of two instances", len(theirs))
	}
	return theirs
}
