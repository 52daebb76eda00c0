package plan

import (
	"bytes"
	"cmp"
	"slices"
	"sort"
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

// spanTree finds the chains of a list whose spans meet those of another chain: in its
// direction, or against it where they have traffic in reverse.
type spanTree struct{ along, against bothEnds }

// bothEnds are of each IP version.
type bothEnds struct{ reach, origin [2]endTree }

func newSpanTree(list []*chain) *spanTree {
	facing := slices.DeleteFunc(slices.Clone(list), func(c *chain) bool { return len(c.reverse) == 0 })
	return &spanTree{along: newBothEnds(list), against: newBothEnds(facing)}
}

func newBothEnds(list []*chain) (t bothEnds) {
	for v := range t.reach {
		t.reach[v] = newEndTree(list, func(c *chain) *span { return &c.reach[v] })
		t.origin[v] = newEndTree(list, func(c *chain) *span { return &c.origin[v] })
	}
	return t
}

// meeting shows the chains that meet another one at one end at least. It may show a chain
// several times, and stops when show returns false.
func (t *spanTree) meeting(c *chain, show func(*chain) bool) {
	for v := range c.reach {
		if !t.along.meeting(v, &c.reach[v], &c.origin[v], show) || !t.against.meeting(v, &c.origin[v], &c.reach[v], show) {
			return
		}
	}
}

// meeting looks at the end at which fewer meet.
func (t *bothEnds) meeting(v int, reach, origin *span, show func(*chain) bool) bool {
	if !reach.some || !origin.some {
		return true
	}
	end, s := &t.reach[v], reach
	if t.origin[v].count(origin) < end.count(reach) {
		end, s = &t.origin[v], origin
	}
	return end.meeting(0, len(end.chains), s, show)
}

// endTree has the spans of chains at one end as a binary tree: the root of a part of the
// list is its middle, and knows how far the spans of that part go.
type endTree struct {
	end    func(*chain) *span
	chains []*chain   // by where their spans begin
	last   [][16]byte // of each, as a root: the highest address of its part
	ends   [][16]byte // the last addresses of all, in order
}

func newEndTree(list []*chain, end func(*chain) *span) endTree {
	t := endTree{end: end, chains: slices.DeleteFunc(slices.Clone(list), func(c *chain) bool { return !end(c).some })}
	slices.SortStableFunc(t.chains, func(a, b *chain) int { return bytes.Compare(end(a).lo[:], end(b).lo[:]) })
	t.last = make([][16]byte, len(t.chains))
	t.root(0, len(t.chains))
	for _, c := range t.chains {
		t.ends = append(t.ends, end(c).hi)
	}
	slices.SortFunc(t.ends, func(a, b [16]byte) int { return bytes.Compare(a[:], b[:]) })
	return t
}

// root notes how far the spans of a part of the list go.
func (t *endTree) root(from, to int) (last [16]byte) {
	if from == to {
		return last
	}
	i := (from + to) / 2
	last = t.end(t.chains[i]).hi
	for _, part := range [][16]byte{t.root(from, i), t.root(i+1, to)} {
		if bytes.Compare(part[:], last[:]) > 0 {
			last = part
		}
	}
	t.last[i] = last
	return last
}

// count is how many spans meet another one: they neither begin behind it nor end before
// it.
func (t *endTree) count(s *span) int {
	begun := sort.Search(len(t.chains), func(i int) bool { return bytes.Compare(t.end(t.chains[i]).lo[:], s.hi[:]) > 0 })
	ended := sort.Search(len(t.ends), func(i int) bool { return bytes.Compare(t.ends[i][:], s.lo[:]) >= 0 })
	return begun - ended
}

// meeting shows the chains of a part of the list whose spans meet another one, until show
// returns false.
func (t *endTree) meeting(from, to int, s *span, show func(*chain) bool) bool {
	i := (from + to) / 2
	if from == to || bytes.Compare(t.last[i][:], s.lo[:]) < 0 {
		return true
	}
	if !t.meeting(from, i, s, show) {
		return false
	}
	if bytes.Compare(t.end(t.chains[i]).lo[:], s.hi[:]) > 0 {
		return true // as all behind it
	}
	if t.end(t.chains[i]).meets(s) && !show(t.chains[i]) {
		return false
	}
	return t.meeting(i+1, to, s, show)
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
