package functest

import (
	"context"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"time"

	"github.com/onpath/onpath/engine"
	"github.com/onpath/onpath/internal/packet"
)

// made is a packet to be made.
type made struct {
	src, dst     netip.Addr
	protocol     uint8
	sport, dport uint16
	flags        uint8
	ttl, dscp    uint8
	payload      []byte
}

func (m made) bytes() []byte {
	head := map[uint8]int{packet.TCP: 20, packet.UDP: 8, packet.UDPLite: 8, packet.ICMP: 8, packet.ICMPv6: 8, packet.SCTP: 12}[m.protocol]
	b := packet.Blank(m.src.Is6(), m.protocol, head+len(m.payload), m.src, m.dst)
	t := b[len(b)-head-len(m.payload):]
	copy(t[head:], m.payload)
	be := binary.BigEndian
	sum := packet.PseudoSum(m.src, m.dst, m.protocol, len(t))
	at := 0
	switch m.protocol {
	case packet.TCP:
		t[12], t[13], at = 5<<4, m.flags, 16
	case packet.UDP:
		be.PutUint16(t[4:], uint16(len(t)))
		at = 6
	case packet.ICMP, packet.ICMPv6:
		be.PutUint16(t[4:], m.sport)
		if t[0], at = 8, 2; m.protocol == packet.ICMPv6 {
			t[0] = 128
		} else {
			sum = 0
		}
	}
	if head > 0 && m.protocol != packet.ICMP && m.protocol != packet.ICMPv6 {
		be.PutUint16(t, m.sport)
		be.PutUint16(t[2:], m.dport)
	}
	if at > 0 {
		be.PutUint16(t[at:], ^packet.Sum(sum, t))
	}
	packet.SetDSCP(b, m.dscp)
	if m.src.Is6() {
		b[7] = m.ttl
		return b
	}
	old := [2]byte{b[8], b[9]}
	b[8] = m.ttl
	packet.Patch(b[10:12], old[:], b[8:10])
	return b
}

// generator makes random packets of few flows, so that functions meet the same ones again,
// and that tables of usual sizes do not fill.
type generator struct {
	*rand.Rand
	like []engine.TrialPacket // packets of the function's cases
	now  uint64
}

// Packets of one run: addresses, ports and hop limits that there are.
const (
	hosts = 8
	ports = 8
	hops  = 4
)

func (g *generator) address(six bool) netip.Addr {
	n := byte(1 + g.IntN(hosts))
	if six {
		return netip.AddrFrom16([16]byte{0x20, 1, 0x0d, 0xb8, 15: n})
	}
	return netip.AddrFrom4([4]byte{10, 0, 0, n})
}

var commonPorts = [ports]uint16{53, 80, 443, 5060, 1024, 7000, 33434, 65535}

var protocols = []uint8{packet.UDP, packet.UDP, packet.TCP, packet.TCP, packet.ICMP, packet.SCTP, packet.UDPLite, 47}

// next makes a packet: a fresh one, or one of the cases, changed.
func (g *generator) next() engine.TrialPacket {
	g.now += uint64(g.IntN(2_000_000))
	p := engine.TrialPacket{Now: g.now, Reverse: g.IntN(2) == 1}
	if len(g.like) > 0 && g.IntN(4) == 0 {
		like := g.like[g.IntN(len(g.like))]
		p.Reverse, p.IP = like.Reverse, append([]byte(nil), like.IP...)
		if g.IntN(2) == 0 {
			p.IP[g.IntN(len(p.IP))] ^= 1 << g.IntN(8)
		}
		return p
	}
	six := g.IntN(2) == 1
	m := made{
		src: g.address(six), dst: g.address(six), protocol: protocols[g.IntN(len(protocols))],
		sport: commonPorts[g.IntN(ports)], dport: commonPorts[g.IntN(ports)],
		flags: uint8(g.IntN(32)), ttl: uint8(1 << (2 * g.IntN(hops))), dscp: uint8(g.IntN(64)), payload: g.payload(),
	}
	if six && m.protocol == packet.ICMP {
		m.protocol = packet.ICMPv6
	}
	p.IP = m.bytes()
	g.spoil(p.IP)
	return p
}

func (g *generator) payload() []byte {
	most := 64
	if g.IntN(8) == 0 {
		most = 1400
	}
	b := make([]byte, g.IntN(most))
	for i := range b {
		b[i] = byte(g.IntN(256))
	}
	return b
}

// spoil makes some packets fragments, and changes a bit of others.
func (g *generator) spoil(b []byte) {
	switch g.IntN(12) {
	case 0:
		if b[0]>>4 == 4 {
			binary.BigEndian.PutUint16(b[6:], uint16(g.IntN(4))|uint16(g.IntN(2))<<13)
		}
	case 1:
		b[g.IntN(len(b))] ^= 1 << g.IntN(8)
	}
}

// Random gives the function n random packets, and says how many were IP packets. It ends at
// the first on which the targets do not agree.
func (f *Function) Random(ctx context.Context, n int, seed uint64, cases []Case) (given int, err error) {
	g := &generator{Rand: rand.New(rand.NewPCG(seed, 0)), now: start + uint64(time.Hour)}
	for i := range cases {
		if p, err := cases[i].Packet.trial(); err == nil && len(p.IP) > 0 {
			g.like = append(g.like, p)
		}
	}
	for i := range n {
		p := g.next()
		if p.Describe(0) == nil {
			continue
		}
		given++
		if _, err := f.Give(ctx, p); err != nil {
			return given, fmt.Errorf("packet %d of seed %d, direction reverse: %t,\n    %x\n  %w", i+1, seed, p.Reverse, p.IP, err)
		}
	}
	_, err = f.Counters(ctx)
	return given, err
}
