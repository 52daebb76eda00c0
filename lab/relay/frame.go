package relay

import "encoding/binary"

// vnetLen is the length of the virtio-net header (virtio 1.2, 5.1.6) that
// packet sockets put before each frame.
const vnetLen = 10

// Values of the virtio-net header.
const (
	vnetNeedsCsum = 1
	gsoNone       = 0
	gsoTCPv4      = 1
	gsoTCPv6      = 4
	gsoECN        = 0x80
)

// Bounds of headers, in bytes.
const (
	ethLen     = 14
	vlanLen    = 4
	minIPv4    = 20
	ipv6Len    = 40
	minTCP     = 20
	maxGSOSize = 65536 + 256 // a frame that the kernel has not cut, with all headers
)

// frame is a virtio-net header and the Ethernet frame behind it. Its header
// lengths are set only if segments > 1.
type frame struct {
	bytes     []byte
	segments  int
	gsoSize   int // payload of each segment but the last, bytes
	headers   int // Ethernet to the end of TCP, bytes
	network   int // where the IP header begins, from the Ethernet header
	transport int // where the TCP header begins
	payload   int // bytes
	v6        bool
}

// parse reads what is needed to count and to cut a frame's segments. Only TCP
// is left uncut by the devices of a lab; whatever else comes uncut passes as
// one segment.
func parse(b []byte) frame {
	f := frame{bytes: b, segments: 1}
	kind := b[1] &^ gsoECN
	if kind == gsoNone {
		return f
	}
	eth := b[vnetLen:]
	f.gsoSize = int(binary.NativeEndian.Uint16(b[4:]))
	f.transport = int(binary.NativeEndian.Uint16(b[6:])) // csum_start; GSO implies a partial checksum
	if b[0]&vnetNeedsCsum == 0 || f.gsoSize == 0 || f.transport+minTCP > len(eth) {
		return f
	}
	f.headers = f.transport + int(eth[f.transport+12]>>4)*4
	f.v6 = kind == gsoTCPv6
	f.network = ethLen
	for f.network+1 < len(eth) && isVLAN(binary.BigEndian.Uint16(eth[f.network-2:])) {
		f.network += vlanLen
	}
	minIP := minIPv4
	if f.v6 {
		minIP = ipv6Len
	}
	if kind != gsoTCPv4 && kind != gsoTCPv6 || f.headers < f.transport+minTCP || f.headers > len(eth) || f.network+minIP > f.transport {
		return f
	}
	f.payload = len(eth) - f.headers
	f.segments = max(1, (f.payload+f.gsoSize-1)/f.gsoSize)
	return f
}

func isVLAN(etherType uint16) bool { return etherType == 0x8100 || etherType == 0x88a8 }

// size is the length on the wire of segment i, without the frame check
// sequence.
func (f *frame) size(i int) int {
	if f.segments == 1 {
		return len(f.bytes) - vnetLen
	}
	if i == f.segments-1 {
		return f.headers + f.payload - i*f.gsoSize
	}
	return f.headers + f.gsoSize
}

// partLen is how many bytes part p needs, the virtio-net header included.
func (f *frame) partLen(p part) int {
	if p.end-p.first == f.segments {
		return len(f.bytes)
	}
	n := vnetLen + f.headers
	return n + min(p.end*f.gsoSize, f.payload) - p.first*f.gsoSize
}

// cut writes the frame that consists of the segments of p alone to to, which
// has partLen bytes.
func (f *frame) cut(to []byte, p part) {
	if p.end-p.first == f.segments {
		copy(to, f.bytes)
		return
	}
	begin := p.first * f.gsoSize
	end := min(p.end*f.gsoSize, f.payload)
	copy(to, f.bytes[:vnetLen+f.headers])
	copy(to[vnetLen+f.headers:], f.bytes[vnetLen+f.headers:][begin:end])
	if p.end-p.first == 1 {
		to[1] = gsoNone
		binary.NativeEndian.PutUint16(to[4:], 0)
	}
	eth := to[vnetLen:]
	f.fixNetwork(eth, end-begin, p.first)
	f.fixTransport(eth, uint32(begin), end-begin, p.first == 0, p.end == f.segments)
}

// fixNetwork sets the IP header's length, identification and checksum.
func (f *frame) fixNetwork(eth []byte, payload, first int) {
	ip := eth[f.network:f.transport]
	tcpLen := f.headers - f.transport
	if f.v6 {
		binary.BigEndian.PutUint16(ip[4:], uint16(len(ip)-ipv6Len+tcpLen+payload))
		return
	}
	binary.BigEndian.PutUint16(ip[2:], uint16(len(ip)+tcpLen+payload))
	binary.BigEndian.PutUint16(ip[4:], binary.BigEndian.Uint16(ip[4:])+uint16(first))
	ip[10], ip[11] = 0, 0
	binary.BigEndian.PutUint16(ip[10:], ^fold(sum(ip)))
}

// fixTransport sets the TCP header's sequence number and flags, and the
// pseudo header's sum, which stands in the checksum field of a frame whose
// checksum is still to be completed.
func (f *frame) fixTransport(eth []byte, offset uint32, payload int, isFirst, isLast bool) {
	const cwr, finPsh = 0x80, 0x09
	ip, tcp := eth[f.network:f.transport], eth[f.transport:f.headers]
	binary.BigEndian.PutUint32(tcp[4:], binary.BigEndian.Uint32(tcp[4:])+offset)
	if !isFirst {
		tcp[13] &^= cwr
	}
	if !isLast {
		tcp[13] &^= finPsh
	}
	length := uint32(len(tcp) + payload)
	addresses := ip[12:20]
	if f.v6 {
		addresses = ip[8:40]
	}
	const protocolTCP = 6
	binary.BigEndian.PutUint16(tcp[16:], fold(sum(addresses)+protocolTCP+length>>16+length&0xffff))
}

// sum adds the 16-bit words of b (RFC 1071).
func sum(b []byte) (s uint32) {
	for i := 0; i+1 < len(b); i += 2 {
		s += uint32(b[i])<<8 | uint32(b[i+1])
	}
	return s
}

func fold(s uint32) uint16 {
	for s > 0xffff {
		s = s>>16 + s&0xffff
	}
	return uint16(s)
}

// insertVLAN puts the tag that the kernel took from a received frame back into
// it. b is the frame with its virtio-net header and has room for 4 more bytes.
func insertVLAN(b []byte, protocol, tag uint16) []byte {
	b = b[:len(b)+vlanLen]
	eth := b[vnetLen:]
	copy(eth[16:], eth[12:len(eth)-vlanLen])
	binary.BigEndian.PutUint16(eth[12:], protocol)
	binary.BigEndian.PutUint16(eth[14:], tag)
	for _, at := range []int{2, 6} { // hdr_len and csum_start count from the Ethernet header
		if v := binary.NativeEndian.Uint16(b[at:]); v != 0 {
			binary.NativeEndian.PutUint16(b[at:], v+vlanLen)
		}
	}
	return b
}
