package calendar

import (
	"math"
	"time"
)

// tries bounds the search for a time at which several instances fit together.
const tries = 256

// Earliest is how much later the slots would have to begin for n instances to fit into
// one of the cloudlets; false if they never do, or not before what is searched for
// several instances ends.
func (c *Calendar) Earliest(cloudlets []string, slots []Slot, n int, apart bool) (later time.Duration, ok bool) {
	best, spans := int64(-1), spansOf(slots)
	for _, cl := range cloudlets {
		if d, found := c.earliestIn(cl, spans, n, apart, best); found && (best < 0 || d < best) {
			best = d
		}
	}
	return time.Duration(best), best >= 0
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
		x, _, over := n.time.firstOver(later(s.from, d), later(s.until, d), limit, s.want)
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
			at, _, found := n.time.first(later(s.from, d)+1, endOfTime, any)
			if e := at - s.from; n.usable && found && (!ok || e < best) {
				best, ok = e, true
			}
		}
	}
	return best, ok
}

// endOfTime is Forever as timelines know it.
const endOfTime = math.MaxInt64

// later is x delayed by d; the end of time stays what it is.
func later(x, d int64) int64 {
	if x > endOfTime-d {
		return endOfTime
	}
	return x + d
}

func shifted(spans []span, d int64) []span {
	out := make([]span, len(spans))
	for i, s := range spans {
		out[i] = span{later(s.from, d), later(s.until, d), s.want}
	}
	return out
}
