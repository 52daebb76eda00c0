package verify

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"math/bits"
	"net/netip"
	"slices"

	"github.com/onpath/onpath"
)

// point is a value of one dimension: an address (IP version and 128 bits), a
// port or a protocol number.
type point struct{ family, high, low uint64 }

func (p point) compare(o point) int {
	return cmp.Or(cmp.Compare(p.family, o.family), cmp.Compare(p.high, o.high), cmp.Compare(p.low, o.low))
}

func (p point) next() point {
	if p.low++; p.low == 0 {
		if p.high++; p.high == 0 {
			p.family++
		}
	}
	return p
}

// span is an interval, both ends included.
type span struct{ first, last point }

func pointOf(a netip.Addr) point {
	b := a.As16()
	p := point{6, binary.BigEndian.Uint64(b[:8]), binary.BigEndian.Uint64(b[8:])}
	if a.Is4() {
		p.family, p.high, p.low = 4, 0, p.low&0xffffffff
	}
	return p
}

func (p point) addr() netip.Addr {
	if p.family == 4 {
		return netip.AddrFrom4([4]byte(binary.BigEndian.AppendUint32(nil, uint32(p.low))))
	}
	b := binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint64(nil, p.high), p.low)
	return netip.AddrFrom16([16]byte(b))
}

func spanOf(p netip.Prefix) span {
	first := pointOf(p.Masked().Addr())
	last, host := first, p.Addr().BitLen()-p.Bits()
	if host >= 64 {
		last.low = ^uint64(0)
		last.high |= ones(host - 64)
	} else {
		last.low |= ones(host)
	}
	return span{first, last}
}

func ones(n int) uint64 {
	if n >= 64 {
		return ^uint64(0)
	}
	return 1<<n - 1
}

// dimension divides the values of one header field into atoms: the classes that
// no set in use tells apart.
type dimension struct {
	sets    map[string]int // canonical text → number
	spans   [][]span       // by set
	bits    [][]uint64     // atoms, by set; once divided
	starts  []point        // of the intervals, in order
	atoms   []int          // of the interval beginning there; -1: outside of everything
	samples []point        // a value of each atom
	words   int
}

func newDimension() *dimension { return &dimension{sets: map[string]int{}} }

// add takes up a set of values, and gives its number.
func (d *dimension) add(list []span) int {
	key := make([]byte, 0, 48*len(list))
	for _, s := range list {
		for _, p := range [2]point{s.first, s.last} {
			key = append(key, byte(p.family))
			key = binary.BigEndian.AppendUint64(key, p.high)
			key = binary.BigEndian.AppendUint64(key, p.low)
		}
	}
	if n, ok := d.sets[string(key)]; ok {
		return n
	}
	n := len(d.spans)
	d.sets[string(key)], d.spans = n, append(d.spans, list)
	return n
}

type edge struct {
	at  point
	set int
	add int
}

// maxAtoms bounds the memory of a proof.
const maxAtoms = 1 << 14

// divide finds the atoms by sweeping over the ends of all intervals.
func (d *dimension) divide() error {
	var edges []edge
	for n, list := range d.spans {
		for _, s := range list {
			edges = append(edges, edge{s.first, n, 1}, edge{s.last.next(), n, -1})
		}
	}
	slices.SortFunc(edges, func(a, b edge) int { return a.at.compare(b.at) })
	active := make([]byte, (len(d.spans)+7)/8)
	depth := make([]int, len(d.spans))
	known := map[string]int{}
	var members [][]int
	for i := 0; i < len(edges); {
		at := edges[i].at
		for ; i < len(edges) && edges[i].at == at; i++ {
			e := edges[i]
			depth[e.set] += e.add
			active[e.set/8] &^= 1 << (e.set % 8)
			if depth[e.set] > 0 {
				active[e.set/8] |= 1 << (e.set % 8)
			}
		}
		in := setsIn(active)
		atom := -1
		if len(in) > 0 {
			var ok bool
			if atom, ok = known[string(active)]; !ok {
				atom = len(d.samples)
				if atom == maxAtoms {
					return fmt.Errorf("the rules divide traffic into more than %d classes of addresses", maxAtoms)
				}
				known[string(active)] = atom
				members = append(members, in)
				d.samples = append(d.samples, at)
			}
		}
		d.starts, d.atoms = append(d.starts, at), append(d.atoms, atom)
	}
	d.fill(members)
	return nil
}

func setsIn(active []byte) (out []int) {
	for i, b := range active {
		for ; b != 0; b &= b - 1 {
			out = append(out, i*8+bits.TrailingZeros8(b))
		}
	}
	return out
}

func (d *dimension) fill(members [][]int) {
	d.words = (len(d.samples) + 63) / 64
	d.bits = make([][]uint64, len(d.spans))
	for n := range d.bits {
		d.bits[n] = make([]uint64, d.words)
	}
	for atom, in := range members {
		for _, n := range in {
			d.bits[n][atom/64] |= 1 << (atom % 64)
		}
	}
}

// prefer makes p the sample of its atom.
func (d *dimension) prefer(p point) {
	i, ok := slices.BinarySearchFunc(d.starts, p, point.compare)
	if !ok {
		i--
	}
	if i >= 0 && d.atoms[i] >= 0 {
		d.samples[d.atoms[i]] = p
	}
}

// space is all packets, divided.
type space struct {
	addrs, ports, protocols *dimension
	all4, all6              int // sets of addresses
	anyPort, anyProtocol    int
	ported                  int // protocols with ports
	offset                  [6]int
}

// The dimensions of a box, in the order of their words.
const (
	dimSrc = iota
	dimDst
	dimSrcPort
	dimDstPort
	dimProtocol
	dimensions
)

func newSpace() *space {
	s := &space{addrs: newDimension(), ports: newDimension(), protocols: newDimension()}
	s.all4 = s.addrs.add([]span{spanOf(netip.MustParsePrefix("0.0.0.0/0"))})
	s.all6 = s.addrs.add([]span{spanOf(netip.MustParsePrefix("::/0"))})
	s.anyPort = s.ports.add([]span{{point{}, point{low: 0xffff}}})
	s.anyProtocol = s.protocols.add([]span{{point{}, point{low: 255}}})
	s.ported = s.protocols.add([]span{number(6), number(17), number(132), number(136)})
	for _, p := range []uint64{1, 6, 17, 58} {
		s.protocols.add([]span{number(p)})
	}
	return s
}

func number(n uint64) span { return span{point{low: n}, point{low: n}} }

func (s *space) divide() error {
	for _, d := range []*dimension{s.addrs, s.ports, s.protocols} {
		if err := d.divide(); err != nil {
			return err
		}
	}
	for _, a := range []string{"192.0.2.1", "2001:db8:ffff::1"} {
		s.addrs.prefer(pointOf(netip.MustParseAddr(a)))
	}
	s.ports.prefer(point{low: 40000})
	s.protocols.prefer(point{low: 253}) // for experiments (RFC 3692)
	for i, d := range []*dimension{s.addrs, s.addrs, s.ports, s.ports, s.protocols} {
		s.offset[i+1] = s.offset[i] + d.words
	}
	return nil
}

// match is a match whose sets have been taken up.
type match struct {
	src, dst           int // -1: any
	srcPorts, dstPorts int
	protocol           int
	family             uint8
	ports              bool
}

// take adds the sets of a match to the space. Call it for all matches before divide.
func (s *space) take(m onpath.Match) match {
	return match{
		src: s.takePrefixes(m.Src), dst: s.takePrefixes(m.Dst), family: m.Family,
		srcPorts: s.takePorts(m.SrcPorts), dstPorts: s.takePorts(m.DstPorts),
		ports: len(m.SrcPorts)+len(m.DstPorts) > 0, protocol: s.takeProtocols(m.Protocol),
	}
}

func (s *space) takePrefixes(list []netip.Prefix) int {
	if len(list) == 0 {
		return -1
	}
	out := make([]span, len(list))
	for i, p := range list {
		out[i] = spanOf(p)
	}
	return s.addrs.add(out)
}

func (s *space) takePorts(list []onpath.PortRange) int {
	if len(list) == 0 {
		return s.anyPort
	}
	var out []span
	for _, r := range list {
		if r.First <= r.Last {
			out = append(out, span{point{low: uint64(r.First)}, point{low: uint64(r.Last)}})
		}
	}
	return s.ports.add(out)
}

func (s *space) takeProtocols(list []uint8) int {
	if len(list) == 0 {
		return s.anyProtocol
	}
	var out []span
	for _, n := range list {
		out = append(out, number(uint64(n)))
	}
	return s.protocols.add(out)
}

// boxes are the products of a match, one for each IP version that has packets in
// it.
func (s *space) boxes(m match) []box {
	var out []box
	for _, f := range [2]struct {
		family uint8
		all    int
	}{{4, s.all4}, {6, s.all6}} {
		if m.family != 0 && m.family != f.family {
			continue
		}
		b := make(box, s.offset[dimensions])
		s.fillAddrs(b, dimSrc, m.src, f.all)
		s.fillAddrs(b, dimDst, m.dst, f.all)
		copy(b[s.offset[dimSrcPort]:], s.ports.bits[m.srcPorts])
		copy(b[s.offset[dimDstPort]:], s.ports.bits[m.dstPorts])
		protocol := b[s.offset[dimProtocol]:]
		copy(protocol, s.protocols.bits[m.protocol])
		if m.ports {
			for i, w := range s.protocols.bits[s.ported] {
				protocol[i] &= w
			}
		}
		if !s.empty(b) {
			out = append(out, b)
		}
	}
	return out
}

func (s *space) fillAddrs(b box, dim, set, all int) {
	for i, w := range s.addrs.bits[all] {
		if set >= 0 {
			w &= s.addrs.bits[set][i]
		}
		b[s.offset[dim]+i] = w
	}
}
