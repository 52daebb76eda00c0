package engine

import (
	"slices"
	"time"

	"github.com/onpath/onpath/internal/packet"
)

// allowed counts what a module sends against what emit allows.
func (e *Engine) allowed(m *module, bytes int) bool {
	now := time.Now()
	if !e.packets.take(1, now) {
		m.numbers.SendOver++
		return false
	}
	if !e.bits.take(float64(bytes)*8, now) {
		m.numbers.SendOver++
		return false
	}
	return true
}

// emit sends an IP packet of a module's out of the instance.
func (e *Engine) emit(m *module, b []byte) int32 {
	if h := packet.Parse(b); h.Verdict == packet.Malformed || h.Length != len(b) {
		return tooLarge
	}
	if e.trial != nil {
		e.trial.sent = append(e.trial.sent, slices.Clone(b))
		return 0
	}
	if e.socket == nil || !e.allowed(m, len(b)) {
		return refused
	}
	if !e.send(b) {
		return refused
	}
	m.numbers.Sent++
	return 0
}

func (e *Engine) send(b []byte) bool {
	f, ok := e.socket.New()
	if !ok {
		return false
	}
	room := e.socket.Buffer(f)
	copy(room[0:6], e.device.NextHop)
	copy(room[6:12], e.device.MAC)
	room[12], room[13] = 0x08, 0x00
	if b[0]>>4 == 6 {
		room[12], room[13] = 0x86, 0xdd
	}
	f.Length = uint32(ethernet + copy(room[ethernet:], b))
	return e.socket.Send(f)
}

// refuse tells a packet's sender that it goes no further: TCP gets a RST, all else an
// ICMP error "administratively prohibited" (RFC 1812 §5.2.7.1, RFC 4443 §3.1).
func (e *Engine) refuse(r *received) {
	if e.packets.take(1, time.Now()) {
		if b := packet.Refusal(r.ip, &r.h); b != nil {
			e.send(b)
		}
	}
}
