package datapathtest

import "github.com/onpath/onpath"

func untouched(b *bed) {
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

func routed(b *bed) {
	i := b.instance("fw", gateway)
	b.apply(one(&chain{path: 1, match: toServer()}, i))
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
}
