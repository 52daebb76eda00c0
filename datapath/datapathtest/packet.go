package datapathtest

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"net/netip"

	"github.com/onpath/onpath"
)

// IP protocol numbers that the exam uses.
const (
	icmp   = 1
	tcp    = 6
	udp    = 17
	gre    = 47
	icmpv6 = 58
)

// TCP flags.
const (
	fin = 1 << iota
	syn
	rst
	psh
	ack
)

// packet describes an IP packet to build; the exam's own, so that no driver is
// examined with its own parser.
type packet struct {
	tuple   onpath.Tuple
	ttl     byte
	flags   byte   // TCP
	seq     uint32 // TCP
	ack     uint32 // TCP
	mss     uint16 // TCP option; 0: none
	payload []byte
	id      uint32 // of the datagram, for fragments
	offset  int    // of this fragment in bytes; a multiple of 8
	more    bool   // fragments follow
	piece   int    // bytes of a fragment that others follow; default 64
	nodf    bool   // IPv4 without don't fragment
	options []byte // IPv4; a multiple of 4
	ext     []byte // whole extension headers between IPv6 header and transport
	extType byte   // protocol number of the first of them
	// icmpType and icmpCode with body make an ICMP message other than echo.
	icmpType, icmpCode byte
	icmpRest           [4]byte
	body               []byte
}

func newPacket(t onpath.Tuple) packet {
	p := packet{tuple: t, ttl: 64, payload: []byte("onpath exam payload"), seq: 1000}
	if t.Protocol == tcp {
		p.flags = syn
		p.payload = nil
	}
	return p
}

// bytes is the packet on the wire, all checksums right.
func (p packet) bytes() []byte {
	l4 := p.transport()
	if p.offset > 0 || p.more {
		l4 = l4[min(p.offset, len(l4)):]
		if p.more {
			l4 = l4[:min(len(l4), cmp.Or(p.piece, 64))]
		}
	}
	if p.tuple.Src.Is4() {
		return p.v4(l4)
	}
	return p.v6(l4)
}

func (p packet) v4(l4 []byte) []byte {
	b := make([]byte, 20, 20+len(p.options)+len(l4))
	b[0] = 0x45 + byte(len(p.options)/4)
	binary.BigEndian.PutUint16(b[2:], uint16(20+len(p.options)+len(l4)))
	binary.BigEndian.PutUint16(b[4:], uint16(p.id))
	frag := uint16(p.offset / 8)
	if p.more {
		frag |= 0x2000
	}
	if !p.nodf && frag == 0 {
		frag |= 0x4000
	}
	binary.BigEndian.PutUint16(b[6:], frag)
	b[8], b[9] = p.ttl, p.tuple.Protocol
	copy(b[12:], p.tuple.Src.AsSlice())
	copy(b[16:], p.tuple.Dst.AsSlice())
	b = append(b, p.options...)
	binary.BigEndian.PutUint16(b[10:], ^sum(0, b))
	return append(b, l4...)
}

func (p packet) v6(l4 []byte) []byte {
	ext, next := p.ext, p.tuple.Protocol
	if len(ext) > 0 {
		next = p.extType
	}
	if p.offset > 0 || p.more {
		f := make([]byte, 8)
		f[0] = p.tuple.Protocol
		v := uint16(p.offset)
		if p.more {
			v |= 1
		}
		binary.BigEndian.PutUint16(f[2:], v)
		binary.BigEndian.PutUint32(f[4:], p.id)
		ext, next = f, 44
	}
	b := make([]byte, 40, 40+len(ext)+len(l4))
	b[0] = 0x60
	binary.BigEndian.PutUint16(b[4:], uint16(len(ext)+len(l4)))
	b[6], b[7] = next, p.ttl
	copy(b[8:], p.tuple.Src.AsSlice())
	copy(b[24:], p.tuple.Dst.AsSlice())
	return append(append(b, ext...), l4...)
}

// transport is the whole datagram's layer 4.
func (p packet) transport() []byte {
	t := p.tuple
	var b []byte
	at := -1
	switch t.Protocol {
	case tcp:
		b = make([]byte, 20)
		binary.BigEndian.PutUint16(b, t.SrcPort)
		binary.BigEndian.PutUint16(b[2:], t.DstPort)
		binary.BigEndian.PutUint32(b[4:], p.seq)
		binary.BigEndian.PutUint32(b[8:], p.ack)
		if p.mss != 0 {
			b = append(b, 2, 4, byte(p.mss>>8), byte(p.mss))
		}
		b[12], b[13] = byte(len(b)/4)<<4, p.flags
		binary.BigEndian.PutUint16(b[14:], 0xffff)
		b, at = append(b, p.payload...), 16
	case udp:
		b = make([]byte, 8, 8+len(p.payload))
		binary.BigEndian.PutUint16(b, t.SrcPort)
		binary.BigEndian.PutUint16(b[2:], t.DstPort)
		binary.BigEndian.PutUint16(b[4:], uint16(8+len(p.payload)))
		b, at = append(b, p.payload...), 6
	case icmp, icmpv6:
		b, at = p.icmp(), 2
	default:
		return p.payload
	}
	start := uint32(0)
	if t.Protocol != icmp {
		start = pseudo(t.Src, t.Dst, t.Protocol, len(b))
	}
	c := ^sum(start, b)
	if c == 0 && t.Protocol == udp {
		c = 0xffff
	}
	binary.BigEndian.PutUint16(b[at:], c)
	return b
}

func (p packet) icmp() []byte {
	if p.body != nil {
		b := []byte{p.icmpType, p.icmpCode, 0, 0}
		return append(append(b, p.icmpRest[:]...), p.body...)
	}
	b := make([]byte, 8)
	b[0] = 8
	if p.tuple.Protocol == icmpv6 {
		b[0] = 128
	}
	if p.icmpType != 0 || p.flags == echoReply {
		b[0] = p.icmpType
	}
	binary.BigEndian.PutUint16(b[4:], p.tuple.SrcPort)
	return append(b, p.payload...)
}

// echoReply in packet.flags makes an ICMPv4 echo reply, whose type is 0.
const echoReply = 0xff

// icmpError is the error of the given type about quoted, sent by from to its
// source.
func icmpError(from netip.Addr, kind, code byte, quoted []byte) packet {
	src, _ := addresses(quoted)
	p := packet{ttl: 64, icmpType: kind, icmpCode: code, body: quoted[:min(len(quoted), 128)]}
	p.tuple = onpath.Tuple{Protocol: icmp, Src: from, Dst: src}
	if from.Is6() {
		p.tuple.Protocol = icmpv6
	}
	return p
}

func addresses(b []byte) (src, dst netip.Addr) {
	if b[0]>>4 == 4 {
		return netip.AddrFrom4([4]byte(b[12:16])), netip.AddrFrom4([4]byte(b[16:20]))
	}
	return netip.AddrFrom16([16]byte(b[8:24])), netip.AddrFrom16([16]byte(b[24:40]))
}

// withTTL is a copy with the hop limit lowered by n.
func withTTL(b []byte, n byte) []byte {
	b = append([]byte(nil), b...)
	if b[0]>>4 == 6 {
		b[7] -= n
		return b
	}
	b[8] -= n
	b[10], b[11] = 0, 0
	binary.BigEndian.PutUint16(b[10:], ^sum(0, b[:int(b[0]&15)*4]))
	return b
}

// transportOf finds layer 4 of a packet that is no fragment.
func transportOf(b []byte) (protocol byte, l4 []byte) {
	if b[0]>>4 == 4 {
		return b[9], b[int(b[0]&15)*4:]
	}
	next, at := b[6], 40
	for next == 0 || next == 43 || next == 60 {
		next, at = b[at], at+8+int(b[at+1])*8
	}
	return next, b[at:]
}

// tupleOf reads the tuple of a packet that is no fragment.
func tupleOf(b []byte) onpath.Tuple {
	protocol, l4 := transportOf(b)
	t := onpath.Tuple{Protocol: protocol}
	t.Src, t.Dst = addresses(b)
	switch {
	case (protocol == tcp || protocol == udp) && len(l4) >= 4:
		t.SrcPort, t.DstPort = binary.BigEndian.Uint16(l4), binary.BigEndian.Uint16(l4[2:])
	case (protocol == icmp || protocol == icmpv6) && len(l4) >= 6:
		t.SrcPort = binary.BigEndian.Uint16(l4[4:])
		t.DstPort = t.SrcPort
	}
	return t
}

// readdress writes other addresses into an IPv4 packet that is no fragment, as a
// function that translates would; an invalid one stays.
func readdress(b []byte, src, dst netip.Addr) []byte {
	b = append([]byte(nil), b...)
	s, d := addresses(b)
	if src.IsValid() {
		s = src
	}
	if dst.IsValid() {
		d = dst
	}
	copy(b[12:], s.AsSlice())
	copy(b[16:], d.AsSlice())
	b[10], b[11] = 0, 0
	binary.BigEndian.PutUint16(b[10:], ^sum(0, b[:20]))
	protocol, l4 := transportOf(b)
	at := map[byte]int{tcp: 16, udp: 6}[protocol]
	l4[at], l4[at+1] = 0, 0
	binary.BigEndian.PutUint16(l4[at:], ^sum(pseudo(s, d, protocol, len(l4)), l4))
	return b
}

// checksums says which checksum of a whole packet is wrong.
func checksums(b []byte) error {
	if len(b) < 20 || (b[0]>>4 == 6 && len(b) < 40) {
		return fmt.Errorf("%d bytes are no IP packet", len(b))
	}
	if b[0]>>4 == 4 && sum(0, b[:int(b[0]&15)*4]) != 0xffff {
		return fmt.Errorf("the IPv4 header's checksum is wrong")
	}
	protocol, l4 := transportOf(b)
	src, dst := addresses(b)
	start := uint32(0)
	switch protocol {
	case tcp, udp, icmpv6:
		start = pseudo(src, dst, protocol, len(l4))
	case icmp:
	default:
		return nil
	}
	if sum(start, l4) != 0xffff {
		return fmt.Errorf("the checksum of protocol %d is wrong", protocol)
	}
	return nil
}

// sum is the Internet checksum's one's complement sum (RFC 1071).
func sum(start uint32, b []byte) uint16 {
	s := start
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

func pseudo(src, dst netip.Addr, protocol byte, length int) uint32 {
	s := uint32(sum(0, src.AsSlice())) + uint32(sum(0, dst.AsSlice()))
	return s + uint32(protocol) + uint32(length)
}
