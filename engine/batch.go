package engine

import (
	"encoding/binary"
	"net/netip"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/engine/afxdp"
	"github.com/onpath/onpath/engine/control"
	"github.com/onpath/onpath/internal/packet"
)

const ethernet = 14 // bytes before the IP header

// received is a packet on its way through the modules.
type received struct {
	frame   afxdp.Frame
	ip      []byte // of its length
	h       packet.Header
	path    onpath.PathID
	reverse bool
	gone    bool
}

// Verdicts of modules (enum onpath_verdict).
const (
	verdictNext = iota
	verdictDrop
	verdictAnswer
)

// Bits of onpath_packet.is and .edit.
const (
	isSYN, isFIN, isRST, isACK             = 1, 2, 4, 8
	isError, isFragment, isPortless        = 16, 32, 64
	setSrc, setDst, setDSCP, setData       = 1, 2, 4, 8
	onpathForward                    uint8 = 0
	onpathReverse                    uint8 = 1
)

// chainMAC is the third byte of the source address of frames to an instance whose
// modules are told chain and direction: the group stands in the last three.
const chainMAC = onpath.ChainMACByte

// read takes a frame apart; it reports false if there is no packet to show.
func (r *received) read(s *afxdp.Socket, f afxdp.Frame) bool {
	b := s.Bytes(f)
	*r = received{frame: f}
	if len(b) < ethernet+20 {
		return false
	}
	r.h = packet.Parse(b[ethernet:])
	if r.h.Verdict == packet.Malformed {
		return false
	}
	r.ip = b[ethernet : ethernet+r.h.Length]
	if b[6] == 0x02 && b[7] == 0x6f && b[8] == chainMAC {
		g := onpath.GroupID(uint32(b[9])<<16 | uint32(b[10])<<8 | uint32(b[11]))
		r.path, _, r.reverse = g.Split()
	}
	return true
}

// visit has a module see the packets of a batch that it selects.
func (e *Engine) visit(m *module, batch []received) {
	var chosen [maxBatch]*received
	n := 0
	for i := range batch {
		if r := &batch[i]; !r.gone && m.pick.takes(&r.h, r.reverse) {
			chosen[n] = r
			n++
		}
	}
	if n == 0 {
		return
	}
	if m.out() {
		e.without(m, chosen[:n])
		return
	}
	for first := 0; first < n; first += int(m.d.batch) {
		e.show(m, chosen[first:min(n, first+int(m.d.batch))])
	}
}

// without does to packets what none says.
func (e *Engine) without(m *module, chosen []*received) {
	for _, r := range chosen {
		if m.bypass {
			m.numbers.Bypassed++
			continue
		}
		m.numbers.Refused++
		r.gone = true
	}
}

// show gives a module packets, and does what it says.
func (e *Engine) show(m *module, chosen []*received) {
	mem, ok := m.inst.Memory().Read(m.d.packets, uint32(len(chosen))*packetStride)
	verdicts, ok2 := m.inst.Memory().Read(m.d.verdicts, uint32(len(chosen)))
	if !ok || !ok2 {
		return // describe saw that they are there
	}
	for i, r := range chosen {
		r.fill(mem[i*packetStride:][:packetStride], m.d.needs, e.vport, e.now)
		verdicts[i] = undecided
	}
	m.numbers.Packets += uint64(len(chosen))
	m.stack[0] = uint64(len(chosen))
	if err := m.timed(len(chosen), m.packets); err != nil {
		// Who trapped may have written anything, verdicts too.
		e.takeOut(m, err)
		e.without(m, chosen)
		return
	}
	// Its memory may have moved.
	mem, _ = m.inst.Memory().Read(m.d.packets, uint32(len(chosen))*packetStride)
	verdicts, _ = m.inst.Memory().Read(m.d.verdicts, uint32(len(chosen)))
	for i, r := range chosen {
		e.obey(m, verdicts[i], mem[i*packetStride:], r)
	}
}

// undecided is a verdict that the module has not written.
const undecided = 0xff

// fill writes struct onpath_packet with at most shown bytes of the packet.
func (r *received) fill(b []byte, shown uint32, vport onpath.VportID, now uint64) {
	h := &r.h
	le := binary.LittleEndian
	if h.IsError && h.Quotes {
		putTuple(b, h.Quoted.Reverse())
	} else {
		putAddresses(b, r.ip, h.V6)
		binary.BigEndian.PutUint16(b[atSport:], h.Tuple.SrcPort)
		binary.BigEndian.PutUint16(b[atDport:], h.Tuple.DstPort)
		b[atProtocol] = h.Protocol
	}
	b[atFamily], b[atDirection], b[atTTL] = 4, onpathForward, h.TTL
	if h.V6 {
		b[atFamily] = 6
	}
	if r.reverse {
		b[atDirection] = onpathReverse
	}
	le.PutUint16(b[atIs:], signs(h))
	b[atDSCP] = packet.DSCP(r.ip)
	b[atICMPType], b[atICMPCode] = h.ICMP(r.ip)
	le.PutUint32(b[atLength:], uint32(h.Length))
	le.PutUint32(b[atSegments:], 1)
	le.PutUint32(b[atWire:], uint32(h.Length))
	le.PutUint32(b[atPath:], uint32(r.path))
	le.PutUint32(b[atInstance:], uint32(vport))
	le.PutUint64(b[atNow:], now)
	n := copy(b[atData:], r.ip[:min(len(r.ip), int(shown))])
	le.PutUint32(b[atShown:], uint32(n))
	le.PutUint16(b[atTransport:], uint16(h.L4))
	le.PutUint16(b[atPayload:], uint16(Payload(r.ip, h)))
	le.PutUint32(b[atEdit:], 0)
	b[atReason] = 0
}

func putTuple(b []byte, t onpath.Tuple) {
	src, dst := t.Src.As16(), t.Dst.As16()
	copy(b[atSrc:], src[:])
	copy(b[atDst:], dst[:])
	binary.BigEndian.PutUint16(b[atSport:], t.SrcPort)
	binary.BigEndian.PutUint16(b[atDport:], t.DstPort)
	b[atProtocol] = t.Protocol
}

func putAddresses(b, ip []byte, v6 bool) {
	if v6 {
		copy(b[atSrc:atSrc+32], ip[8:40])
		return
	}
	for _, at := range [2]int{atSrc, atDst} {
		binary.LittleEndian.PutUint64(b[at:], 0)
		binary.LittleEndian.PutUint32(b[at+8:], 0xffff0000)
	}
	copy(b[atSrc+12:atSrc+16], ip[12:16])
	copy(b[atDst+12:atDst+16], ip[16:20])
}

func signs(h *packet.Header) (is uint16) {
	if h.Begins() {
		is |= isSYN
	}
	if h.Flags&packet.FIN != 0 {
		is |= isFIN
	}
	if h.Flags&packet.RST != 0 {
		is |= isRST
	}
	if h.Flags&packet.ACK != 0 {
		is |= isACK
	}
	if h.IsError {
		is |= isError
	}
	if !h.Whole() {
		is |= isFragment
	}
	if h.Verdict == packet.Unreadable || h.IsError && !h.Quotes || !packet.HasPorts(h.Protocol) {
		is |= isPortless
	}
	return is
}

// Payload is where the transport's header ends in an IP packet.
func Payload(ip []byte, h *packet.Header) int {
	n := h.L4
	switch {
	case h.Verdict != packet.Fine || !h.Whole():
	case h.Protocol == packet.TCP:
		n += int(ip[h.L4+12]>>4) * 4
	case h.Protocol == packet.SCTP:
		n += 12
	case packet.HasPorts(h.Protocol):
		n += 8
	}
	return min(n, h.Length)
}

// obey does to a packet what the module says of it.
func (e *Engine) obey(m *module, verdict byte, b []byte, r *received) {
	switch verdict {
	case verdictNext:
		m.numbers.Passed++
		if edit := binary.LittleEndian.Uint32(b[atEdit:]); edit != 0 && e.rights != onpath.PacketsKeep {
			m.numbers.Rewritten++
			r.edit(b, func() []byte { return e.socket.Buffer(r.frame) })
		}
	case verdictAnswer:
		m.numbers.Answered++
		m.reason(b[atReason])
		e.refuse(r)
		r.gone = true
	default: // and what is no verdict
		m.numbers.Dropped++
		m.reason(b[atReason])
		r.gone = true
	}
}

func (m *module) reason(n byte) {
	if n < control.MaxReasons {
		m.numbers.Reasons[n]++
	}
}

// edit changes a packet as the module asked. An address of the other family is passed over.
// What is written anew goes to room, behind a frame's head.
func (r *received) edit(b []byte, room func() []byte) {
	edit := binary.LittleEndian.Uint32(b[atEdit:])
	if edit&setData != 0 {
		r.replace(b, room())
	}
	if edit&setSrc != 0 {
		set(b, atNewSrc, atNewSport, r, true)
	}
	if edit&setDst != 0 {
		set(b, atNewDst, atNewDport, r, false)
	}
	if edit&setDSCP != 0 {
		packet.SetDSCP(r.ip, b[atNewDSCP])
	}
}

func set(b []byte, at, port int, r *received, source bool) {
	a := netip.AddrFrom16([16]byte(b[at : at+16])).Unmap()
	if a.Is4() == r.h.V6 {
		return
	}
	packet.SetAddress(r.ip, &r.h, source, a)
	if r.h.Verdict == packet.Fine && packet.HasPorts(r.h.Protocol) {
		packet.SetPort(r.ip, &r.h, source, binary.BigEndian.Uint16(b[port:]))
	}
}

// replace takes the packet as the module has it now, if that is one; else it is dropped.
func (r *received) replace(b, room []byte) {
	n := binary.LittleEndian.Uint32(b[atLength:])
	if n > maxData || n < 20 || int(n) > len(room)-ethernet || int(n) > len(b)-atData {
		r.gone = true
		return
	}
	h := packet.Parse(b[atData : atData+n])
	if h.Verdict == packet.Malformed || h.Length != int(n) {
		r.gone = true
		return
	}
	copy(room[ethernet:], b[atData:atData+n])
	r.frame.Length = ethernet + n
	r.h, r.ip = h, room[ethernet:ethernet+n]
}
