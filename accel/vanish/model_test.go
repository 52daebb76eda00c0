package vanish

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"testing"

	"github.com/onpath/onpath/internal/packet"
)

// Verdicts of the program.
const (
	toSocket  = 0xffffffff // TC_ACT_UNSPEC
	discarded = 2          // TC_ACT_SHOT
	sentOn    = 7          // TC_ACT_REDIRECT
)

const ether, ipv4, tcp = 14, 20, 20

const (
	fin, syn, rst, ack = 1, 2, 4, 16
)

var be = binary.BigEndian

func earlier(a, b uint32) bool { return int32(a-b) < 0 }

// model is what the program has to do with a frame, written down once more. Checksums are of no
// concern to it: whole compares them.
type model map[Key]Half

func (m model) on(frame []byte) (verdict uint32, out []byte) {
	out = bytes.Clone(frame)
	ip := out[ether:]
	size := int(ip[0]&15) * 4
	if be.Uint16(ip[6:])&0x3fff != 0 {
		return toSocket, out
	}
	if ip[9] == 1 {
		return m.onError(out, ip, ip[size:])
	}
	if ip[9] != 6 {
		return toSocket, out
	}
	t := ip[size:]
	k := Key{1, [4]byte(ip[12:16]), [4]byte(ip[16:20]), [2]byte(t[0:2]), [2]byte(t[2:4])}
	h, ok := m[k]
	if !ok || h.State == Observe {
		return toSocket, out
	}
	if h.State == Forward {
		return h.send(out)
	}
	flags, seq, acked := t[13], be.Uint32(t[4:]), be.Uint32(t[8:])
	header := int(t[12]>>4) * 4
	payload := int(be.Uint16(ip[2:])) - size - header
	if flags&(syn|ack) == syn && h.Over != 0 {
		delete(m, k)
		return toSocket, out
	}
	if h.State == Drain {
		if earlier(seq, h.OwnSeq) {
			return toSocket, out
		}
		if payload == 0 && flags&(ack|syn|fin) == ack && earlier(acked, h.OwnAck) && flags&rst == 0 {
			be.PutUint32(t[4:], h.OwnSeq)
			return toSocket, out
		}
	}
	if ip[8] <= 1 {
		return discarded, nil
	}
	ip[8]--
	copy(ip[12:], h.Src[:])
	copy(ip[16:], h.Dst[:])
	copy(t, h.Sport[:])
	copy(t[2:], h.Dport[:])
	be.PutUint32(t[4:], seq+h.SeqAdd)
	if flags&ack != 0 {
		be.PutUint32(t[8:], acked+h.AckAdd)
	}
	if flags&syn == 0 {
		w := uint32(be.Uint16(t[14:])) << h.ShiftIn >> h.ShiftOut
		be.PutUint16(t[14:], uint16(min(w, 0xffff)))
	}
	h.options(t[tcp:header])
	return h.send(out)
}

func (h *Half) send(out []byte) (uint32, []byte) {
	if h.Out == Into {
		copy(out, h.MACs[:])
	}
	return sentOn, out
}

func (h *Half) options(o []byte) {
	for len(o) >= 2 && o[0] != 0 {
		if o[0] == 1 {
			o = o[1:]
			continue
		}
		n := int(o[1])
		if n < 2 || n > len(o) {
			return
		}
		switch {
		case o[0] == 8 && n == 10:
			be.PutUint32(o[2:], be.Uint32(o[2:])+h.TSAdd)
			if echo := be.Uint32(o[6:]); echo != 0 {
				if h.Flags&flagClamp != 0 && earlier(echo, h.EchoFloor) {
					echo = h.EchoFloor
				} else {
					h.Flags &^= flagClamp
				}
				be.PutUint32(o[6:], echo+h.EchoAdd)
			}
		case o[0] == 5:
			for at := 2; at+4 <= n && at < 34; at += 4 {
				be.PutUint32(o[at:], be.Uint32(o[at:])+h.AckAdd)
			}
		}
		o = o[n:]
	}
}

func (m model) onError(out, ip, icmp []byte) (uint32, []byte) {
	quote := icmp[8:]
	if k := icmp[0]; k != 3 && k != 4 && k != 11 && k != 12 || len(quote) < ipv4 || quote[9] != 6 {
		return toSocket, out
	}
	t := quote[int(quote[0]&15)*4:]
	h, ok := m[Key{1, [4]byte(quote[16:20]), [4]byte(quote[12:16]), [2]byte(t[2:4]), [2]byte(t[0:2])}]
	if !ok || h.State == Observe {
		return toSocket, out
	}
	if h.State == Forward {
		return h.send(out)
	}
	if ip[8] <= 1 {
		return discarded, nil
	}
	ip[8]--
	copy(ip[16:], h.Dst[:])
	copy(quote[12:], h.Dst[:])
	copy(quote[16:], h.Src[:])
	copy(t, h.Dport[:])
	copy(t[2:], h.Sport[:])
	be.PutUint32(t[4:], be.Uint32(t[4:])+h.AckAdd)
	return h.send(out)
}

// sealed writes all checksums of a frame, and returns it.
func sealed(b []byte) []byte {
	ip := b[ether:]
	size := int(ip[0]&15) * 4
	copy(ip[10:], []byte{0, 0})
	be.PutUint16(ip[10:], ^packet.Sum(0, ip[:size]))
	rest := ip[size:]
	switch ip[9] {
	case 6:
		copy(rest[16:], []byte{0, 0})
		from, to := netip.AddrFrom4([4]byte(ip[12:16])), netip.AddrFrom4([4]byte(ip[16:20]))
		be.PutUint16(rest[16:], ^packet.Sum(packet.PseudoSum(from, to, 6, len(rest)), rest))
	case 1:
		if quote := rest[8:]; len(quote) >= ipv4 && quote[0]>>4 == 4 {
			n := int(quote[0]&15) * 4
			copy(quote[10:], []byte{0, 0})
			be.PutUint16(quote[10:], ^packet.Sum(0, quote[:n]))
		}
		copy(rest[2:], []byte{0, 0})
		be.PutUint16(rest[2:], ^packet.Sum(0, rest))
	}
	return b
}

// maker makes frames and halves that meet.
type maker struct{ *rand.Rand }

func (r maker) word(most int) []byte { b := make([]byte, most); r.fill(b); return b }
func (r maker) fill(b []byte) {
	for i := range b {
		b[i] = byte(r.Uint32())
	}
}

// near is a number beside another one, or any.
func (r maker) near(n uint32) uint32 {
	if r.IntN(4) == 0 {
		return r.Uint32()
	}
	return n + uint32(r.IntN(5)) - 2
}

func (r maker) half() (Key, Half) {
	var h Half
	k := Key{Ifindex: 1}
	for _, b := range [][]byte{k.Src[:], k.Dst[:], k.Sport[:], k.Dport[:], h.Src[:], h.Dst[:], h.Sport[:], h.Dport[:], h.MACs[:]} {
		r.fill(b)
	}
	if r.IntN(2) == 0 {
		h.Src, h.Dst, h.Sport, h.Dport = k.Src, k.Dst, k.Sport, k.Dport
	}
	for _, n := range []*uint32{&h.SeqAdd, &h.AckAdd, &h.TSAdd, &h.EchoAdd, &h.EchoFloor, &h.OwnSeq, &h.OwnAck} {
		*n = r.Uint32()
	}
	h.State, h.Out, h.Flags = State(1+r.IntN(4)), Out(r.IntN(2)), uint8(r.IntN(2))
	h.ShiftIn, h.ShiftOut = uint8(r.IntN(15)), uint8(r.IntN(15))
	h.Over, h.OutIfindex = Over(r.IntN(4)), 1
	return k, h
}

func (r maker) optionsOf(h Half) []byte {
	var o []byte
	for len(o) < 40 && r.IntN(5) > 0 {
		switch r.IntN(6) {
		case 0, 1:
			o = append(o, 1)
		case 2:
			o = be.AppendUint32(be.AppendUint32(append(o, 8, 10), r.Uint32()), r.near(h.EchoFloor))
		case 3:
			n := 1 + r.IntN(4)
			o = append(append(o, 5, byte(2+8*n)), r.word(8*n)...)
		case 4:
			o = append(o, r.word(r.IntN(4))...) // whatever a middle box writes
		case 5:
			o = append(append(o, 253, 6), r.word(4)...)
		}
	}
	o = o[:min(len(o), 40)]
	for len(o)%4 != 0 {
		o = append(o, 0)
	}
	return o
}

// segment is a TCP packet of a half's end.
func (r maker) segment(k Key, h Half) []byte {
	more := make([]byte, 4*r.IntN(3)*r.IntN(2)) // IP options: none, mostly
	b := append(make([]byte, ether+ipv4), more...)
	b[12] = 8
	t := make([]byte, tcp)
	copy(t, k.Sport[:])
	copy(t[2:], k.Dport[:])
	be.PutUint32(t[4:], r.near(h.OwnSeq))
	be.PutUint32(t[8:], r.near(h.OwnAck))
	t = append(t, r.optionsOf(h)...)
	t[12] = byte(len(t) / 4 << 4)
	t[13] = []byte{ack, ack, ack, ack | 8, ack | fin, rst, ack | rst, syn, syn | ack, 0}[r.IntN(10)]
	r.fill(t[14:16])
	if r.IntN(2) == 0 {
		t = append(t, r.word(1+r.IntN(1400))...)
	}
	r.ip(b, k.Src, k.Dst, 6, len(t))
	return sealed(append(b, t...))
}

func (r maker) ip(b []byte, src, dst [4]byte, protocol byte, behind int) {
	ip := b[ether:]
	ip[0], ip[8], ip[9] = 0x40|byte(len(ip)/4), byte(r.IntN(66)), protocol
	for i := ipv4; i < len(ip); i++ {
		ip[i] = 1
	}
	if r.IntN(30) == 0 {
		ip[6] = 0x20
	}
	be.PutUint16(ip[2:], uint16(len(ip)+behind))
	copy(ip[12:], src[:])
	copy(ip[16:], dst[:])
}

// complaint is an ICMP error about a packet that was sent to a half's end.
func (r maker) complaint(k Key, h Half) []byte {
	quote := make([]byte, ether+ipv4)
	r.ip(quote, k.Dst, k.Src, 6, 1000)
	quote = append(quote[ether:], k.Dport[:]...)
	quote = append(quote, k.Sport[:]...)
	quote = append(quote, r.word(4+4*r.IntN(5))...)
	body := append([]byte{[]byte{3, 4, 11, 12, 0, 5}[r.IntN(6)], byte(r.IntN(5)), 0, 0, 0, 0, 5, 0}, quote...)
	b := make([]byte, ether+ipv4)
	b[12] = 8
	r.ip(b, [4]byte(r.word(4)), k.Dst, 1, len(body))
	return sealed(append(b, body...))
}

// TestTranslates: the program does with packets what the model does, and all checksums hold.
func TestTranslates(t *testing.T) {
	tr := open(t)
	n := 3000
	if os.Getenv("ONPATH_SOAK") != "" {
		n = 300_000
	}
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := maker{rand.New(rand.NewPCG(seed, 0))}
	verdicts := map[uint32]int{}
	for i := range n {
		k, h := r.half()
		m := model{k: h}
		if err := tr.Put(k, h); err != nil {
			t.Fatal(err)
		}
		frame := r.segment(k, h)
		if r.IntN(4) == 0 {
			frame = r.complaint(k, h)
		}
		want, wanted := m.on(frame)
		got, out, err := tr.program.Test(frame)
		if err != nil {
			t.Fatal(err)
		}
		verdicts[got]++
		if got != want || got != discarded && !bytes.Equal(out, sealed(bytes.Clone(wanted))) {
			t.Fatalf("packet %d, half %+v:\n%s\nbecomes, verdict %d:\n%s\nand not, %d:\n%s", i, h, hex(frame), int32(got), hex(out), int32(want), hex(sealed(wanted)))
		}
		if _, ok := tr.Get(k); ok != (len(m) > 0) {
			t.Fatalf("packet %d: the half is there: %v", i, ok)
		}
		tr.Delete(k)
	}
	if len(verdicts) != 3 {
		t.Errorf("verdicts %v", verdicts)
	}
}

func hex(b []byte) string {
	if len(b) > 120 {
		b = b[:120]
	}
	return fmt.Sprintf("% x", b)
}
