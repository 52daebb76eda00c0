package verify

import (
	"math/bits"
	"net/netip"

	"github.com/onpath/onpath"
)

// box is a product: for each dimension the atoms in it, one bit each. All its
// packets are of one IP version.
type box []uint64

// set is a box less others.
type set struct {
	box  box
	less []box
}

// empty reports whether a box has no atom in some dimension.
func (s *space) empty(b box) bool {
	for d := range dimensions {
		any := uint64(0)
		for _, w := range b[s.offset[d]:s.offset[d+1]] {
			any |= w
		}
		if any == 0 {
			return true
		}
	}
	return false
}

// meets reports whether two boxes have packets in common.
func (s *space) meets(a, b box) bool {
	for d := range dimensions {
		any := uint64(0)
		for i := s.offset[d]; i < s.offset[d+1]; i++ {
			any |= a[i] & b[i]
		}
		if any == 0 {
			return false
		}
	}
	return true
}

// within reports whether all of a lies in b.
func within(a, b box) bool {
	for i, w := range a {
		if w&^b[i] != 0 {
			return false
		}
	}
	return true
}

// and is what of x lies in b; ok is false if that is plainly nothing.
func (s *space) and(x set, b box) (out set, ok bool) {
	if !s.meets(x.box, b) {
		return out, false
	}
	if within(x.box, b) {
		return x, true
	}
	out.box = make(box, len(b))
	for i := range b {
		out.box[i] = x.box[i] & b[i]
	}
	for _, n := range x.less {
		if within(out.box, n) {
			return out, false
		}
		if s.meets(out.box, n) {
			out.less = append(out.less, n)
		}
	}
	return out, true
}

// minus is x without b; ok is false if that is plainly nothing.
func (s *space) minus(x set, b box) (out set, ok bool) {
	if !s.meets(x.box, b) {
		return x, true
	}
	if within(x.box, b) {
		return out, false
	}
	return set{x.box, append(x.less[:len(x.less):len(x.less)], b)}, true
}

// minusAll is minus for many.
func (s *space) minusAll(x set, list []box) (set, bool) {
	ok := true
	for _, b := range list {
		if x, ok = s.minus(x, b); !ok {
			return x, false
		}
	}
	return x, true
}

// budget counts down the steps that a proof may take.
type budget struct{ left int }

// some finds a box of the set's packets, which may not be all; nil if there is
// none, or if the budget is used up.
func (s *space) some(x set, b *budget) box {
	if len(x.less) == 0 {
		return x.box
	}
	return s.cut(x.box, x.less, b)
}

// cut takes away the first of less that meets b, and looks into the parts that
// are left one by one.
func (s *space) cut(b box, less []box, left *budget) box {
	if left.left--; left.left < 0 {
		return nil
	}
	var rest []box
	for _, n := range less {
		if within(b, n) {
			return nil
		}
		if s.meets(b, n) {
			rest = append(rest, n)
		}
	}
	if len(rest) == 0 {
		return b
	}
	n, rest := rest[0], rest[1:]
	inside := append(box(nil), b...)
	for d := range dimensions {
		part := append(box(nil), inside...)
		any := uint64(0)
		for i := s.offset[d]; i < s.offset[d+1]; i++ {
			part[i] &^= n[i]
			any |= part[i]
			inside[i] &= n[i]
		}
		if any == 0 {
			continue
		}
		if found := s.cut(part, rest, left); found != nil || left.left < 0 {
			return found
		}
	}
	return nil
}

// reversed is the box of the answers.
func (s *space) reversed(b box) box {
	out := make(box, len(b))
	for from, to := range [dimensions]int{dimDst, dimSrc, dimDstPort, dimSrcPort, dimProtocol} {
		copy(out[s.offset[to]:s.offset[to+1]], b[s.offset[from]:s.offset[from+1]])
	}
	return out
}

func (s *space) reversedSet(x set) set {
	out := set{box: s.reversed(x.box)}
	for _, n := range x.less {
		out.less = append(out.less, s.reversed(n))
	}
	return out
}

// tuple is a flow in a box.
func (s *space) tuple(b box) onpath.Tuple {
	pick := func(dim int, d *dimension, preferred ...uint64) point {
		words := b[s.offset[dim]:s.offset[dim+1]]
		has := func(n int) bool { return words[n/64]>>(n%64)&1 == 1 }
		for _, p := range preferred {
			for n, v := range d.samples {
				if v.low == p && has(n) {
					return v
				}
			}
		}
		for i, w := range words {
			if w != 0 {
				return d.samples[i*64+bits.TrailingZeros64(w)]
			}
		}
		return point{}
	}
	t := onpath.Tuple{Src: pick(dimSrc, s.addrs).addr(), Dst: pick(dimDst, s.addrs).addr()}
	if t.Src == t.Dst && !s.single(b, dimDst) {
		t.Dst = t.Dst.Next()
	}
	icmp := uint64(1)
	if t.Src.Is6() {
		icmp = 58
	}
	t.Protocol = uint8(pick(dimProtocol, s.protocols, 6, 17, icmp).low)
	if hasPorts(t.Protocol) {
		t.SrcPort = uint16(pick(dimSrcPort, s.ports, 40000).low)
		t.DstPort = uint16(pick(dimDstPort, s.ports).low)
	}
	return t
}

// single reports whether the atom that stands first in a dimension of addresses
// has one address only, as far as its sample's neighbour tells.
func (s *space) single(b box, dim int) bool {
	for i, w := range b[s.offset[dim]:s.offset[dim+1]] {
		if w != 0 {
			atom := i*64 + bits.TrailingZeros64(w)
			return s.addrs.atomOf(s.addrs.samples[atom].next()) != atom
		}
	}
	return true
}

func (d *dimension) atomOf(p point) int {
	lo, hi := 0, len(d.starts)
	for lo < hi {
		mid := (lo + hi) / 2
		if d.starts[mid].compare(p) <= 0 {
			lo = mid + 1
		} else {
			hi = mid
		}
	}
	if lo == 0 {
		return -1
	}
	return d.atoms[lo-1]
}

func hasPorts(p uint8) bool { return p == 6 || p == 17 || p == 132 || p == 136 }

// never are packets that no chain may take: what concerns a link only, what
// names nobody, and DHCP.
func never() []onpath.Match {
	var quiet []netip.Prefix
	for _, p := range []string{"0.0.0.0/8", "127.0.0.0/8", "169.254.0.0/16", "224.0.0.0/3", "::/127", "fe80::/10", "ff00::/8"} {
		quiet = append(quiet, netip.MustParsePrefix(p))
	}
	dhcp4, dhcp6 := []onpath.PortRange{{First: 67, Last: 68}}, []onpath.PortRange{{First: 546, Last: 547}}
	return []onpath.Match{
		{Src: quiet}, {Dst: quiet},
		{Family: 4, Protocol: []uint8{17}, SrcPorts: dhcp4, DstPorts: dhcp4}, {Family: 6, Protocol: []uint8{17}, SrcPorts: dhcp6, DstPorts: dhcp6},
	}
}
