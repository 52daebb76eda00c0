package calendar

import "math"

// tries bounds the search for a time at which several instances fit together.
const tries = 256

// earliest is the smallest delay in one of the cloudlets.
func (c *Calendar) earliest(cloudlets []string, spans []span, n int, apart bool) (best int64, ok bool) {
	best = -1
	for _, cl := range cloudlets {
		if d, found := c.earliestIn(cl, spans, n, apart, best); found && (best < 0 || d < best) {
			best = d
		}
	}
	return best, best >= 0
}

func (c *Calendar) earliestIn(cloudlet string, spans []span, n int, apart bool, bound int64) (int64, bool) {
	best := bound
	for _, node := range c.cloudlets[cloudlet] {
		if !node.usable {
			continue
		}
		if d, ok := node.earliest(spans, best); ok && (best < 0 || d < best) {
			best = d
		}
	}
	if best == bound || n == 1 {
		return best, best != bound
	}
	for range tries {
		if c.place(cloudlet, shifted(spans, best), n, apart) != nil {
			return best, true
		}
		next, ok := c.next(cloudlet, spans, best)
		if !ok || bound >= 0 && next >= bound {
			return 0, false
		}
		best = next
	}
	return 0, false
}

// earliest is the smallest delay with which the slots fit on the node, if that is below
// bound (-1: none).
func (n *node) earliest(spans []span, bound int64) (int64, bool) {
	room, d := amounts(n.room), int64(0)
	for _, s := range spans {
		if !s.want.within(room) {
			return 0, false
		}
	}
again:
	for _, s := range spans {
		if bound >= 0 && d >= bound {
			return 0, false
		}
		limit := room.minus(s.want)
		at := s.later(d)
		x, _, over := n.time.firstOver(at.from, at.until, limit, s.want)
		if !over {
			continue
		}
		y, ok := n.time.firstWithin(x, limit, s.want)
		if !ok {
			return 0, false
		}
		d = y - s.from
		goto again
	}
	return d, bound < 0 || d < bound
}

// next is the smallest delay above d with which a slot begins where some node's promises
// change.
func (c *Calendar) next(cloudlet string, spans []span, d int64) (best int64, ok bool) {
	any := func(extremes) bool { return true }
	for _, n := range c.cloudlets[cloudlet] {
		for _, s := range spans {
			from := s.later(d).from
			at, _, found := n.time.first(from+1, endOfTime, any)
			if e := at - s.from; n.usable && found && (!ok || e < best) {
				best, ok = e, true
			}
		}
	}
	return best, ok
}

// endOfTime is Forever as timelines know it.
const endOfTime = math.MaxInt64

// later is the span delayed by d; the end of time stays what it is.
func (s span) later(d int64) span {
	delayed := func(x int64) int64 {
		if x > endOfTime-d {
			return endOfTime
		}
		return x + d
	}
	return span{delayed(s.from), delayed(s.until), s.want}
}

func shifted(spans []span, d int64) []span {
	out := make([]span, len(spans))
	for i, s := range spans {
		out[i] = s.later(d)
	}
	return out
}
