package onpath

import (
	"cmp"
	"net/netip"
	"slices"
)

// Limits of rules. A *plain* rule has one prefix a side, one protocol and one
// range a port; that is what matches are multiplied out to.
const (
	MaxTableRules = 1 << 18 // plain rules of one table
	MaxChainRules = 1 << 17 // of the selectors of a chain's elements, both directions together
)

// PlainRules is how many plain rules the match is; more than MaxTableRules are
// not counted exactly. Port ranges that overlap or touch are one.
func (m *Match) PlainRules() int {
	n := product(len(m.Protocol), len(JoinPorts(m.SrcPorts)), len(JoinPorts(m.DstPorts)))
	if len(m.Src) == 0 && len(m.Dst) == 0 {
		return n
	}
	sum := 0
	for _, f := range []uint8{4, 6} {
		if m.Family != 0 && m.Family != f {
			continue
		}
		src, ok1 := countFamily(m.Src, f)
		dst, ok2 := countFamily(m.Dst, f)
		if ok1 && ok2 {
			sum += product(src, dst, n)
		}
	}
	return sum
}

// product multiplies; nothing in a list means anything, which is one.
func product(counts ...int) int {
	n := 1
	for _, c := range counts {
		n = min(n*max(c, 1), MaxTableRules+1)
	}
	return n
}

// countFamily is the length of a list in one IP version; ok is false where a
// list has none of it.
func countFamily(list []netip.Prefix, f uint8) (n int, ok bool) {
	for _, p := range list {
		if p.Addr().Is4() == (f == 4) {
			n++
		}
	}
	return n, n > 0 || len(list) == 0
}

// JoinPorts makes one of ranges that overlap or touch, in order.
func JoinPorts(list []PortRange) []PortRange {
	if len(list) < 2 {
		return list
	}
	list = slices.Clone(list)
	slices.SortFunc(list, func(a, b PortRange) int { return cmp.Compare(a.First, b.First) })
	out := list[:1]
	for _, r := range list[1:] {
		if last := &out[len(out)-1]; int(r.First) <= int(last.Last)+1 {
			last.Last = max(last.Last, r.Last)
		} else {
			out = append(out, r)
		}
	}
	return out
}
