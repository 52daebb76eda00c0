package calendar

import "time"

// tries bounds the search for a time at which several instances fit together.
const tries = 256

// Earliest is how much later the slots would have to begin for n instances to fit into
// one of the cloudlets; false if they never do, or not before what is searched for
// several instances ends.
func (c *Calendar) Earliest(cloudlets []string, slots []Slot, n int, apart bool) (later time.Duration, ok bool) {
	best := int64(-1)
	for _, cl := range cloudlets {
		if d, found := c.earliestIn(cl, slots, n, apart, best); found && (best < 0 || d < best) {
			best = d
		}
	}
	return time.Duration(best), best >= 0
}

func (c *Calendar) earliestIn(cloudlet string, slots []Slot, n int, apart bool, bound int64) (int64, bool) {
	best := bound
	for _, node := range c.cloudlets[cloudlet] {
		if !node.usable {
			continue
		}
		if d, ok := node.earliest(slots, best); ok && (best < 0 || d < best) {
			best = d
		}
	}
	if best == bound || n == 1 {
		return best, best != bound
	}
	for range tries {
		if c.Place(cloudlet, shifted(slots, best), n, apart) != nil {
			return best, true
		}
		next, ok := c.next(cloudlet, slots, best)
		if !ok || bound >= 0 && next >= bound {
			return 0, false
		}
		best = next
	}
	return 0, false
}

// earliest is the smallest delay with which the slots fit on the node, if that is below
// bound (-1: none).
func (n *node) earliest(slots []Slot, bound int64) (int64, bool) {
	room, d := amounts(n.room), int64(0)
	for _, s := range slots {
		if !amounts(s.Capacity).within(room) {
			return 0, false
		}
	}
again:
	for _, s := range slots {
		if bound >= 0 && d >= bound {
			return 0, false
		}
		want := amounts(s.Capacity)
		limit := room.minus(want)
		x, _, over := n.time.firstOver(later(key(s.From), d), later(key(s.Until), d), limit, want)
		if !over {
			continue
		}
		y, ok := n.time.firstWithin(x, limit, want)
		if !ok {
			return 0, false
		}
		d = y - key(s.From)
		goto again
	}
	return d, bound < 0 || d < bound
}

// next is the smallest delay above d with which a slot begins where some node's promises
// change.
func (c *Calendar) next(cloudlet string, slots []Slot, d int64) (best int64, ok bool) {
	any := func(extremes) bool { return true }
	for _, n := range c.cloudlets[cloudlet] {
		for _, s := range slots {
			at, _, found := n.time.first(later(key(s.From), d)+1, key(Forever), any)
			if e := at - key(s.From); n.usable && found && (!ok || e < best) {
				best, ok = e, true
			}
		}
	}
	return best, ok
}

// later is x delayed by d; the end of time stays what it is.
func later(x, d int64) int64 {
	if x > key(Forever)-d {
		return key(Forever)
	}
	return x + d
}

func shifted(slots []Slot, d int64) []Slot {
	out := make([]Slot, len(slots))
	for i, s := range slots {
		out[i] = Slot{time.Unix(0, later(key(s.From), d)).UTC(), time.Unix(0, later(key(s.Until), d)).UTC(), s.Capacity}
	}
	return out
}
