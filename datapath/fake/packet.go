package fake

import (
	"encoding/binary"
	"net/netip"

	"github.com/onpath/onpath"
)

// IP protocol numbers and EtherTypes that mean something to the data path.
const (
	protoICMP    = 1
	protoTCP     = 6
	protoUDP     = 17
	protoICMPv6  = 58
	protoSCTP    = 132
	protoUDPLite = 136

	typeIPv4 = 0x0800
	typeIPv6 = 0x86dd
	typeVLAN = 0x8100
	typeQinQ = 0x88a8

	flagFIN = 1
	flagSYN = 2
	flagRST = 4
	flagACK = 16
)

// maxExtensions is how many IPv6 extension headers are walked; behind more, the
// ports count as unreadable.
const maxExtensions = 6

// verdict is what parse thinks of a packet.
type verdict uint8

const (
	fine       verdict = iota
	malformed          // the IP header lies about lengths
	unreadable         // addresses are known, the transport header is not
)

// header is what the data path reads of an IP packet. All offsets lie within
// the packet once parse has returned.
type header struct {
	tuple    onpath.Tuple
	verdict  verdict
	ofLink   bool // concerns one link only, whatever its addresses
	v6       bool
	df       bool // IPv4: not to be fragmented
	protocol uint8
	known    bool // protocol is the transport's (too many extension headers otherwise)
	length   int  // of the IP packet, bytes
	l4       int  // offset of the transport header; length if there is none
	ttl      uint8
	flags    uint8 // TCP
	// Fragments: id and offset in bytes. first has the transport header.
	fragment, first, more bool
	offset                int
	id                    uint32
	// quoted is the tuple of the packet that an ICMP error quotes.
	isError, quotes bool
	quoted          onpath.Tuple
	quotedAt        int // offset of the quoted IP header
}

// whole reports whether the packet itself has the transport header: it is no
// fragment behind the first.
func (h *header) whole() bool { return !h.fragment || h.first }

// hasPorts reports whether tuples of the protocol need the transport header.
func hasPorts(protocol uint8) bool {
	switch protocol {
	case protoTCP, protoUDP, protoSCTP, protoUDPLite, protoICMP, protoICMPv6:
		return true
	}
	return false
}

// parse reads an IP packet; any bytes will do.
func parse(b []byte) header {
	h := parseNetwork(b, false)
	if h.verdict != fine {
		return h
	}
	h.transport(b[:h.length])
	return h
}

// parseNetwork reads the IP header. A cut packet, as ICMP errors quote it, may
// be shorter than its header says.
func parseNetwork(b []byte, cut bool) header {
	if len(b) == 0 {
		return header{verdict: malformed}
	}
	switch b[0] >> 4 {
	case 4:
		return parseIPv4(b, cut)
	case 6:
		return parseIPv6(b, cut)
	}
	return header{verdict: malformed}
}

func parseIPv4(b []byte, cut bool) header {
	if len(b) < 20 {
		return header{verdict: malformed}
	}
	head, length := int(b[0]&15)*4, int(binary.BigEndian.Uint16(b[2:]))
	if cut { // a quotation may end anywhere, and its length may be in another byte order
		length = len(b)
	}
	if head < 20 || length < head || length > len(b) {
		return header{verdict: malformed}
	}
	frag := binary.BigEndian.Uint16(b[6:])
	h := header{
		protocol: b[9], known: true, length: length, l4: head, ttl: b[8],
		id: uint32(binary.BigEndian.Uint16(b[4:])), offset: int(frag&0x1fff) * 8, more: frag&0x2000 != 0,
		df: frag&0x4000 != 0,
	}
	h.fragment = h.offset > 0 || h.more
	h.first = h.fragment && h.offset == 0
	h.tuple = onpath.Tuple{
		Protocol: h.protocol,
		Src:      netip.AddrFrom4([4]byte(b[12:16])),
		Dst:      netip.AddrFrom4([4]byte(b[16:20])),
	}
	return h
}

func parseIPv6(b []byte, cut bool) header {
	if len(b) < 40 {
		return header{verdict: malformed}
	}
	length := 40 + int(binary.BigEndian.Uint16(b[4:]))
	if cut {
		length = len(b)
	}
	if length > len(b) {
		return header{verdict: malformed}
	}
	h := header{v6: true, known: true, length: length, ttl: b[7]}
	h.tuple.Src = netip.AddrFrom16([16]byte(b[8:24])).Unmap()
	h.tuple.Dst = netip.AddrFrom16([16]byte(b[24:40])).Unmap()
	if h.tuple.Src.Is4() || h.tuple.Dst.Is4() { // mapped addresses never stand on a wire
		h.verdict = malformed
		return h
	}
	h.extensions(b[:length], b[6])
	h.tuple.Protocol = h.protocol
	return h
}

// extensions walks from the IPv6 header to the transport header.
func (h *header) extensions(b []byte, next uint8) {
	at, walked := 40, 0
	for range maxExtensions + 1 {
		size := 0
		switch next {
		case 0, 43, 60:
			if at+8 > len(b) {
				h.lost(next)
				return
			}
			size = 8 + int(b[at+1])*8
		case 51: // authentication header counts in 4 bytes (RFC 4302)
			if at+8 > len(b) {
				h.lost(next)
				return
			}
			size = 8 + int(b[at+1])*4
		case 44:
			if at+8 > len(b) {
				h.lost(next)
				return
			}
			v := binary.BigEndian.Uint16(b[at+2:])
			h.offset, h.more = int(v&^7), v&1 != 0
			h.id = binary.BigEndian.Uint32(b[at+4:])
			h.fragment = h.offset > 0 || h.more
			h.first = h.fragment && h.offset == 0
			if h.offset > 0 {
				h.protocol, h.l4 = b[at], at+8
				return
			}
			size = 8
		default:
			h.protocol, h.l4 = next, at
			return
		}
		if at+size > len(b) {
			h.lost(next)
			return
		}
		if walked++; walked > maxExtensions {
			break
		}
		next, at = b[at], at+size
	}
	h.lost(next)
}

func isExtension(protocol uint8) bool {
	switch protocol {
	case 0, 43, 44, 51, 60:
		return true
	}
	return false
}

// lost notes that the transport header was not found.
func (h *header) lost(next uint8) {
	h.protocol, h.known, h.l4 = next, false, h.length
	h.verdict = unreadable
}

// transport reads ports, TCP flags and the quotation of ICMP errors.
func (h *header) transport(b []byte) {
	if h.fragment && !h.first {
		if hasPorts(h.protocol) || h.v6 && isExtension(h.protocol) {
			h.verdict = unreadable // until the first fragment tells
		}
		return
	}
	l4 := b[h.l4:]
	switch h.protocol {
	case protoTCP:
		if len(l4) < 20 || int(l4[12]>>4)*4 < 20 {
			h.verdict = unreadable
			return
		}
		h.flags = l4[13]
		h.ports(l4)
	case protoUDP, protoUDPLite:
		if len(l4) < 8 {
			h.verdict = unreadable
			return
		}
		h.ports(l4)
	case protoSCTP:
		if len(l4) < 12 {
			h.verdict = unreadable
			return
		}
		h.ports(l4)
	case protoICMP, protoICMPv6:
		if len(l4) < 8 {
			h.verdict = unreadable
			return
		}
		h.icmp(b, l4)
	}
}

func (h *header) ports(l4 []byte) {
	h.tuple.SrcPort = binary.BigEndian.Uint16(l4)
	h.tuple.DstPort = binary.BigEndian.Uint16(l4[2:])
}

func (h *header) icmp(b, l4 []byte) {
	kind := l4[0]
	switch {
	case !h.v6 && h.protocol == protoICMP:
		h.isError = kind == 3 || kind == 4 || kind == 5 || kind == 11 || kind == 12
		if kind == 8 || kind == 0 {
			h.echo(l4)
		}
	case h.v6 && h.protocol == protoICMPv6:
		h.isError = kind < 128
		h.ofLink = kind >= 133 && kind <= 137 && l4[1] == 0 && h.ttl == 255 // Neighbour Discovery (RFC 4861)
		if kind == 128 || kind == 129 {
			h.echo(l4)
		}
	}
	if h.isError && !quietKind(h) { // one from or to nobody is about nothing: routers do not carry it
		h.quotedAt = h.l4 + 8
		h.quoted, h.quotes = quotation(b[h.quotedAt:])
		h.quotes = h.quotes && h.quoted.Src.Is6() == h.v6
	}
}

func (h *header) echo(l4 []byte) {
	id := binary.BigEndian.Uint16(l4[4:])
	h.tuple.SrcPort, h.tuple.DstPort = id, id
}

// quotation reads the tuple of the packet that an ICMP error quotes, of which
// there are at least 8 bytes behind the IP header (RFC 792).
func quotation(b []byte) (onpath.Tuple, bool) {
	q := parseNetwork(b, true)
	if q.verdict != fine || q.offset > 0 {
		return q.tuple, false
	}
	l4 := b[q.l4:q.length]
	if !hasPorts(q.protocol) {
		return q.tuple, true
	}
	if len(l4) < 8 {
		return q.tuple, false
	}
	switch q.protocol {
	case protoICMP, protoICMPv6:
		if q.icmp(b[:q.length], l4); q.isError {
			return q.tuple, false
		}
	default:
		q.ports(l4)
	}
	return q.tuple, true
}

// frame is an Ethernet frame taken apart.
type frame struct {
	src, dst  [6]byte
	tags      []uint16 // VLAN ids, outermost first
	etherType uint16
	payload   []byte
}

// parseFrame reads an Ethernet frame with up to two VLAN tags; what lies behind
// more keeps the EtherType of a tag.
func parseFrame(b []byte) (frame, bool) {
	if len(b) < 14 {
		return frame{}, false
	}
	f := frame{dst: [6]byte(b[:6]), src: [6]byte(b[6:12]), etherType: binary.BigEndian.Uint16(b[12:])}
	b = b[14:]
	for len(f.tags) < 2 && (f.etherType == typeVLAN || f.etherType == typeQinQ) {
		if len(b) < 4 {
			return frame{}, false
		}
		f.tags = append(f.tags, binary.BigEndian.Uint16(b)&0xfff)
		f.etherType = binary.BigEndian.Uint16(b[2:])
		b = b[4:]
	}
	f.payload = b
	return f, true
}

// inVLAN reports whether the frame belongs to a VLAN: one with tag 0 does not, it only
// has a priority.
func (f frame) inVLAN() bool { return len(f.tags) > 1 || len(f.tags) == 1 && f.tags[0] != 0 }

// isIP reports whether the frame carries IP as its EtherType says.
func (f frame) isIP() bool {
	if len(f.payload) == 0 {
		return false
	}
	v := f.payload[0] >> 4
	return (f.etherType == typeIPv4 && v == 4) || (f.etherType == typeIPv6 && v == 6)
}
