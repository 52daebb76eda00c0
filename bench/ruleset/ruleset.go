// Package ruleset makes rule sets like those that operators write, of any size
// and repeatable by a seed, and packets to try them with.
//
// Real ones are confidential. Taylor and Turner published what characterises
// twelve of them, in three families (ClassBench: A Packet Classification
// Benchmark, IEEE/ACM Transactions on Networking 15(3), 2007): how long the
// prefixes of the two sides are together, how addresses cluster, which protocols
// occur, and how port ranges fall into five classes (wild card, the upper and the
// lower ports, an arbitrary range, one port). The shares used here are rounded
// from their tables and figures; sets are not theirs, and comparisons with
// figures that others measured with theirs should be made with care.
package ruleset

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"

	"github.com/onpath/onpath"
)

// Family is one of the three kinds of rule set of ClassBench.
type Family string

// The families.
const (
	ACL Family = "acl" // access control lists: destinations, mostly one port
	FW  Family = "fw"  // firewalls: many wild cards, ranges on both sides
	IPC Family = "ipc" // IP chains: between
)

// Families are all of them.
var Families = []Family{ACL, FW, IPC}

// ports are shares of the five classes of ranges, in percent.
type ports struct{ wild, high, low, span, exact int }

// spot is a pair of prefix lengths (IPv4) and its weight.
type spot struct{ src, dst, weight int }

// profile is what a family looks like.
type profile struct {
	protocols map[int]int // number (0: any) → weight
	src, dst  ports
	spots     []spot
	// blocks: how many unrelated networks there are for 1000 rules.
	blocks int
}

var profiles = map[Family]profile{
	ACL: {
		protocols: map[int]int{6: 78, 17: 13, 1: 3, 0: 6},
		src:       ports{wild: 99, exact: 1},
		dst:       ports{wild: 29, high: 2, low: 1, span: 11, exact: 57},
		spots: []spot{{0, 32, 12}, {0, 24, 5}, {16, 32, 6}, {20, 32, 4}, {21, 28, 3}, {22, 30, 4}, {23, 32, 5}, {24, 24, 8},
			{24, 27, 4}, {24, 32, 14}, {26, 32, 4}, {28, 31, 3}, {30, 30, 3}, {32, 16, 2}, {32, 24, 5}, {32, 28, 3}, {32, 32, 14}, {8, 32, 1}},
		blocks: 40,
	},
	FW: {
		protocols: map[int]int{6: 58, 17: 24, 1: 4, 47: 2, 50: 1, 0: 11},
		src:       ports{wild: 70, high: 18, low: 1, span: 1, exact: 10},
		dst:       ports{wild: 33, high: 12, low: 2, span: 8, exact: 45},
		spots: []spot{{0, 0, 1}, {0, 32, 19}, {0, 24, 8}, {0, 28, 4}, {32, 0, 14}, {24, 0, 6}, {16, 0, 3}, {32, 32, 18},
			{24, 32, 7}, {32, 24, 7}, {16, 32, 3}, {32, 16, 3}, {24, 24, 4}, {8, 32, 1}, {30, 32, 2}},
		blocks: 25,
	},
	IPC: {
		protocols: map[int]int{6: 44, 17: 24, 1: 4, 50: 1, 0: 27},
		src:       ports{wild: 75, high: 5, low: 1, span: 2, exact: 17},
		dst:       ports{wild: 58, high: 5, low: 1, span: 4, exact: 32},
		spots: []spot{{0, 32, 6}, {32, 0, 5}, {32, 32, 30}, {24, 32, 8}, {32, 24, 8}, {24, 24, 7}, {16, 24, 2}, {24, 16, 2},
			{28, 32, 5}, {32, 28, 5}, {20, 32, 3}, {32, 20, 3}, {30, 30, 3}, {26, 26, 2}, {0, 24, 3}, {22, 24, 2}, {8, 16, 1}},
		blocks: 60,
	},
}

// Make gives n distinct matches, in order of precedence. Those with longer
// prefixes stand before shorter ones more often than not, as in the originals,
// where whatever is shadowed was taken out. six makes them of IPv6 addresses,
// with lengths twice as long (and hosts of 128 bits).
func Make(f Family, n int, seed uint64, six bool) ([]onpath.Match, error) {
	p, ok := profiles[f]
	if !ok {
		return nil, fmt.Errorf("there is no family of rule sets called %q; there are %v", f, Families)
	}
	g := &generator{r: rand.New(rand.NewPCG(seed, 0x636c6173736265)), p: p, six: six, used: make(map[string]bool, n)}
	for range max(4, n*p.blocks/1000) {
		g.networks = append(g.networks, g.r.Uint64())
	}
	type placed struct {
		m  onpath.Match
		at float64
	}
	out := make([]placed, 0, n)
	for tries := 0; len(out) < n; tries++ {
		if tries > 50*n+1000 {
			return nil, fmt.Errorf("no %d distinct rules of family %s can be made", n, f)
		}
		m, bits := g.match()
		if k := fmt.Sprint(m); !g.used[k] {
			g.used[k] = true
			out = append(out, placed{m, float64(bits) + 24*g.r.NormFloat64()})
		}
	}
	slices.SortStableFunc(out, func(a, b placed) int { return cmp.Compare(b.at, a.at) })
	list := make([]onpath.Match, n)
	for i := range out {
		list[i] = out[i].m
	}
	return list, nil
}

type generator struct {
	r        *rand.Rand
	p        profile
	six      bool
	networks []uint64 // upper bits of addresses, of which few are common
	used     map[string]bool
}

// match makes one; bits is the sum of the prefix lengths.
func (g *generator) match() (m onpath.Match, bits int) {
	m.Family = 4
	if g.six {
		m.Family = 6
	}
	total := 0
	for _, s := range g.p.spots {
		total += s.weight
	}
	pick := g.r.IntN(total)
	var s spot
	for _, s = range g.p.spots {
		if pick -= s.weight; pick < 0 {
			break
		}
	}
	m.Src, m.Dst = g.prefix(s.src), g.prefix(s.dst)
	proto := g.protocol()
	if proto != 0 {
		m.Protocol = []uint8{uint8(proto)}
	}
	if proto == 6 || proto == 17 {
		m.SrcPorts, m.DstPorts = g.ports(g.p.src), g.ports(g.p.dst)
	}
	return m, s.src + s.dst
}

func (g *generator) protocol() int {
	pick := g.r.IntN(100)
	for _, n := range []int{6, 17, 1, 47, 50, 0} {
		if pick -= g.p.protocols[n]; pick < 0 {
			return n
		}
	}
	return 0
}

// prefix makes one of a length; addresses cluster: few networks are frequent, and
// within one, few subnets.
func (g *generator) prefix(bits int) []netip.Prefix {
	if bits == 0 {
		return nil
	}
	net := g.networks[g.skewed(len(g.networks))]
	host := uint32(net>>32)&0xffff0000 | uint32(g.skewed(256))<<8 | uint32(g.r.IntN(256))
	if !g.six {
		first := byte(net>>56)%222 + 1
		if first >= 127 {
			first++ // 127.0.0.0/8 never leaves its machine
		}
		a := netip.AddrFrom4([4]byte{first, byte(host >> 16), byte(host >> 8), byte(host)})
		return []netip.Prefix{netip.PrefixFrom(a, bits).Masked()}
	}
	wide := bits * 2
	if bits == 32 {
		wide = 128
	}
	a := [16]byte{0x20, 0x01, byte(net >> 56), byte(net >> 48), byte(host >> 8), byte(net), byte(host), byte(g.skewed(16))}
	a[15], a[14] = byte(g.r.IntN(256)), byte(g.skewed(256))
	return []netip.Prefix{netip.PrefixFrom(netip.AddrFrom16(a), wide).Masked()}
}

// skewed is a number below n, small ones more often.
func (g *generator) skewed(n int) int {
	u := g.r.Float64()
	return int(u * u * float64(n))
}

// wellKnown are the ports that stand in rules most.
var wellKnown = []uint16{80, 443, 53, 25, 22, 110, 143, 21, 23, 123, 161, 389, 445, 993, 995, 1433, 1521, 3128, 3306, 3389, 5060, 8080, 8443}

func (g *generator) ports(c ports) []onpath.PortRange {
	pick := g.r.IntN(100)
	for _, class := range []struct {
		share int
		make  func() []onpath.PortRange
	}{
		{c.wild, func() []onpath.PortRange { return nil }},
		{c.high, func() []onpath.PortRange { return []onpath.PortRange{{First: 1024, Last: 65535}} }},
		{c.low, func() []onpath.PortRange { return []onpath.PortRange{{First: 0, Last: 1023}} }},
		{c.span, g.span},
	} {
		if pick -= class.share; pick < 0 {
			return class.make()
		}
	}
	one := wellKnown[g.skewed(len(wellKnown))]
	if g.r.IntN(4) == 0 {
		one = uint16(g.r.IntN(65536))
	}
	return []onpath.PortRange{{First: one, Last: one}}
}

func (g *generator) span() []onpath.PortRange {
	first := uint16(g.r.IntN(60000))
	return []onpath.PortRange{{First: first, Last: first + 1 + uint16(g.skewed(4000))}}
}
