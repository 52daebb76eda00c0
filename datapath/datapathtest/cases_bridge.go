package datapathtest

import (
	"net/netip"

	"github.com/onpath/onpath"
)

// The side node as a bump in the wire, and the machines at its two sides.
const (
	accessSide = "br0"
	coreSide   = "br1"
	hostMAC    = "02:00:00:00:0b:01"
	farMAC     = "02:00:00:00:0b:02"
)

// bridgedUplinks: two devices have no addresses. A packet of a chain leaves in the same kind
// of frame in which it came, with the same hop limit. Other packets cross unchanged. A packet
// is dropped if its destination was never seen, or if a strict chain selects it in a frame
// whose tags cannot be put back.
func bridgedUplinks(b *testbed) {
	n := b.nodes[sideNode]
	n.spec.Uplinks = []UplinkSpec{
		{Device: accessSide, MTU: 1500, Side: onpath.SideAccess}, {Device: coreSide, MTU: 1500, Side: onpath.SideCore},
	}
	n.devices = []string{accessSide, coreSide}
	f := b.inline("nat", sideNode)
	m := toServer()
	m.Dst = append(m.Dst, netip.PrefixFrom(virtual, 32))
	b.apply(one(&chain{path: 1, match: m}, f))
	dialled := func(port uint16) []byte { return newPacket(tuple(udp, client, port, virtual, translatedPort)).bytes() }
	b.sendFrame(sideNode, accessSide, Frame{Src: hostMAC, Dst: farMAC, Packet: dialled(1)}) // to the server, which nobody has seen
	b.runs(dialled(1), false, f)
	b.dropped(sideNode, accessSide, onpath.DropNoStation)
	b.quiet()
	b.overBridge(newPacket(udp4(1)).bytes(), false, hop{at: f})
	b.overBridge(dialled(2), false, hop{at: f, rewrite: func([]byte) []byte {
		return newPacket(tuple(udp, client, 2, server, behindPort)).bytes()
	}})

	fw, br := b.instance("fw", sideNode), b.bridged("br", "n2")
	b.apply(one(&chain{path: 2, match: toServer(), strict: true}, fw, br))
	for _, t := range []onpath.Tuple{tcp4(3), udp4(3), tcp6(3), ping(3)} {
		b.overBridge(newPacket(t).bytes(), false, forwards(fw, br)...)
		b.overBridge(answerTo(t).bytes(), true, backwards(br, fw)...)
	}
	other := newPacket(tuple(udp, client, 4, offRoute, 53))
	other.ttl = 1
	b.crossesBridge(nil, other.bytes(), false)
	b.crossesBridge(nil, other.bytes(), true)
	b.crossesBridge([]uint16{7, 8}, other.bytes(), false)
	b.sendFrame(sideNode, accessSide, Frame{Src: hostMAC, Dst: farMAC, Tags: []uint16{7, 8}, Packet: newPacket(udp4(4)).bytes()})
	b.dropped(sideNode, accessSide, onpath.DropUnclassified)
}

// overBridge sends p in at one side, plays the elements, and sees it leave at the other side in
// the frame that it came in.
func (b *testbed) overBridge(p []byte, back bool, hs ...hop) {
	b.t.Helper()
	in, out, src, dst := bridgeSides(back)
	b.sendFrame(sideNode, in, Frame{Src: src, Dst: dst, Packet: p})
	for _, h := range hs {
		if h.at.inline != nil {
			b.runs(p, h.reverse, h.at)
			if h.rewrite != nil {
				p = h.rewrite(p)
			}
			continue
		}
		p = b.cross(h, p)
	}
	b.inFrame(b.expect(sideNode, out, p), src, dst)
}

// crossesBridge sends what no chain selects.
func (b *testbed) crossesBridge(tags []uint16, p []byte, back bool) {
	b.t.Helper()
	in, out, src, dst := bridgeSides(back)
	b.h.Send(sideNode, in, Frame{Src: src, Dst: dst, Tags: tags, Packet: p})
	f := b.receive(sideNode, out)
	b.same(sideNode, out, f.Packet, p)
	b.inFrame(f, src, dst)
}

func (b *testbed) inFrame(f Frame, src, dst string) {
	b.t.Helper()
	if f.Src != src || f.Dst != dst {
		b.t.Errorf("the frame is from %s to %s, must be from %s to %s", f.Src, f.Dst, src, dst)
	}
}

func bridgeSides(back bool) (in, out, src, dst string) {
	if back {
		return coreSide, accessSide, farMAC, hostMAC
	}
	return accessSide, coreSide, hostMAC, farMAC
}
