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

func PseudoSum(src, dst netip.Addr, protocol uint8, length int) uint32 {
	return uint32(Sum(0, src.AsSlice())) + uint32(Sum(0, dst.AsSlice())) + uint32(protocol) + uint32(length)
}

// patch mends a checksum for a field that went from old to new (RFC 1624).
func patch(check, old, new []byte) {
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
	patch(b[c:c+2], old, new)
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
		patch(b[10:12], old, b[at:at+size])
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

// SetDSCP writes the differentiated services code point (RFC 2474).
func SetDSCP(b []byte, h *Header, dscp uint8) {
	old := [2]byte{b[0], b[1]}
	if h.V6 {
		b[0] = b[0]&0xf0 | dscp>>2&0xf
		b[1] = b[1]&0x3f | dscp<<6
		return
	}
	b[1] = b[1]&3 | dscp<<2
	patch(b[10:12], old[:], b[0:2])
}
