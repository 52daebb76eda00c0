// Package packet reads and edits IP packets as the data path does.
package packet

import (
	"encoding/binary"
	"net/netip"

	"github.com/onpath/onpath"
)

// IP protocol numbers and EtherTypes that mean something to the data path.
const (
	ICMP    = 1
	TCP     = 6
	UDP     = 17
	ICMPv6  = 58
	SCTP    = 132
	UDPLite = 136

	TypeIPv4 = 0x0800
	TypeIPv6 = 0x86dd

	FIN = 1
	SYN = 2
	RST = 4
	ACK = 16
)

// maxExtensions is how many IPv6 extension headers are walked; behind more, the
// ports count as unreadable.
const maxExtensions = 6

// Verdict is what Parse thinks of a packet.
type Verdict uint8

const (
	Fine       Verdict = iota
	Malformed          // the IP header lies about lengths
	Unreadable         // addresses are known, the transport header is not
)

// Header is what the data path reads of an IP packet. All offsets lie within
// the packet once Parse has returned.
type Header struct {
	Tuple    onpath.Tuple
	Verdict  Verdict
	OfLink   bool // concerns one link only, whatever its addresses
	V6       bool
	DF       bool // IPv4: not to be fragmented
	Protocol uint8
	Known    bool // protocol is the transport's (too many extension headers otherwise)
	Length   int  // of the IP packet, bytes
	L4       int  // offset of the transport header; length if there is none
	TTL      uint8
	Flags    uint8 // TCP
	// Fragments: ID and offset in bytes. First has the transport header.
	Fragment, First, More bool
	Offset                int
	ID                    uint32
	// Quoted is the tuple of the packet that an ICMP error quotes.
	IsError, Quotes bool
	// SourceRouted: it names routers that it is to pass.
	SourceRouted bool
	Quoted       onpath.Tuple
	QuotedAt     int // offset of the quoted IP header
}

// Whole reports whether the packet itself has the transport header: it is no
// fragment behind the first.
func (h *Header) Whole() bool { return !h.Fragment || h.First }

// Begins reports whether the packet asks for a TCP connection: SYN without ACK.
func (h *Header) Begins() bool { return h.Protocol == TCP && h.Flags&(SYN|ACK) == SYN }

// Runs reports whether the packet is of a TCP connection that was asked for before.
func (h *Header) Runs() bool { return h.Protocol == TCP && h.Flags&(SYN|ACK) != SYN && !h.IsError }

// ICMP is the type and code of an ICMP or ICMPv6 message; 0 of anything else, and where they
// cannot be read.
func (h *Header) ICMP(b []byte) (kind, code uint8) {
	if h.Verdict != Fine || !h.Whole() || h.Protocol != ICMP && h.Protocol != ICMPv6 {
		return 0, 0
	}
	return b[h.L4], b[h.L4+1]
}

// HasPorts reports whether tuples of the protocol need the transport header.
func HasPorts(protocol uint8) bool {
	switch protocol {
	case TCP, UDP, SCTP, UDPLite, ICMP, ICMPv6:
		return true
	}
	return false
}

// Parse reads an IP packet; any bytes will do.
func Parse(b []byte) Header {
	h := parseNetwork(b, false)
	if h.Verdict != Fine {
		return h
	}
	h.transport(b[:h.Length])
	return h
}

// ParseCut reads the IP header of a packet that may end anywhere, as ICMP errors quote it.
func ParseCut(b []byte) Header { return parseNetwork(b, true) }

// parseNetwork reads the IP header. A cut packet may be shorter than its header says.
func parseNetwork(b []byte, cut bool) Header {
	if len(b) == 0 {
		return Header{Verdict: Malformed}
	}
	switch b[0] >> 4 {
	case 4:
		return parseIPv4(b, cut)
	case 6:
		return parseIPv6(b, cut)
	}
	return Header{Verdict: Malformed}
}

func parseIPv4(b []byte, cut bool) Header {
	if len(b) < 20 {
		return Header{Verdict: Malformed}
	}
	head, length := int(b[0]&15)*4, int(binary.BigEndian.Uint16(b[2:]))
	if cut { // a quotation may end anywhere, and its length may be in another byte order
		length = len(b)
	}
	if head < 20 || length < head || length > len(b) {
		return Header{Verdict: Malformed}
	}
	frag := binary.BigEndian.Uint16(b[6:])
	h := Header{
		Protocol: b[9], Known: true, Length: length, L4: head, TTL: b[8],
		ID: uint32(binary.BigEndian.Uint16(b[4:])), Offset: int(frag&0x1fff) * 8, More: frag&0x2000 != 0,
		DF: frag&0x4000 != 0,
	}
	h.SourceRouted = sourceRouted(b[20:min(head, len(b))])
	h.Fragment = h.Offset > 0 || h.More
	h.First = h.Fragment && h.Offset == 0
	h.Tuple = onpath.Tuple{
		Protocol: h.Protocol,
		Src:      netip.AddrFrom4([4]byte(b[12:16])),
		Dst:      netip.AddrFrom4([4]byte(b[16:20])),
	}
	return h
}

// sourceRouted finds a source route, loose or strict, among IPv4 options (RFC 791 §3.1).
func sourceRouted(options []byte) bool {
	for at := 0; at+2 <= len(options); {
		switch kind, size := options[at], int(options[at+1]); {
		case kind == 131 || kind == 137:
			return true
		case kind == 1:
			at++
		case kind == 0 || size < 2:
			return false
		default:
			at += size
		}
	}
	return false
}

func parseIPv6(b []byte, cut bool) Header {
	if len(b) < 40 {
		return Header{Verdict: Malformed}
	}
	length := 40 + int(binary.BigEndian.Uint16(b[4:]))
	if cut {
		length = len(b)
	}
	if length > len(b) {
		return Header{Verdict: Malformed}
	}
	h := Header{V6: true, Known: true, Length: length, TTL: b[7]}
	h.Tuple.Src = netip.AddrFrom16([16]byte(b[8:24])).Unmap()
	h.Tuple.Dst = netip.AddrFrom16([16]byte(b[24:40])).Unmap()
	if h.Tuple.Src.Is4() || h.Tuple.Dst.Is4() { // mapped addresses never stand on a wire
		h.Verdict = Malformed
		return h
	}
	h.extensions(b[:length], b[6])
	h.Tuple.Protocol = h.Protocol
	return h
}

// extensions walks from the IPv6 header to the transport header.
func (h *Header) extensions(b []byte, next uint8) {
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
			h.Offset, h.More = int(v&^7), v&1 != 0
			h.ID = binary.BigEndian.Uint32(b[at+4:])
			h.Fragment = h.Offset > 0 || h.More
			h.First = h.Fragment && h.Offset == 0
			if h.Offset > 0 {
				h.Protocol, h.L4 = b[at], at+8
				return
			}
			size = 8
		default:
			h.Protocol, h.L4 = next, at
			return
		}
		if at+size > len(b) {
			h.lost(next)
			return
		}
		if walked++; walked > maxExtensions {
			break
		}
		h.SourceRouted = h.SourceRouted || next == 43 && b[at+2] == 0 && b[at+3] != 0 // of type 0 (RFC 5095)
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
func (h *Header) lost(next uint8) {
	h.Protocol, h.Known, h.L4 = next, false, h.Length
	h.Verdict = Unreadable
}

// transport reads ports, TCP flags and the quotation of ICMP errors.
func (h *Header) transport(b []byte) {
	if h.Fragment && !h.First {
		if HasPorts(h.Protocol) || h.V6 && isExtension(h.Protocol) {
			h.Verdict = Unreadable // until the first fragment tells
		}
		return
	}
	l4 := b[h.L4:]
	switch h.Protocol {
	case TCP:
		if len(l4) < 20 || int(l4[12]>>4)*4 < 20 {
			h.Verdict = Unreadable
			return
		}
		h.Flags = l4[13]
		h.ports(l4)
	case UDP, UDPLite:
		if len(l4) < 8 {
			h.Verdict = Unreadable
			return
		}
		h.ports(l4)
	case SCTP:
		if len(l4) < 12 {
			h.Verdict = Unreadable
			return
		}
		h.ports(l4)
	case ICMP, ICMPv6:
		if len(l4) < 8 {
			h.Verdict = Unreadable
			return
		}
		h.icmp(b, l4)
	}
}

func (h *Header) ports(l4 []byte) {
	h.Tuple.SrcPort = binary.BigEndian.Uint16(l4)
	h.Tuple.DstPort = binary.BigEndian.Uint16(l4[2:])
}

func (h *Header) icmp(b, l4 []byte) {
	kind := l4[0]
	switch {
	case !h.V6 && h.Protocol == ICMP:
		h.IsError = kind == 3 || kind == 4 || kind == 5 || kind == 11 || kind == 12
		if kind == 8 || kind == 0 {
			h.echo(l4)
		}
	case h.V6 && h.Protocol == ICMPv6:
		h.IsError = kind < 128
		h.OfLink = kind >= 133 && kind <= 137 && l4[1] == 0 && h.TTL == 255 // Neighbour Discovery (RFC 4861)
		if kind == 128 || kind == 129 {
			h.echo(l4)
		}
	}
	if h.IsError && !h.Confined() { // one from or to nobody is about nothing: routers do not carry it
		h.QuotedAt = h.L4 + 8
		h.Quoted, h.Quotes = quotation(b[h.QuotedAt:])
		h.Quotes = h.Quotes && h.Quoted.Src.Is6() == h.V6
	}
}

func (h *Header) echo(l4 []byte) {
	id := binary.BigEndian.Uint16(l4[4:])
	h.Tuple.SrcPort, h.Tuple.DstPort = id, id
}

// quotation reads the tuple of the packet that an ICMP error quotes, of which
// there are at least 8 bytes behind the IP header (RFC 792).
func quotation(b []byte) (onpath.Tuple, bool) {
	q := ParseCut(b)
	if q.Verdict != Fine || q.Offset > 0 {
		return q.Tuple, false
	}
	l4 := b[q.L4:q.Length]
	if !HasPorts(q.Protocol) {
		return q.Tuple, true
	}
	if len(l4) < 8 {
		return q.Tuple, false
	}
	switch q.Protocol {
	case ICMP, ICMPv6:
		if q.icmp(b[:q.Length], l4); q.IsError {
			return q.Tuple, false
		}
	default:
		q.ports(l4)
	}
	return q.Tuple, true
}

// Confined reports whether the packet concerns a link only, or names nobody.
func (h *Header) Confined() bool { return Confined(h.Tuple.Src) || Confined(h.Tuple.Dst) }

// Confined tells addresses that no router may forward to or from (RFC 6890):
// multicast, broadcast and reserved ones, link-local, loopback, unspecified.
func Confined(a netip.Addr) bool {
	if a.Is4() {
		b := a.As4()
		return b[0] == 0 || b[0] == 127 || b[0] >= 224 || a.IsLinkLocalUnicast()
	}
	return a.IsUnspecified() || a.IsLoopback() || a.IsMulticast() || a.IsLinkLocalUnicast()
}
