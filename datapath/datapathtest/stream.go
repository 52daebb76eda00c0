package datapathtest

import "github.com/onpath/onpath"

// A generator has so many streams at a time, each of so many packets at the most; one of
// streamShare packets is theirs.
const (
	streams      = 12
	streamLength = 200
	streamShare  = 4
)

// inlinePort is that of a chain whose only element is an ebpf function, which lets all of
// it pass, in the million-packet test.
const inlinePort = 9000

// stream is a flow as two well-behaved hosts have it: nothing else comes to be
// carried by a fast path, which leaves all that is odd to others.
type stream struct {
	tuple onpath.Tuple
	made  int // packets
	last  int // the number of the last packet
	ends  bool
	seq   uint32 // of the SYN's answer
}

func (m *generator) newStream() stream {
	s := stream{tuple: m.tuple(), last: 20 + m.IntN(streamLength-20), ends: m.one(2)}
	s.tuple.Protocol = pickOne[uint8](m, tcp, udp)
	if m.one(4) {
		return s // through containers, mostly
	}
	s.tuple.DstPort = inlinePort
	format := map[bool][2]string{true: {"10.1.0.%d", "10.9.0.%d"}, false: {"2001:db8:1::%x", "2001:db8:9::%x"}}[m.one(2)]
	s.tuple.Src, s.tuple.Dst = m.address(format[0], 40), m.address(format[1], 40)
	return s
}

// stream is the next packet of one of the streams.
func (m *generator) stream() (device string, f Frame) {
	if m.streams == nil {
		m.streams = make([]stream, streams)
	}
	s := &m.streams[m.IntN(streams)]
	if s.made == s.last {
		*s = m.newStream()
	}
	device, t := clientNet, s.tuple
	if s.made == 1 || s.made > 2 && m.one(2) {
		device, t = serverNet, t.Reverse()
	}
	p := newPacket(t)
	p.flags = pickOne[byte](m, ack, ack, ack|psh)
	switch {
	case s.made == 0:
		p.flags = syn
	case s.made == 1:
		p.flags = syn | ack
	case s.made == s.last-1 && s.ends:
		p.flags = pickOne[byte](m, ack|fin, rst)
	}
	p.seq, p.ack = m.Uint32(), m.Uint32()
	switch {
	case s.made == 1:
		s.seq = p.seq
	case s.made > 1 && device == clientNet && !m.one(8):
		p.ack = s.seq + 1
	}
	p.payload = make([]byte, pickOne(m, 0, m.IntN(100), m.IntN(1340), m.IntN(1400)))
	if m.one(40) {
		p.ttl = pickOne[byte](m, 1, 2)
	}
	s.made++
	return device, Frame{Packet: p.bytes()}
}
