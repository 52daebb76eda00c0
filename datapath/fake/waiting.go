package fake

import (
	"encoding/binary"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/internal/packet"
)

// lostMembers are the members of groups with lost: reset that c closes and that are
// open now.
func (n *Node) lostMembers(c *onpath.DatapathConfig) map[onpath.GroupID]map[onpath.VportID]bool {
	stays := map[onpath.VportID]bool{}
	for _, v := range c.Vports {
		stays[v.ID] = v.State != onpath.VportClosed
	}
	lost := map[onpath.GroupID]map[onpath.VportID]bool{}
	for id, g := range n.groups {
		for _, m := range g.Members {
			if g.Lost != onpath.LostReset || !n.takes(m.Vport) || stays[m.Vport] {
				continue
			}
			if lost[id] == nil {
				lost[id] = map[onpath.VportID]bool{}
			}
			lost[id][m.Vport] = true
		}
	}
	return lost
}

// resetWaiting resets the ends of connections that lead to lost members, which may
// only wait: from the edge, or through the element before the lost one, as if that
// had answered. There only the upper bytes of the number are kept, and the reset
// has one that the end challenges.
func (n *Node) resetWaiting(lost map[onpath.GroupID]map[onpath.VportID]bool) {
	n.each(func(k flowKey, f *flow) {
		if k.tuple.Protocol != packet.TCP || f.kind != onpath.NextVport || f.ack == 0 || !lost[f.group][f.next] || n.over(k, f) {
			return
		}
		if k.vport == n.edgeVport() {
			if u := n.route(k.tuple.Src); u != nil {
				n.deliver(Delivery{Device: u.Device, By: ByAnswer, Packet: n.resetOf(k.tuple, f.ack)})
			}
		} else if v := n.local(k.vport); v != nil && v.State != onpath.VportClosed && !v.Mirror {
			n.give(n.resetOf(k.tuple, f.ack|0xff+1), v, ByAnswer)
		}
	})
}

// over tells a connection that has ended.
func (n *Node) over(k flowKey, f *flow) bool {
	return hasEnded(f, n.anywhere(n.mate(k)))
}

// resetOf is the packet that resets the end from which packets of t come.
func (n *Node) resetOf(t onpath.Tuple, seq uint32) []byte {
	b := packet.Blank(t.Src.Is6(), packet.TCP, 20, t.Dst, t.Src)
	tcp := b[len(b)-20:]
	binary.BigEndian.PutUint16(tcp, t.DstPort)
	binary.BigEndian.PutUint16(tcp[2:], t.SrcPort)
	binary.BigEndian.PutUint32(tcp[4:], seq)
	tcp[12], tcp[13] = 5<<4, packet.RST
	binary.BigEndian.PutUint16(tcp[16:], ^packet.Sum(packet.PseudoSum(t.Dst, t.Src, packet.TCP, 20), tcp))
	return b
}
