package paths

import "time"

// length orders paths: the sum of round trips, then the number of legs, in one word. The
// sum of two lengths is the length of the joined path.
type length uint64

const (
	legBits           = 16
	unreachable       = length(1) << 62
	legMask           = length(1)<<legBits - 1
	noStep      int32 = -1
)

func lengthOf(rtt uint32) length      { return length(rtt)<<legBits | 1 }
func (l length) sum() time.Duration   { return time.Duration(l>>legBits) * time.Microsecond }
func (l length) legs() int            { return int(l & legMask) }
func (l length) plus(m length) length { return l + m }

// step is a path between two nodes, found when the legs were allowed one by one, shortest
// first. It is the path on one side of its longest leg, that leg, and the path on the other.
type step struct {
	length      length
	leg         int32 // index of the longest leg
	left, right int32 // positions in the lists of the two sides; noStep: the side is empty
	reversed    bool  // the path goes from the leg's b to its a
}

// Front holds, for every pair of nodes, the shortest path for each bound on the longest leg.
type Front struct {
	n         int
	distances *Distances
	legs      []leg
	steps     [][]step // by pair; the longest legs do not decrease, the lengths decrease
}

// Compute finds all paths by Appendix A. Where two paths have the same sum and the same
// longest leg, the one with fewer relays is kept.
//
// A leg that does not shorten the way between its own ends shortens no way, so most legs
// cost one comparison. The others cost what they shorten: the nodes whose way to one end
// goes by the leg, times those whose way to the other does (Lemma 2).
func Compute(d *Distances) *Front {
	n := d.n
	f := &Front{n: n, distances: d, legs: d.legs(), steps: make([][]step, n*(n-1)/2)}
	dist := make([]length, n*n)
	for i := range dist {
		dist[i] = unreachable
	}
	for i := range n {
		dist[i*n+i] = 0
	}
	toA, toB := make([]int, 0, n), make([]int, 0, n)
	for h, l := range f.legs {
		a, b, own := int(l.a), int(l.b), lengthOf(l.rtt)
		rowA, rowB := dist[a*n:a*n+n], dist[b*n:b*n+n]
		if rowA[b] <= own {
			continue
		}
		toA, toB = toA[:0], toB[:0]
		for i := range n {
			switch {
			case rowB[i]+own < rowA[i]:
				toA = append(toA, i) // i reaches a by way of b
			case rowA[i]+own < rowB[i]:
				toB = append(toB, i) // i reaches b by way of a
			}
		}
		f.relax(dist, h, toA, toB)
	}
	return f
}

// relax writes the paths that leg h shortens: from each node of toA over b and a to each of
// toB. A path from i to b or from a to j never uses the leg itself, so what the loop changes
// it does not read again: the rows of a and b are copied before.
func (f *Front) relax(dist []length, h int, toA, toB []int) {
	n, l := f.n, f.legs[h]
	a, b, own := int(l.a), int(l.b), lengthOf(l.rtt)
	fromA := make([]length, len(toB))
	lastA := make([]int32, len(toB))
	for k, j := range toB {
		fromA[k], lastA[k] = dist[a*n+j], f.last(a, j)
	}
	fromB := make([]length, len(toA))
	lastB := make([]int32, len(toA))
	for k, i := range toA {
		fromB[k], lastB[k] = dist[b*n+i], f.last(i, b)
	}
	for k, i := range toA {
		for m, j := range toB {
			whole := fromB[k].plus(own).plus(fromA[m])
			if whole >= dist[i*n+j] {
				continue
			}
			dist[i*n+j], dist[j*n+i] = whole, whole
			s := step{length: whole, leg: int32(h), left: lastB[k], right: lastA[m], reversed: true}
			if i > j { // a pair's paths are written from its smaller node
				s.left, s.right, s.reversed = s.right, s.left, false
			}
			p := f.pair(i, j)
			f.steps[p] = append(f.steps[p], s)
		}
	}
}

// pair is where the steps between two different nodes stand.
func (f *Front) pair(i, j int) int {
	if i > j {
		i, j = j, i
	}
	return i*(2*f.n-i-1)/2 + j - i - 1
}

func (f *Front) last(i, j int) int32 {
	if i == j {
		return noStep
	}
	return int32(len(f.steps[f.pair(i, j)]) - 1)
}

// RTT returns the round trip of a leg, 0 where it is not known.
func (f *Front) RTT(i, j int) time.Duration { return f.distances.RTT(i, j) }

// Options returns how many paths a pair has; they are numbered from the smallest longest
// leg, and the longest sum, on.
func (f *Front) Options(i, j int) int {
	if i == j {
		return 0
	}
	return len(f.steps[f.pair(i, j)])
}

// Sizes returns sum, longest leg and number of legs of one option.
func (f *Front) Sizes(i, j, option int) (sum, longest time.Duration, legs int) {
	s := f.steps[f.pair(i, j)][option]
	return s.length.sum(), time.Duration(f.legs[s.leg].rtt) * time.Microsecond, s.length.legs()
}

// Path returns one option with its nodes, from i to j.
func (f *Front) Path(i, j, option int) Path {
	sum, longest, legs := f.Sizes(i, j, option)
	nodes := f.append(make([]int, 0, legs+1), i, j, int32(option))
	return Path{Nodes: append(nodes, j), Sum: sum, Max: longest}
}

// append adds the nodes of a path from i to j, without j.
func (f *Front) append(nodes []int, i, j int, option int32) []int {
	if i == j {
		return nodes
	}
	s := f.steps[f.pair(i, j)][option]
	first, second := int(f.legs[s.leg].a), int(f.legs[s.leg].b)
	left, right := s.left, s.right
	if s.reversed != (i > j) {
		first, second = second, first
	}
	if i > j {
		left, right = right, left
	}
	nodes = f.append(nodes, i, first, left)
	nodes = append(nodes, first)
	return f.append(nodes, second, j, right)
}
