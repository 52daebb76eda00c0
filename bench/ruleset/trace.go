package ruleset

import (
	"math/rand/v2"
	"net/netip"

	"github.com/onpath/onpath"
)

// Trace gives tuples that lie in the rules: each one is drawn from a rule chosen
// evenly, so that rare and late ones are met as often as others. Where ports are
// free, the source's are those of clients.
func Trace(rules []onpath.Match, n int, seed uint64) []onpath.Tuple {
	r := rand.New(rand.NewPCG(seed, 0x7472616365))
	out := make([]onpath.Tuple, n)
	for i := range out {
		out[i] = Inside(&rules[r.IntN(len(rules))], r)
	}
	return out
}

// Inside is a tuple that a match selects.
func Inside(m *onpath.Match, r *rand.Rand) onpath.Tuple {
	six := m.Family == 6
	t := onpath.Tuple{Protocol: 6, Src: address(m.Src, six, r), Dst: address(m.Dst, six, r)}
	if len(m.Protocol) > 0 {
		t.Protocol = m.Protocol[r.IntN(len(m.Protocol))]
	}
	if t.Protocol == 6 || t.Protocol == 17 || t.Protocol == 132 || t.Protocol == 136 {
		t.SrcPort = port(m.SrcPorts, 1024, r)
		t.DstPort = port(m.DstPorts, 0, r)
	}
	return t
}

func address(list []netip.Prefix, six bool, r *rand.Rand) netip.Addr {
	p := netip.PrefixFrom(netip.AddrFrom4([4]byte{}), 0)
	if six {
		p = netip.PrefixFrom(netip.AddrFrom16([16]byte{0x20, 0x01}), 16)
	}
	if len(list) > 0 {
		p = list[r.IntN(len(list))]
	} else if !six {
		return netip.AddrFrom4([4]byte{byte(1 + r.IntN(126)), byte(r.Uint32()), byte(r.Uint32()), byte(r.Uint32())})
	}
	b := p.Addr().AsSlice()
	for i := p.Bits(); i < 8*len(b); i++ {
		if r.IntN(2) == 1 {
			b[i/8] |= 0x80 >> (i % 8)
		}
	}
	a, _ := netip.AddrFromSlice(b)
	return a
}

func port(list []onpath.PortRange, from int, r *rand.Rand) uint16 {
	if len(list) == 0 {
		return uint16(from + r.IntN(65536-from))
	}
	p := list[r.IntN(len(list))]
	return p.First + uint16(r.IntN(int(p.Last-p.First)+1))
}
