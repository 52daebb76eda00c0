// Package flowcount tells from flow entries how many flows lead through a vport.
package flowcount

import "slices"

// Where an entry has the vport.
const (
	To      = iota // it leads there, or sends copies, or runs the function there
	From           // packets that come from there follow it
	Waiting        // the same, but nothing has come from there yet
	Told           // as To, but nothing has gone by it yet: the other gateway of a pair told of it
	places
)

// At counts the entries of one vport by place and direction. A flow has entries for
// both directions, on some nodes only those that lead to an instance, on others only
// those that come from it, and where addresses are changed they can't be told to be
// one flow's; but of one place and direction it has one.
type At [2 * places]uint64

// Led is the place of an entry that leads somewhere, by the packets that have gone by it.
func Led(packets uint64) int {
	if packets == 0 {
		return Told
	}
	return To
}

// Add counts an entry.
func (a *At) Add(place int, reverse bool) {
	if reverse {
		place += places
	}
	a[place]++
}

// Flows is how many flows there are at least, both directions of a flow being one.
func (a *At) Flows() uint64 { return slices.Max(a[:]) }
