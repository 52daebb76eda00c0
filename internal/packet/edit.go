package packet

import (
	"encoding/binary"
	"net/netip"
)

// Sum is the one's complement sum of RFC 1071, started with s.
func Sum(s uint32, b []byte) uint16 {
	for ; len(b) >= 2; b = b[2:] {
		s += uint32(b[0])<<8 | uint32(b[1])
	}
	if len(b) == 1 {
		s += uint32(b[0]) << 8
	}
	for s>>16 != 0 {
		s = s&0xffff + s>>16
	}
	return uint16(s)
}

// PseudoSum is the sum of the pseudo header that transports check with (RFC 9293 §3.1).
func PseudoSum(src, dst netip.Addr, protocol uint8, length int) uint32 {
	return uint32(Sum(0, src.AsSlice())) + uint32(Sum(0, dst.AsSlice())) + uint32(protocol) + uint32(length)
}

// Patch mends a checksum for a field that went from old to new (RFC 1624).
func Patch(check, old, new []byte) {
	c := uint32(^binary.BigEndian.Uint16(check)) + uint32(^Sum(0, old)) + uint32(Sum(0, new))
	for c>>16 != 0 {
		c = c&0xffff + c>>16
	}
	binary.BigEndian.PutUint16(check, ^uint16(c))
}

// patchTransport mends the transport checksum at c, if the packet has all of it. One
// of UDP that comes to nothing is written as all ones: nothing means that there is
// none (RFC 768).
func patchTransport(b []byte, h *Header, c int, old, new []byte) {
	if c < 0 || c+2 > h.Length {
		return
	}
	Patch(b[c:c+2], old, new)
	if h.Protocol == UDP && b[c] == 0 && b[c+1] == 0 {
		b[c], b[c+1] = 0xff, 0xff
	}
}

// checksumAt is where the transport checksum stands that covers the addresses
// (covers) or at least the ports; -1 if there is none to mend.
func checksumAt(b []byte, h *Header) (at int, covers bool) {
	if h.Fragment && !h.First || h.Verdict != Fine {
		return -1, false
	}
	switch h.Protocol {
	case TCP:
		return h.L4 + 16, true
	case UDP, UDPLite:
		if b[h.L4+6] == 0 && b[h.L4+7] == 0 && h.Protocol == UDP {
			return -1, false // sent without (over IPv6: RFC 6936)
		}
		return h.L4 + 6, true
	case ICMPv6:
		return h.L4 + 2, true
	case ICMP:
		return h.L4 + 2, false
	}
	return -1, false
}

// SetAddress writes the source or destination address.
func SetAddress(b []byte, h *Header, source bool, a netip.Addr) {
	at, size := 12, 4
	if h.V6 {
		at, size = 8, 16
	}
	if source {
		h.Tuple.Src = a
	} else {
		h.Tuple.Dst = a
		at += size
	}
	old := append([]byte(nil), b[at:at+size]...)
	copy(b[at:], a.AsSlice())
	if !h.V6 {
		Patch(b[10:12], old, b[at:at+size])
	}
	if c, covers := checksumAt(b, h); covers {
		patchTransport(b, h, c, old, b[at:at+size])
	}
}

// SetPort writes a port, or the identifier of an echo.
func SetPort(b []byte, h *Header, source bool, port uint16) {
	at := h.L4
	switch h.Protocol {
	case ICMP, ICMPv6:
		at += 4
		h.Tuple.SrcPort, h.Tuple.DstPort = port, port
	default:
		if source {
			h.Tuple.SrcPort = port
		} else {
			h.Tuple.DstPort = port
			at += 2
		}
	}
	if h.Fragment && !h.First {
		return // it has none, but is the flow's
	}
	old := [2]byte{b[at], b[at+1]}
	binary.BigEndian.PutUint16(b[at:], port)
	c, _ := checksumAt(b, h)
	patchTransport(b, h, c, old[:], b[at:at+2])
}

// DSCP is the differentiated services code point (RFC 2474) of an IP packet.
func DSCP(b []byte) uint8 {
	if b[0]>>4 == 6 {
		return b[0]&15<<2 | b[1]>>6
	}
	return b[1] >> 2
}

// SetDSCP writes it, of which six bits count.
func SetDSCP(b []byte, dscp uint8) {
	dscp &= 63
	if b[0]>>4 == 6 {
		b[0], b[1] = b[0]&0xf0|dscp>>2, b[1]&0x3f|dscp<<6
		return
	}
	old := [2]byte{b[0], b[1]}
	b[1] = b[1]&3 | dscp<<2
	Patch(b[10:12], old[:], b[:2])
}

// Decrement lowers the hop limit by one.
func Decrement(b []byte, h *Header) {
	h.TTL--
	if h.V6 {
		b[7] = h.TTL
		return
	}
	old := [2]byte{b[8], b[9]}
	b[8] = h.TTL
	Patch(b[10:12], old[:], b[8:10])
}

// maxOptions is how many options of a TCP header are looked at for the MSS.
const maxOptions = 20

// Clamp lowers the MSS option of a SYN so that segments fit an IP packet of mtu
// bytes (RFC 6691).
func Clamp(b []byte, h *Header, mtu int) {
	if h.Protocol != TCP || h.Verdict != Fine || h.Flags&SYN == 0 {
		return
	}
	limit := mtu - 40
	if h.V6 {
		limit = mtu - 60
	}
	end := min(h.L4+int(b[h.L4+12]>>4)*4, h.Length)
	at := h.L4 + 20
	for range maxOptions {
		if at+1 >= end || b[at] == 0 {
			return
		}
		if b[at] == 1 {
			at++
			continue
		}
		size := int(b[at+1])
		if size < 2 || at+size > end {
			return
		}
		if b[at] == 2 && size == 4 {
			clampOption(b, h, at+2, limit)
			return
		}
		at += size
	}
}

// clampOption mends the checksum byte by byte position: an option may begin at
// an odd offset.
func clampOption(b []byte, h *Header, at, limit int) {
	if int(binary.BigEndian.Uint16(b[at:])) <= limit || limit <= 0 {
		return
	}
	first := at - (at-h.L4)%2
	last := min(first+4, h.Length)
	old := append([]byte(nil), b[first:last]...)
	binary.BigEndian.PutUint16(b[at:], uint16(limit))
	Patch(b[h.L4+16:h.L4+18], old, b[first:last])
}
