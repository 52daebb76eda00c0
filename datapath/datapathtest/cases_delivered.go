package datapathtest

import (
	"net/netip"

	"github.com/onpath/onpath"
)

// delivered: behind the last element packets leave at the edge of the node that they are
// for; answers come in there, cross the same elements, and leave where the flow entered.
// Others of the chain leave where they entered.
func delivered(b *testbed) {
	b.join(sideNode)
	there := netip.PrefixFrom(offRoute, 32)
	m := toServer()
	m.Dst = append(m.Dst, there)
	for _, at := range []string{"n2", gateway, sideNode} {
		fw, last := b.instance("fw", "n2"), b.instance("last", at)
		c := &chain{path: onpath.PathID(last.vport), match: m, delivers: []netip.Prefix{there}}
		b.apply(one(c, fw, last))
		for n, t := range []onpath.Tuple{tuple(udp, client, 1, offRoute, 53), tuple(tcp, client, 2, offRoute, 80)} {
			for range 2 {
				p := newPacket(t).bytes()
				b.send(gateway, clientNet, p)
				for _, h := range forwards(fw, last) {
					p = b.cross(h, p)
				}
				b.expect(sideNode, sideNet, withTTL(p, 1))
				p = answerTo(t).bytes()
				b.send(sideNode, sideNet, p)
				for _, h := range backwards(last, fw) {
					p = b.cross(h, p)
				}
				b.expect(gateway, clientNet, withTTL(p, 1))
			}
			b.leads(sideNode, sideVport, t.Reverse(), onpath.NextVport, last.vport)
			b.forward(udp4(uint16(10+n)), fw, last)
		}
	}
}
