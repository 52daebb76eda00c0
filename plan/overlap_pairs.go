package plan

import (
	"bytes"
	"cmp"
	"slices"
)

// pair is two chains by their places in the order of precedence, the earlier first.
type pair [2]int

// mayOverlap are the pairs of chains of one tier and priority that lie in one cloudlet
// and whose spans of addresses meet, in order.
func (w checker) mayOverlap() []pair {
	var out []pair
	for _, cl := range w.inOrder {
		for rest := cl.chains; len(rest) > 0; {
			n := 1
			for n < len(rest) && rest[n].sameRank(rest[0]) {
				n++
			}
			out = addMeeting(out, cl.name, rest[:n])
			rest = rest[n:]
		}
	}
	slices.SortFunc(out, func(a, b pair) int { return cmp.Or(cmp.Compare(a[0], b[0]), cmp.Compare(a[1], b[1])) })
	return slices.Compact(out)
}

// addMeeting adds the pairs of a list whose traffic may meet, of each IP version. The
// list is swept along the end, source or destination, by which fewer of its chains meet.
// A pair that lies in several cloudlets is added in the first of them.
func addMeeting(out []pair, cloudlet string, list []*chain) []pair {
	if len(list) < 2 {
		return out
	}
	for v := range list[0].reach {
		reach, origin := func(c *chain) *span { return &c.reach[v] }, func(c *chain) *span { return &c.origin[v] }
		along, across := reach, origin
		if meetings(list, origin) < meetings(list, reach) {
			along, across = origin, reach
		}
		sweep(list, along, func(a, b *chain) {
			if across(a).meets(across(b)) && firstCommon(a.cloudlets, b.cloudlets) == cloudlet {
				out = append(out, pair{min(a.rank, b.rank), max(a.rank, b.rank)})
			}
		})
	}
	return out
}

// meetings counts the pairs of a list whose spans at one end meet.
func meetings(list []*chain, end func(*chain) *span) int {
	var starts, ends [][16]byte
	for _, c := range list {
		if s := end(c); s.some {
			starts, ends = append(starts, s.lo), append(ends, s.hi)
		}
	}
	order := func(a, b [16]byte) int { return bytes.Compare(a[:], b[:]) }
	slices.SortFunc(starts, order)
	slices.SortFunc(ends, order)
	n, apart, before := len(starts), 0, 0
	for _, lo := range starts {
		for before < n && order(ends[before], lo) < 0 {
			before++
		}
		apart += before
	}
	return n*(n-1)/2 - apart
}

// sweep shows every pair of a list whose spans at one end meet.
func sweep(list []*chain, end func(*chain) *span, show func(a, b *chain)) {
	sorted := slices.DeleteFunc(slices.Clone(list), func(c *chain) bool { return !end(c).some })
	slices.SortStableFunc(sorted, func(a, b *chain) int { return bytes.Compare(end(a).lo[:], end(b).lo[:]) })
	var open []*chain // spans that have begun and not ended
	for _, c := range sorted {
		open = slices.DeleteFunc(open, func(o *chain) bool { return bytes.Compare(end(o).hi[:], end(c).lo[:]) < 0 })
		for _, o := range open {
			show(o, c)
		}
		open = append(open, c)
	}
}

// firstCommon is the first name that is in both of two sorted lists, or "".
func firstCommon(a, b []string) string {
	for i, j := 0, 0; i < len(a) && j < len(b); {
		switch cmp.Compare(a[i], b[j]) {
		case 0:
			return a[i]
		case -1:
			i++
		default:
			j++
		}
	}
	return ""
}
