package classifier

import (
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"testing"
	"time"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/bench/ruleset"
)

var seed = flag.Uint64("seed", uint64(time.Now().UnixNano()), "of the random rule sets")

// first is what a forest must find: the first rule that matches, in order.
func first(rules []Rule, p *Packet, v View) *Rule {
	for i := range rules {
		r := &rules[i]
		strict := v == ViewStrict || v == Views6+2 || v == ViewStrict6
		if strict && !isStrict(r) {
			continue
		}
		ports := v == ViewAll || v == Views6
		if r.Matches(p, ports, v < ViewNoProto6) {
			return r
		}
	}
	return nil
}

func isStrict(r *Rule) bool { return r.PathSlot%2 == 1 }

func views(six bool) []View {
	if six {
		return []View{Views6, Views6 + 1, Views6 + 2, ViewNoProto6, ViewStrict6}
	}
	return []View{ViewAll, ViewNoPorts, ViewStrict}
}

// check compares a forest with the naive search.
func check(t *testing.T, what string, rules []Rule, packets []Packet) {
	t.Helper()
	f, err := Compile(rules, isStrict, Rule{Action: 3})
	var refused *TooComplex
	if errors.As(err, &refused) && len(rules) > Always {
		t.Logf("%s: %v", what, err)
		return
	}
	if err != nil {
		t.Fatalf("%s: %v", what, err)
	}
	for i := range packets {
		p := &packets[i]
		for _, v := range views(p.Six) {
			got, steps := f.Lookup(p, v)
			want := first(rules, p, v)
			if (got == nil) != (want == nil) || got != nil && got.Order != want.Order {
				t.Fatalf("%s: view %d of %+v finds %+v, must find %+v", what, v, *p, got, want)
			}
			if most := 1 + MaxTuples*(2+MaxDepth+MaxLeaf); steps > most {
				t.Fatalf("%s: %d steps, at most %d are allowed", what, steps, most)
			}
		}
	}
}

func wordsOf(a netip.Addr) [2]uint64 {
	var b [16]byte
	copy(b[:], a.AsSlice())
	return [2]uint64{binary.BigEndian.Uint64(b[:8]), binary.BigEndian.Uint64(b[8:])}
}

// plain makes rules of generated matches, which have one of each.
func plain(list []onpath.Match) []Rule {
	out := make([]Rule, len(list))
	for i, m := range list {
		r := Rule{Order: uint32(i), PathSlot: uint16(i % 64), Family: m.Family, SPortLast: 65535, DPortLast: 65535}
		if len(m.Src) > 0 {
			r.Src, r.SrcLen = wordsOf(m.Src[0].Addr()), uint8(m.Src[0].Bits())
		}
		if len(m.Dst) > 0 {
			r.Dst, r.DstLen = wordsOf(m.Dst[0].Addr()), uint8(m.Dst[0].Bits())
		}
		if len(m.Protocol) > 0 {
			r.Proto = m.Protocol[0]
		}
		if len(m.SrcPorts) > 0 {
			r.Flags |= SrcPorts
			r.SPortFirst, r.SPortLast = m.SrcPorts[0].First, m.SrcPorts[0].Last
		}
		if len(m.DstPorts) > 0 {
			r.Flags |= DstPorts
			r.DPortFirst, r.DPortLast = m.DstPorts[0].First, m.DstPorts[0].Last
		}
		out[i] = r
	}
	return out
}

func packetOf(t onpath.Tuple) Packet {
	return Packet{Src: wordsOf(t.Src), Dst: wordsOf(t.Dst), SPort: t.SrcPort, DPort: t.DstPort, Proto: t.Protocol, Six: t.Src.Is6()}
}

func packetsOf(list []onpath.Match, n int, seed uint64) []Packet {
	var out []Packet
	for _, t := range ruleset.Trace(list, n, seed) {
		out = append(out, packetOf(t))
	}
	return out
}

// TestFamilies compares on rule sets like those of operators.
func TestFamilies(t *testing.T) {
	t.Logf("-seed=%d", *seed)
	for _, f := range ruleset.Families {
		for _, six := range []bool{false, true} {
			for _, n := range []int{1, 10, 100, 3000} {
				list, err := ruleset.Make(f, n, *seed, six)
				if err != nil {
					t.Fatal(err)
				}
				check(t, fmt.Sprintf("%s-%d (IPv6: %v)", f, n, six), plain(list), packetsOf(list, 500, *seed))
			}
		}
	}
}

// TestRandom compares on small worlds, in which everything overlaps.
func TestRandom(t *testing.T) {
	t.Logf("-seed=%d", *seed)
	r := rand.New(rand.NewPCG(*seed, 1))
	for i := range 300 {
		rules := world(r, 1+r.IntN(600))
		var packets []Packet
		for range 200 {
			packets = append(packets, inWorld(r))
		}
		check(t, fmt.Sprintf("world %d", i), rules, packets)
	}
}

// nearby is an address of few, some of them in the same networks.
func nearby(r *rand.Rand, six bool) [2]uint64 {
	low := uint64(r.IntN(4))<<30 | uint64(r.IntN(4))<<8 | uint64(r.IntN(4))
	if six {
		return [2]uint64{0x2001<<48 | low, uint64(r.IntN(3))<<33 | uint64(r.IntN(3))}
	}
	return [2]uint64{(0x0a000000 | low) << 32}
}

func world(r *rand.Rand, n int) []Rule {
	out := make([]Rule, n)
	for i := range out {
		u := Rule{Order: uint32(i), PathSlot: uint16(r.IntN(9)), SPortLast: 65535, DPortLast: 65535}
		switch six := r.IntN(2) == 1; {
		case r.IntN(8) == 0: // both versions
		default:
			u.Family = 4
			most := 32
			if six {
				u.Family, most = 6, 128
			}
			u.Src, u.SrcLen = prefix(r, six, most)
			u.Dst, u.DstLen = prefix(r, six, most)
		}
		u.Proto = []uint8{0, 0, 1, 6, 6, 17, 58, 132, 47}[r.IntN(9)]
		if r.IntN(2) == 0 {
			u.Flags |= SrcPorts
			u.SPortFirst, u.SPortLast = ports(r)
		}
		if r.IntN(2) == 0 {
			u.Flags |= DstPorts
			u.DPortFirst, u.DPortLast = ports(r)
		}
		out[i] = u
	}
	return out
}

func prefix(r *rand.Rand, six bool, most int) ([2]uint64, uint8) {
	bits := []int{0, most, r.IntN(most + 1), most / 2, most - 8}[r.IntN(5)]
	a := nearby(r, six)
	m := masksOf(bits, 0)
	a[0] &= uint64(m[0])<<32 | uint64(m[1])
	a[1] &= uint64(m[2])<<32 | uint64(m[3])
	return a, uint8(bits)
}

func ports(r *rand.Rand) (first, last uint16) {
	switch r.IntN(4) {
	case 0:
		first = uint16(r.IntN(5))
		return first, first
	case 1:
		return 0, 65535
	}
	first = uint16(r.IntN(30))
	return first, first + uint16(r.IntN(30))
}

func inWorld(r *rand.Rand) Packet {
	six := r.IntN(2) == 1
	return Packet{Src: nearby(r, six), Dst: nearby(r, six), SPort: uint16(r.IntN(60)), DPort: uint16(r.IntN(60)),
		Proto: []uint8{1, 6, 6, 17, 58, 132, 47, 50}[r.IntN(8)], Six: six}
}

// TestHostile compiles what is made to blow up memory or steps: it is bounded, or
// refused.
func TestHostile(t *testing.T) {
	const n = 20000
	r := rand.New(rand.NewPCG(1, 2))
	tcp := func(i int) Rule {
		return Rule{Order: uint32(i), Family: 4, Proto: 6, Flags: SrcPorts | DstPorts, SPortLast: 65535, DPortLast: 65535}
	}
	sets := map[string]func(i int) Rule{
		"crossing stripes of ports": func(i int) Rule {
			u := tcp(i)
			if i%2 == 0 {
				u.SPortFirst, u.SPortLast = uint16(3*i), uint16(3*i)+2
			} else {
				u.DPortFirst, u.DPortLast = uint16(3*i), uint16(3*i)+2
			}
			return u
		},
		"random rectangles of ports": func(i int) Rule {
			u := tcp(i)
			a, b, c, d := uint16(r.Uint32()), uint16(r.Uint32()), uint16(r.Uint32()), uint16(r.Uint32())
			u.SPortFirst, u.SPortLast, u.DPortFirst, u.DPortLast = min(a, b), max(a, b), min(c, d), max(c, d)
			return u
		},
		"stairs of ports": func(i int) Rule {
			u := tcp(i)
			u.SPortLast, u.DPortLast = uint16(i), uint16(n-i)
			return u
		},
		"nested ranges, the inner first": func(i int) Rule {
			u := tcp(i)
			u.SPortFirst, u.SPortLast = uint16(32768-i), uint16(32768+i)
			u.DPortFirst, u.DPortLast = uint16(32768-i), uint16(32768+i)
			return u
		},
		"every pair of prefix lengths": func(i int) Rule {
			u := tcp(i)
			u.Flags = DstPorts
			u.DPortFirst, u.DPortLast = uint16(i), uint16(i)+uint16(r.IntN(9000))
			a, b := 32-i%33, 32-i/33%33
			u.SrcLen, u.DstLen = uint8(a), uint8(b)
			m := masksOf(a, b)
			u.Src[0], u.Dst[0] = uint64(m[0]&0x0a0a0a0a)<<32, uint64(m[4]&0x0a0a0a0a)<<32
			return u
		},
		"crossing stripes of all fields": func(i int) Rule {
			u := tcp(i)
			u.SPortFirst, u.DPortFirst = 0, 0
			if i&1 != 0 {
				u.Src[0], u.SrcLen = uint64(r.Uint32())<<32, 32
			}
			if i&2 != 0 {
				u.Dst[0], u.DstLen = uint64(r.Uint32())<<32, 32
			}
			if i&4 != 0 {
				u.SPortFirst = uint16(r.IntN(65000))
				u.SPortLast = u.SPortFirst + 9
			}
			if i&8 != 0 {
				u.DPortFirst = uint16(r.IntN(65000))
				u.DPortLast = u.DPortFirst + 9
			}
			return u
		},
	}
	for name, make := range sets {
		var rules []Rule
		for i := range n {
			rules = append(rules, make(i))
		}
		var few []Packet
		for range 100 {
			few = append(few, packetOf(inside(&rules[r.IntN(Always)], r)))
		}
		check(t, name+", few", rules[:Always], few)
		began := time.Now()
		f, err := Compile(rules, isStrict, Rule{})
		took := time.Since(began)
		var refused *TooComplex
		if errors.As(err, &refused) {
			t.Logf("%s: refused in %v, with %d rules left", name, took, len(refused.Rules))
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		if most := n * (3*CopiesPerRule + 12); len(f.Cells) > most {
			t.Errorf("%s: %d cells for %d rules, at most %d are allowed", name, len(f.Cells), n, most)
		}
		var packets []Packet
		for range 300 {
			packets = append(packets, Packet{Src: [2]uint64{0x0a0a0a0a << 32}, Dst: [2]uint64{0x0a0a0a0a << 32}, SPort: uint16(r.Uint32()), DPort: uint16(r.Uint32()), Proto: 6})
		}
		most := 0
		for i := range packets {
			got, steps := f.Lookup(&packets[i], ViewAll)
			most = max(most, steps)
			if want := first(rules, &packets[i], ViewAll); (got == nil) != (want == nil) || got != nil && got.Order != want.Order {
				t.Fatalf("%s: %+v finds %+v, must find %+v", name, packets[i], got, want)
			}
		}
		t.Logf("%s: %v, %d tuples, %d cells, %d copies, at most %d steps", name, took, f.Tuples[0], len(f.Cells), f.Copies, most)
	}
}

func BenchmarkCompile(b *testing.B) {
	for _, f := range ruleset.Families {
		for _, six := range []bool{false, true} {
			for _, n := range []int{1000, 10000, 100000, 200000} {
				list, err := ruleset.Make(f, n, 1, six)
				if err != nil {
					b.Fatal(err)
				}
				rules, packets := plain(list), packetsOf(list, 2000, 1)
				b.Run(fmt.Sprintf("%s-%d-six=%v", f, n, six), func(b *testing.B) {
					var forest *Forest
					for b.Loop() {
						if forest, err = Compile(rules, isStrict, Rule{}); err != nil {
							b.Fatal(err)
						}
					}
					v, sum, most := ViewAll, 0, 0
					if six {
						v = Views6
					}
					for i := range packets {
						_, steps := forest.Lookup(&packets[i], v)
						sum, most = sum+steps, max(most, steps)
					}
					b.ReportMetric(float64(64*len(forest.Cells))/float64(n), "bytes/rule")
					b.ReportMetric(float64(forest.Copies)/float64(n), "copies/rule")
					b.ReportMetric(float64(forest.Tuples[v]), "tuples")
					b.ReportMetric(float64(sum)/float64(len(packets)), "steps")
					b.ReportMetric(float64(most), "most-steps")
				})
			}
		}
	}
}

// inside is a tuple that a rule selects.
func inside(u *Rule, r *rand.Rand) onpath.Tuple {
	m := onpath.Match{Family: 4, Protocol: []uint8{u.Proto}, SrcPorts: []onpath.PortRange{{First: u.SPortFirst, Last: u.SPortLast}},
		DstPorts: []onpath.PortRange{{First: u.DPortFirst, Last: u.DPortLast}}}
	for _, side := range []struct {
		to   *[]netip.Prefix
		word uint64
		bits uint8
	}{{&m.Src, u.Src[0], u.SrcLen}, {&m.Dst, u.Dst[0], u.DstLen}} {
		var b [4]byte
		binary.BigEndian.PutUint32(b[:], uint32(side.word>>32))
		*side.to = []netip.Prefix{netip.PrefixFrom(netip.AddrFrom4(b), int(side.bits))}
	}
	return ruleset.Inside(&m, r)
}
