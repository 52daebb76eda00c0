package fake

import (
	"encoding/binary"
	"net/netip"
	"time"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/internal/packet"
)

// Ports that translation uses.
const (
	natFirst = 32768
	natLast  = natFirst + 24575
)

// natTable translates private own addresses at the edge.
type natTable struct {
	outward map[onpath.Tuple]*translation // by the tuple inside
	inward  map[onpath.Tuple]*translation // by the tuple of the answers outside
}

type translation struct {
	inside, outside onpath.Tuple // of packets that leave
	seen            time.Time
	out, in         half
	ack             uint32 // TCP: the last acknowledgement number that left, but for its low bits
	acked           bool   // one has left
}

// half is what one direction of a translation has shown.
type half struct {
	fin, rst bool
	seen     time.Time
}

// note notes a packet of one direction; ends: its FIN or RST is one.
func (f *half) note(h *packet.Header, now time.Time, ends bool) {
	flags := h.Flags
	if flags&(packet.RST|packet.SYN) == 0 && now.Unix() != f.seen.Unix() {
		f.rst = false // its sender goes on: somebody else's
	}
	f.seen = now
	f.fin = f.fin || ends && flags&packet.FIN != 0
	f.rst = f.rst || ends && flags&packet.RST != 0
}

// noteOut notes a TCP packet that leaves. One of a handshake begins a connection by the ports of
// one that has ended: nothing is known of that then.
func (x *translation) noteOut(w *work, now time.Time) {
	if w.h.Protocol != packet.TCP || !w.h.Whole() {
		return
	}
	if w.h.Flags&packet.SYN != 0 && (x.out.rst || x.in.rst || x.out.fin && x.in.fin) {
		x.out, x.in, x.acked = half{}, half{}, false
	}
	x.out.note(&w.h, now, true)
	if w.h.Flags&(packet.ACK|packet.RST) == packet.ACK {
		x.ack, x.acked = binary.BigEndian.Uint32(w.b[w.h.L4+8:])&^(endAhead-1), true
	}
}

// fits reports whether who sends by a translation may take the FIN or RST of a packet that has
// come in by it for one.
func (x *translation) fits(b []byte, h *packet.Header) bool {
	return x == nil || !x.acked || !h.Whole() || binary.BigEndian.Uint32(b[h.L4+4:])-x.ack <= 2*endAhead
}

func newNATTable() natTable {
	return natTable{map[onpath.Tuple]*translation{}, map[onpath.Tuple]*translation{}}
}

func (t *natTable) sweep(now time.Time) {
	for k, x := range t.outward {
		if now.Sub(x.seen) > onpath.DefaultIdle.For(k.Protocol, false, false, false) {
			delete(t.outward, k)
			delete(t.inward, x.outside.Reverse())
		}
	}
}

// out translates the source of a packet that leaves by u. It gives a reason to drop it
// if that cannot be.
func (t *natTable) out(n *Node, w *work, u *Uplink) onpath.DropReason {
	inside := w.h.Tuple
	if w.h.IsError {
		return t.errorOut(n, w, u)
	}
	if !within(n.edge.NAT, inside.Src) {
		return ""
	}
	x := t.outward[inside]
	if x == nil {
		outside, ok := t.free(inside, u)
		if !ok {
			return onpath.DropNATPorts
		}
		x = &translation{inside: inside, outside: outside}
		t.outward[inside], t.inward[outside.Reverse()] = x, x
	}
	x.seen = n.now()
	x.noteOut(w, x.seen)
	packet.SetAddress(w.b, &w.h, true, x.outside.Src)
	if x.outside.SrcPort != inside.SrcPort {
		packet.SetPort(w.b, &w.h, true, x.outside.SrcPort)
	}
	return ""
}

// free finds a tuple that nobody uses; a protocol without ports has one.
func (t *natTable) free(inside onpath.Tuple, u *Uplink) (onpath.Tuple, bool) {
	a, ok := u.address(inside.Src.Is6())
	if !ok {
		return inside, false
	}
	o := inside
	o.Src = a
	if !packet.HasPorts(o.Protocol) || o.Protocol == packet.SCTP || o.Protocol == packet.UDPLite {
		return o, t.inward[o.Reverse()] == nil
	}
	from := int(hashTuple(0, inside) % (natLast - natFirst + 1))
	for i := range natLast - natFirst + 1 {
		o.SrcPort = uint16(natFirst + (from+i)%(natLast-natFirst+1))
		if o.Protocol == packet.ICMP || o.Protocol == packet.ICMPv6 {
			o.DstPort = o.SrcPort
		}
		if t.inward[o.Reverse()] == nil {
			return o, true
		}
	}
	return o, false
}

// errorOut translates an ICMP error that leaves. It translates the quote, if the quoted
// packet had come in, and in any case the error's own source.
func (t *natTable) errorOut(n *Node, w *work, u *Uplink) onpath.DropReason {
	private, quotes := within(n.edge.NAT, w.h.Tuple.Src), w.h.Quotes && within(n.edge.NAT, w.h.Quoted.Dst)
	if private {
		a, ok := u.address(w.h.V6)
		if !ok || !w.h.Quotes {
			return onpath.DropNoRoute
		}
		packet.SetAddress(w.b, &w.h, true, a)
	}
	if !quotes {
		return ""
	}
	x := t.outward[w.h.Quoted.Reverse()]
	if x == nil {
		return onpath.DropNoRoute
	}
	x.seen = n.now()
	requote(w.b, &w.h, x.outside.Src, x.outside.SrcPort, false)
	return ""
}

// in translates the destination of an answer back, or the packet that an ICMP
// error quotes.
func (t *natTable) in(n *Node, b []byte, h *packet.Header) {
	if h.Verdict != packet.Fine {
		return
	}
	if h.IsError && h.Quotes {
		if x := t.inward[h.Quoted.Reverse()]; x != nil && h.Tuple.Dst == x.outside.Src {
			x.seen = n.now()
			packet.SetAddress(b, h, false, x.inside.Src)
			requote(b, h, x.inside.Src, x.inside.SrcPort, true)
		}
		return
	}
	x := t.inward[h.Tuple]
	if x == nil {
		return
	}
	x.seen = n.now()
	if h.Protocol == packet.TCP {
		x.in.note(h, x.seen, x.fits(b, h))
	}
	packet.SetAddress(b, h, false, x.inside.Src)
	if x.inside.SrcPort != x.outside.SrcPort {
		packet.SetPort(b, h, false, x.inside.SrcPort)
	}
}

// requote writes an address and port into the packet that an ICMP error quotes.
func requote(b []byte, h *packet.Header, a netip.Addr, port uint16, source bool) {
	inner := b[h.QuotedAt:h.Length]
	q := packet.ParseCut(inner)
	if q.Verdict != packet.Fine || !q.V6 && len(inner) < 20 {
		return
	}
	q.Verdict = packet.Unreadable // its transport checksum covers what is not quoted
	packet.SetAddress(inner, &q, source, a)
	echo := q.Protocol == packet.ICMP || q.Protocol == packet.ICMPv6
	if (packet.HasPorts(q.Protocol) || echo) && q.L4+8 <= len(inner) {
		packet.SetPort(inner, &q, source, port)
	}
	if source {
		h.Quoted.Src, h.Quoted.SrcPort = a, port
	} else {
		h.Quoted.Dst, h.Quoted.DstPort = a, port
	}
	if echo {
		h.Quoted.SrcPort, h.Quoted.DstPort = port, port
	}
	recomputeICMP(b, h)
}
