package fake

import (
	"encoding/binary"
	"net/netip"
)

// sum is the one's complement sum of RFC 1071, started with s.
func sum(s uint32, b []byte) uint16 {
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

func pseudoSum(src, dst netip.Addr, protocol uint8, length int) uint32 {
	return uint32(sum(0, src.AsSlice())) + uint32(sum(0, dst.AsSlice())) + uint32(protocol) + uint32(length)
}

// patch mends a checksum for a field that went from old to new (RFC 1624).
func patch(check, old, new []byte) {
	c := uint32(^binary.BigEndian.Uint16(check)) + uint32(^sum(0, old)) + uint32(sum(0, new))
	for c>>16 != 0 {
		c = c&0xffff + c>>16
	}
	binary.BigEndian.PutUint16(check, ^uint16(c))
}

// patchTransport mends the transport checksum at c, if the packet has all of it. One
// of UDP that comes to nothing is written as all ones: nothing means that there is
// none (RFC 768).
func patchTransport(b []byte, h *header, c int, old, new []byte) {
	if c < 0 || c+2 > h.length {
		return
	}
	patch(b[c:c+2], old, new)
	if h.protocol == protoUDP && b[c] == 0 && b[c+1] == 0 {
		b[c], b[c+1] = 0xff, 0xff
	}
}

// decrement lowers the hop limit by one.
func decrement(b []byte, h *header) {
	h.ttl--
	if h.v6 {
		b[7] = h.ttl
		return
	}
	old := [2]byte{b[8], b[9]}
	b[8] = h.ttl
	patch(b[10:12], old[:], b[8:10])
}

// checksumAt is where the transport checksum stands that covers the addresses
// (covers) or at least the ports; -1 if there is none to mend.
func checksumAt(b []byte, h *header) (at int, covers bool) {
	if h.fragment && !h.first || h.verdict != fine {
		return -1, false
	}
	switch h.protocol {
	case protoTCP:
		return h.l4 + 16, true
	case protoUDP, protoUDPLite:
		if b[h.l4+6] == 0 && b[h.l4+7] == 0 && h.protocol == protoUDP {
			return -1, false // sent without (over IPv6: RFC 6936)
		}
		return h.l4 + 6, true
	case protoICMPv6:
		return h.l4 + 2, true
	case protoICMP:
		return h.l4 + 2, false
	}
	return -1, false
}

// setAddress writes the source or destination address.
func setAddress(b []byte, h *header, source bool, a netip.Addr) {
	at, size := 12, 4
	if h.v6 {
		at, size = 8, 16
	}
	if source {
		h.tuple.Src = a
	} else {
		h.tuple.Dst = a
		at += size
	}
	old := append([]byte(nil), b[at:at+size]...)
	copy(b[at:], a.AsSlice())
	if !h.v6 {
		patch(b[10:12], old, b[at:at+size])
	}
	if c, covers := checksumAt(b, h); covers {
		patchTransport(b, h, c, old, b[at:at+size])
	}
}

// setPort writes a port, or the identifier of an echo.
func setPort(b []byte, h *header, source bool, port uint16) {
	at := h.l4
	switch h.protocol {
	case protoICMP, protoICMPv6:
		at += 4
		h.tuple.SrcPort, h.tuple.DstPort = port, port
	default:
		if source {
			h.tuple.SrcPort = port
		} else {
			h.tuple.DstPort = port
			at += 2
		}
	}
	if h.fragment && !h.first {
		return // it has none, but is the flow's
	}
	old := [2]byte{b[at], b[at+1]}
	binary.BigEndian.PutUint16(b[at:], port)
	c, _ := checksumAt(b, h)
	patchTransport(b, h, c, old[:], b[at:at+2])
}

// maxOptions is how many options of a TCP header are looked at for the MSS.
const maxOptions = 20

// clamp lowers the MSS option of a SYN so that segments fit an IP packet of mtu
// bytes (RFC 6691).
func clamp(b []byte, h *header, mtu int) {
	if h.protocol != protoTCP || h.verdict != fine || h.flags&flagSYN == 0 {
		return
	}
	limit := mtu - 40
	if h.v6 {
		limit = mtu - 60
	}
	end := min(h.l4+int(b[h.l4+12]>>4)*4, h.length)
	at := h.l4 + 20
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
func clampOption(b []byte, h *header, at, limit int) {
	if int(binary.BigEndian.Uint16(b[at:])) <= limit || limit <= 0 {
		return
	}
	first := at - (at-h.l4)%2
	last := min(first+4, h.length)
	old := append([]byte(nil), b[first:last]...)
	binary.BigEndian.PutUint16(b[at:], uint16(limit))
	patch(b[h.l4+16:h.l4+18], old, b[first:last])
}
