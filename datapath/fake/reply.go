package fake

import (
	"cmp"
	"encoding/binary"
	"net/netip"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/internal/packet"
)

// Addresses from which the data path speaks to instances: their gateways'.
var (
	gateway4 = netip.AddrFrom4([4]byte{169, 254, 1, 1})
	gateway6 = netip.MustParseAddr("fe80::1")
)

// reset ends a TCP connection for the sender of a packet (RFC 9293 §3.10.7.1)
// and drops the packet.
func (n *Node) reset(w *work) { n.resetFor(w, onpath.DropReset) }

func (n *Node) resetFor(w *work, why onpath.DropReason) {
	n.countDrop(w.key.vport, why)
	if h := &w.h; packet.Reset(w.b, h) != nil {
		n.unedit(w)
		n.answer(w, packet.Reset(w.b, h))
	}
}

// tooBig drops a packet and tells its sender what fits: fragmentation needed
// (RFC 1191) or packet too big (RFC 4443).
func (n *Node) tooBig(w *work, mtu int) {
	n.countDrop(w.key.vport, onpath.DropTooBig)
	if w.h.V6 {
		n.complain(w, 2, 0, uint32(mtu))
	} else {
		n.complain(w, 3, 4, uint32(mtu)) // 16 bits of zero, 16 of MTU
	}
}

// expired drops a packet whose hop limit has run out and says so.
func (n *Node) expired(w *work) {
	n.countDrop(w.key.vport, onpath.DropTTL)
	if w.h.V6 {
		n.complain(w, 3, 0, 0)
	} else {
		n.complain(w, 11, 0, 0)
	}
}

// complain sends an ICMP error about a packet to its sender.
func (n *Node) complain(w *work, kind, code byte, rest uint32) {
	h := &w.h
	src, ok := n.speaker(w)
	if !ok || h.IsError || h.Fragment && !h.First {
		return
	}
	n.unedit(w)
	n.answer(w, packet.Complaint(w.b, h, src, kind, code, rest))
}

// speaker is the address from which the data path answers a packet.
func (n *Node) speaker(w *work) (netip.Addr, bool) {
	if u := n.uplink(w.uplink); u != nil {
		return u.address(w.h.V6)
	}
	if w.h.V6 {
		return gateway6, true
	}
	return gateway4, true
}

// answer sends a packet back to where w came from, unless that is a tunnel.
func (n *Node) answer(w *work, b []byte) {
	defer n.about(&packet.Header{IsError: true})() // ours, not the flow's
	if w.uplink != "" {
		n.show(w.key.vport, true, b)
		n.deliver(Delivery{Device: w.uplink, By: ByAnswer, Packet: b})
		return
	}
	if v := n.local(w.key.vport); v != nil {
		n.give(b, v, ByAnswer)
	}
	if v := n.vports[w.key.vport]; w.tunnel != nil && v != nil && v.Kind == onpath.VportRemote && v.State != onpath.VportClosed {
		n.replyBeyond(w, v, b)
	}
}

// replyBeyond sends what answers a packet from another node back there: as if it
// came from where the packet was to go, on nodes that have no edge.
func (n *Node) replyBeyond(w *work, v *onpath.Vport, b []byte) {
	p := n.peers[v.Peer]
	to := n.net.underlay[p.Address]
	if to == nil {
		return
	}
	t := Tunnelled{
		From: n.underlay, Secret: p.Secret, Next: v.ID, Prev: cmp.Or(n.edgeVport(), w.tunnel.Next), Entry: w.tunnel.Entry, Packet: b,
	}
	if n.net.onTunnel == nil || n.net.onTunnel(t, ByAnswer) {
		to.tunnelIn(t)
	}
}

// recomputeICMP writes the checksum of an ICMP message anew.
func recomputeICMP(b []byte, h *packet.Header) {
	m := b[h.L4:h.Length]
	m[2], m[3] = 0, 0
	start := uint32(0)
	if h.V6 {
		start = packet.PseudoSum(h.Tuple.Src, h.Tuple.Dst, packet.ICMPv6, len(m))
	}
	binary.BigEndian.PutUint16(m[2:], ^packet.Sum(start, m))
}
