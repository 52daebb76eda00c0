// Package calendar knows what each node has promised over time, decides where a
// request fits, and from when it would (PacketCloud §3.4: a node N is prospective if
// for all t in the slot the request is within what is available of N at t).
//
// Nothing here knows the clock: times are parameters. A Calendar is not safe for
// concurrent use.
package calendar

import (
	"cmp"
	"math"
	"slices"
	"time"

	"github.com/onpath/onpath"
)

// Forever is the end of what has none.
var Forever = time.Unix(0, math.MaxInt64).UTC()

// Slot is a capacity for a time, from inclusive, until exclusive.
type Slot struct {
	From, Until time.Time
	Capacity    onpath.Resources // of one instance
}

// Booking is what one instance has been promised: slots in order, without gaps, on
// one node.
type Booking struct {
	Node  string
	Slots []Slot
}

// Calendar is the promises of all nodes.
type Calendar struct {
	nodes     map[string]*node
	cloudlets map[string][]*node // by name of the node
}

type node struct {
	name, cloudlet string
	// room is what may be promised: capacity less the operator's share. A part whose
	// capacity is zero is not known, and nothing of it can be promised.
	room   onpath.Resources
	usable bool
	time   timeline
}

// New is a calendar without nodes.
func New() *Calendar {
	return &Calendar{nodes: map[string]*node{}, cloudlets: map[string][]*node{}}
}

// SetNode makes a node known, or changes what may be promised of it; what has been
// promised stays, even if it is more than that. Only usable nodes are chosen.
func (c *Calendar) SetNode(name, cloudlet string, room onpath.Resources, usable bool) {
	n := c.nodes[name]
	fresh := n == nil
	if fresh {
		n = &node{name: name}
		c.nodes[name] = n
	} else if n.cloudlet != cloudlet {
		c.cloudlets[n.cloudlet] = slices.DeleteFunc(c.cloudlets[n.cloudlet], func(o *node) bool { return o == n })
	}
	if fresh || n.cloudlet != cloudlet {
		list := c.cloudlets[cloudlet]
		at, _ := slices.BinarySearchFunc(list, name, func(o *node, s string) int { return cmp.Compare(o.name, s) })
		c.cloudlets[cloudlet] = slices.Insert(list, at, n)
	}
	n.cloudlet, n.room, n.usable = cloudlet, room, usable
}

// RemoveNode forgets a node and its promises.
func (c *Calendar) RemoveNode(name string) {
	if n := c.nodes[name]; n != nil {
		c.cloudlets[n.cloudlet] = slices.DeleteFunc(c.cloudlets[n.cloudlet], func(o *node) bool { return o == n })
		delete(c.nodes, name)
	}
}

// Room is what may be promised of a node, and whether it is known and usable.
func (c *Calendar) Room(name string) (room onpath.Resources, cloudlet string, usable bool) {
	n := c.nodes[name]
	if n == nil {
		return room, "", false
	}
	return n.room, n.cloudlet, n.usable
}

// Nodes are the names of a cloudlet's nodes, in order.
func (c *Calendar) Nodes(cloudlet string) []string {
	var out []string
	for _, n := range c.cloudlets[cloudlet] {
		out = append(out, n.name)
	}
	return out
}

// Book enters a booking, whether or not it fits: Fits and Place say that.
func (c *Calendar) Book(b Booking) {
	if n := c.nodes[b.Node]; n != nil {
		n.book(spansOf(b.Slots))
	}
}

// Free takes a booking out that Book entered, or the part of one since.
func (c *Calendar) Free(b Booking) {
	if n := c.nodes[b.Node]; n != nil {
		n.free(spansOf(b.Slots))
	}
}

func (n *node) book(spans []span) {
	for _, s := range spans {
		n.time.add(s.from, s.until, s.want)
	}
}

func (n *node) free(spans []span) {
	for _, s := range spans {
		n.time.remove(s.from, s.until, s.want)
	}
}

// Peak is the most that a node has promised at an instant between from and until, part
// by part.
func (c *Calendar) Peak(name string, from, until time.Time) onpath.Resources {
	if n := c.nodes[name]; n != nil {
		return n.time.peak(key(from), key(until)).resources()
	}
	return onpath.Resources{}
}

// Step is what is promised from an instant on.
type Step struct {
	At       time.Time
	Promised onpath.Resources
}

// Steps are what a node has promised between from and until, over time: the first
// step is at from.
func (c *Calendar) Steps(name string, from, until time.Time) []Step {
	n := c.nodes[name]
	if n == nil {
		return nil
	}
	out := []Step{{from, n.time.value(key(from)).resources()}}
	n.time.each(key(from)+1, key(until), func(at int64, v vector) {
		if r := v.resources(); r != out[len(out)-1].Promised {
			out = append(out, Step{time.Unix(0, at).UTC(), r})
		}
	})
	return out
}

// Fits reports whether an instance with these slots fits on a node beside what is
// promised there.
func (c *Calendar) Fits(name string, slots []Slot) bool {
	n := c.nodes[name]
	if n == nil || !n.usable {
		return false
	}
	_, ok := n.fullness(spansOf(slots))
	return ok
}

// span is a slot as timelines know it.
type span struct {
	from, until int64
	want        vector
}

func spansOf(slots []Slot) []span {
	out := make([]span, len(slots))
	for i, s := range slots {
		out[i] = span{key(s.From), key(s.Until), amounts(s.Capacity)}
	}
	return out
}

// key is a time as timelines order it: nanoseconds since 1970, or an end of them.
func key(t time.Time) int64 {
	if t.Before(time.Unix(0, math.MinInt64+1)) {
		return math.MinInt64 + 1
	}
	if t.After(Forever) {
		return math.MaxInt64
	}
	return t.UnixNano()
}

func amounts(r onpath.Resources) vector {
	return vector{int64(r.CPU), int64(r.Memory), int64(r.Disk), int64(r.Network)}
}

func (v vector) resources() onpath.Resources {
	return onpath.Resources{CPU: onpath.CPU(v[0]), Memory: onpath.Size(v[1]), Disk: onpath.Size(v[2]), Network: onpath.Rate(v[3])}
}

// fullness is how full the node would be with the slots at the worst instant, by its
// scarcest part; false if they do not fit.
func (n *node) fullness(slots []span) (worst float64, ok bool) {
	room := amounts(n.room)
	for _, s := range slots {
		if !s.want.within(room) {
			return 0, false
		}
		f, fits := fill(n.time.peak(s.from, s.until), s.want, room)
		if !fits {
			return 0, false
		}
		worst = max(worst, f)
	}
	return worst, true
}

// fill is how full a node with such room is with what is wanted beside what is promised,
// by its scarcest part; false if what is wanted does not fit.
func fill(promised, want, room vector) (worst float64, fits bool) {
	fits = true
	for i := range want {
		sum := promised[i] + want[i]
		fits = fits && (want[i] == 0 || sum <= room[i])
		if room[i] > 0 {
			worst = max(worst, float64(sum)/float64(room[i]))
		}
	}
	return worst, fits
}

// fullnessBound is no less than fullness, where the slots fit.
func (n *node) fullnessBound(slots []span) (worst float64) {
	room := amounts(n.room)
	for _, s := range slots {
		f, _ := fill(n.time.bound(s.from, s.until), s.want, room)
		worst = max(worst, f)
	}
	return worst
}

// Place chooses nodes of a cloudlet for n instances with the same slots: each time the
// fullest that fits, the first by name of equal ones; apart: no node twice. It is nil if
// not all fit. Nothing is entered.
func (c *Calendar) Place(cloudlet string, slots []Slot, n int, apart bool) []string {
	return c.place(cloudlet, spansOf(slots), n, apart)
}

func (c *Calendar) place(cloudlet string, spans []span, n int, apart bool) (chosen []string) {
	var tried []*node
	defer func() {
		for _, n := range tried {
			n.free(spans)
		}
	}()
	for range n {
		best := c.fullest(cloudlet, spans, chosen, apart)
		if best == nil {
			return nil
		}
		chosen = append(chosen, best.name)
		if len(chosen) < n {
			best.book(spans)
			tried = append(tried, best)
		}
	}
	return chosen
}

// fullest looks at nodes by how full they are at most, and only at those that may be
// fuller than the best one so far.
func (c *Calendar) fullest(cloudlet string, slots []span, taken []string, apart bool) *node {
	nodes := c.cloudlets[cloudlet]
	type candidate struct {
		bound float64
		index int
	}
	list := make([]candidate, 0, len(nodes))
	for i, n := range nodes {
		if n.usable && !(apart && slices.Contains(taken, n.name)) {
			list = append(list, candidate{n.fullnessBound(slots), i})
		}
	}
	slices.SortFunc(list, func(a, b candidate) int { return cmp.Or(cmp.Compare(b.bound, a.bound), cmp.Compare(a.index, b.index)) })
	best, most := -1, -1.0
	for _, x := range list {
		if x.bound < most {
			break
		}
		if f, ok := nodes[x.index].fullness(slots); ok && (f > most || f == most && x.index < best) {
			best, most = x.index, f
		}
	}
	if best < 0 {
		return nil
	}
	return nodes[best]
}

// LeastLoaded is the usable node of a cloudlet where the slots fit and leave most room,
// but for one node; "" if there is none.
func (c *Calendar) LeastLoaded(cloudlet string, slots []Slot, but string) string {
	best, least, spans := "", math.Inf(1), spansOf(slots)
	for _, n := range c.cloudlets[cloudlet] {
		if !n.usable || n.name == but {
			continue
		}
		if f, ok := n.fullness(spans); ok && f < least {
			best, least = n.name, f
		}
	}
	return best
}

// Lack is the part of the slots that is too much for a node, at the first instant
// where it is, and by how much.
func (c *Calendar) Lack(name string, slots []Slot) (at time.Time, lack onpath.Resources) {
	n := c.nodes[name]
	if n == nil {
		return time.Time{}, onpath.Resources{}
	}
	for _, s := range spansOf(slots) {
		limit := amounts(n.room).minus(s.want)
		x, v, over := n.time.firstOver(s.from, s.until, limit, s.want)
		if !over {
			continue
		}
		short := v.minus(limit)
		for i := range short {
			short[i] = max(short[i], 0)
			if s.want[i] == 0 {
				short[i] = 0
			}
		}
		return time.Unix(0, x).UTC(), short.resources()
	}
	return time.Time{}, onpath.Resources{}
}

// Earliest is how much later the slots would have to begin for n instances to fit into
// one of the cloudlets; false if they never do, or not before what is searched for
// several instances ends.
func (c *Calendar) Earliest(cloudlets []string, slots []Slot, n int, apart bool) (later time.Duration, ok bool) {
	spans := spansOf(slots)
	d, ok := c.earliest(cloudlets, spans, n, apart)
	return time.Duration(d), ok
}
