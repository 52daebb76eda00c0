package packet

import (
	"encoding/binary"
	"net/netip"
)

// Refusal is what tells a packet's sender that it goes no further: a RST (RFC 9293
// §3.10.7.1), or an ICMP error "administratively prohibited" in the destination's name;
// nil where nobody must be told.
func Refusal(b []byte, h *Header) []byte {
	switch {
	case h.Verdict != Fine || h.IsError || !h.Whole():
		return nil
	case h.Protocol == TCP:
		return Reset(b, h)
	case h.V6:
		return Complaint(b, h, h.Tuple.Dst, 1, 1, 0)
	}
	return Complaint(b, h, h.Tuple.Dst, 3, 13, 0)
}

// Reset ends a TCP connection for the sender of a packet (RFC 9293 §3.10.7.1); nil for what
// is no TCP, or a RST itself.
func Reset(b []byte, h *Header) []byte {
	if h.Protocol != TCP || h.Verdict != Fine || h.Flags&RST != 0 || !h.Whole() {
		return nil
	}
	l4 := b[h.L4:h.Length]
	out := Blank(h.V6, TCP, 20, h.Tuple.Dst, h.Tuple.Src)
	t := out[len(out)-20:]
	binary.BigEndian.PutUint16(t, h.Tuple.DstPort)
	binary.BigEndian.PutUint16(t[2:], h.Tuple.SrcPort)
	t[12] = 5 << 4
	if h.Flags&ACK != 0 {
		copy(t[4:8], l4[8:12])
		t[13] = RST
	} else {
		taken := uint32(max(0, len(l4)-int(l4[12]>>4)*4))
		taken += uint32(h.Flags&FIN) + uint32(h.Flags&SYN)>>1
		binary.BigEndian.PutUint32(t[8:], binary.BigEndian.Uint32(l4[4:])+taken)
		t[13] = RST | ACK
	}
	binary.BigEndian.PutUint16(t[16:], ^Sum(PseudoSum(h.Tuple.Dst, h.Tuple.Src, TCP, 20), t))
	return out
}

// Complaint is an ICMP error from src about a packet to its sender; rest is the header's second
// word.
func Complaint(b []byte, h *Header, src netip.Addr, kind, code byte, rest uint32) []byte {
	quote, protocol := b[:min(h.Length, 548)], uint8(ICMP) // the error stays below 576 bytes
	if h.V6 {
		quote, protocol = b[:min(h.Length, 1232)], ICMPv6 // and below 1280
	}
	size := 8 + len(quote)
	out := Blank(h.V6, protocol, size, src, h.Tuple.Src)
	e := out[len(out)-size:]
	e[0], e[1] = kind, code
	binary.BigEndian.PutUint32(e[4:], rest)
	copy(e[8:], quote)
	start := uint32(0)
	if h.V6 {
		start = PseudoSum(src, h.Tuple.Src, protocol, size)
	}
	binary.BigEndian.PutUint16(e[2:], ^Sum(start, e))
	return out
}

// Blank is an IP packet without transport, from src to dst.
func Blank(v6 bool, protocol uint8, size int, src, dst netip.Addr) []byte {
	if v6 {
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
	binary.BigEndian.PutUint16(b[10:], ^Sum(0, b[:20]))
	return b
}
