package fake

import (
	"cmp"
	"encoding/binary"
	"net/netip"

	"github.com/onpath/onpath"
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
	h := &w.h
	if h.protocol != protoTCP || h.verdict != fine || h.flags&flagRST != 0 || h.fragment && !h.first {
		return
	}
	n.unedit(w)
	l4 := w.b[h.l4:h.length]
	b := n.blank(h, protoTCP, 20, h.tuple.Dst, h.tuple.Src)
	at := len(b) - 20
	binary.BigEndian.PutUint16(b[at:], h.tuple.DstPort)
	binary.BigEndian.PutUint16(b[at+2:], h.tuple.SrcPort)
	b[at+12] = 5 << 4
	if h.flags&flagACK != 0 {
		copy(b[at+4:at+8], l4[8:12])
		b[at+13] = flagRST
	} else {
		taken := uint32(max(0, len(l4)-int(l4[12]>>4)*4))
		taken += uint32(h.flags&flagFIN) + uint32(h.flags&flagSYN)>>1
		binary.BigEndian.PutUint32(b[at+8:], binary.BigEndian.Uint32(l4[4:])+taken)
		b[at+13] = flagRST | flagACK
	}
	check := sum(pseudoSum(h.tuple.Dst, h.tuple.Src, protoTCP, 20), b[at:])
	binary.BigEndian.PutUint16(b[at+16:], ^check)
	n.answer(w, b)
}

// blank is an IP packet without transport, from src to dst.
func (n *Node) blank(h *header, protocol uint8, size int, src, dst netip.Addr) []byte {
	if h.v6 {
		b := make([]byte, 40+size)
		b[0], b[6], b[7] = 0x60, protocol, 64
		binary.BigEndian.PutUint16(b[4:], uint16(size))
		copy(b[8:], src.AsSlice())
		copy(b[24:], dst.AsSlice())
		return b
	}
	b := make([]byte, 20+size)
	b[0], b[6], b[8], b[9] = 0x45, 0x40, 64, protocol
	binary.BigEndian.PutUint16(b[2:], uint16(20+size))
	copy(b[12:], src.AsSlice())
	copy(b[16:], dst.AsSlice())
	binary.BigEndian.PutUint16(b[10:], ^sum(0, b[:20]))
	return b
}

// tooBig drops a packet and tells its sender what fits: fragmentation needed
// (RFC 1191) or packet too big (RFC 4443).
func (n *Node) tooBig(w *work, mtu int) {
	n.countDrop(w.key.vport, onpath.DropTooBig)
	if w.h.v6 {
		n.complain(w, 2, 0, uint32(mtu))
	} else {
		n.complain(w, 3, 4, uint32(mtu)) // 16 bits of zero, 16 of MTU
	}
}

// expired drops a packet whose hop limit has run out and says so.
func (n *Node) expired(w *work) {
	n.countDrop(w.key.vport, onpath.DropTTL)
	if w.h.v6 {
		n.complain(w, 3, 0, 0)
	} else {
		n.complain(w, 11, 0, 0)
	}
}

// complain sends an ICMP error about a packet to its sender.
func (n *Node) complain(w *work, kind, code byte, rest uint32) {
	h := &w.h
	src, ok := n.speaker(w)
	if !ok || h.isError || h.fragment && !h.first {
		return
	}
	n.unedit(w)
	quote, protocol := w.b[:min(h.length, 548)], uint8(protoICMP) // the error stays below 576 bytes
	if h.v6 {
		quote, protocol = w.b[:min(h.length, 1232)], protoICMPv6 // and below 1280
	}
	size := 8 + len(quote)
	b := n.blank(h, protocol, size, src, h.tuple.Src)
	e := b[len(b)-size:]
	e[0], e[1] = kind, code
	binary.BigEndian.PutUint32(e[4:], rest)
	copy(e[8:], quote)
	start := uint32(0)
	if h.v6 {
		start = pseudoSum(src, h.tuple.Src, protocol, size)
	}
	binary.BigEndian.PutUint16(e[2:], ^sum(start, e))
	n.answer(w, b)
}

// speaker is the address from which the data path answers a packet.
func (n *Node) speaker(w *work) (netip.Addr, bool) {
	if u := n.uplink(w.uplink); u != nil {
		return u.address(w.h.v6)
	}
	if w.h.v6 {
		return gateway6, true
	}
	return gateway4, true
}

// answer sends a packet back to where w came from, unless that is a tunnel.
func (n *Node) answer(w *work, b []byte) {
	defer n.about(&header{isError: true})() // ours, not the flow's
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
func recomputeICMP(b []byte, h *header) {
	m := b[h.l4:h.length]
	m[2], m[3] = 0, 0
	start := uint32(0)
	if h.v6 {
		start = pseudoSum(h.tuple.Src, h.tuple.Dst, protoICMPv6, len(m))
	}
	binary.BigEndian.PutUint16(m[2:], ^sum(start, m))
}
