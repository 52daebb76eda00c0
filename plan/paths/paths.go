// Package paths computes the chains of TCP relays between all pairs of nodes: for each
// pair every path that is best for some size of transfer, and the best one for each number
// of rounds of slow start (MOSTO §III.B and Appendix A).
//
// A path is judged by the sum of its legs' round trips and by the longest of them. The sum
// decides how long the first bytes take, the longest leg how fast slow start opens.
package paths

import (
	"cmp"
	"fmt"
	"slices"
	"time"
)

// MaxNodes is how many nodes one computation takes.
const MaxNodes = 4096

// MaxDistance is the longest round trip of a leg; a longer one is no leg.
const MaxDistance = time.Hour

// Distances holds the round trips between nodes, in microseconds; 0 is "not known, no leg".
type Distances struct {
	n   int
	rtt []uint32 // n × n, symmetric
}

// NewDistances returns distances between n nodes, none of them known.
func NewDistances(n int) (*Distances, error) {
	if n < 0 || n > MaxNodes {
		return nil, fmt.Errorf("%d nodes: from 0 to %d can be computed", n, MaxNodes)
	}
	return &Distances{n: n, rtt: make([]uint32, n*n)}, nil
}

// Nodes returns the number of nodes.
func (d *Distances) Nodes() int { return d.n }

// Set notes the round trip between two nodes; 0 takes the leg away. A round trip below a
// microsecond counts as one.
func (d *Distances) Set(a, b int, rtt time.Duration) error {
	switch {
	case a < 0 || b < 0 || a >= d.n || b >= d.n || a == b:
		return fmt.Errorf("leg %d–%d: there are nodes 0 to %d, and a leg joins two", a, b, d.n-1)
	case rtt < 0 || rtt > MaxDistance:
		return fmt.Errorf("leg %d–%d: a round trip of %v is not between 0 and %v", a, b, rtt, MaxDistance)
	}
	us := uint32(rtt / time.Microsecond)
	if us == 0 && rtt > 0 {
		us = 1
	}
	d.rtt[a*d.n+b], d.rtt[b*d.n+a] = us, us
	return nil
}

// RTT returns the round trip between two nodes, 0 where it is not known.
func (d *Distances) RTT(a, b int) time.Duration {
	return time.Duration(d.rtt[a*d.n+b]) * time.Microsecond
}

// Close fills what is not known by the shortest ways over what is: a full mesh, where
// packets between two nodes follow the network's links (§V.A).
func (d *Distances) Close() {
	n := d.n
	for k := range n {
		for i := range n {
			ik := d.rtt[i*n+k]
			if ik == 0 {
				continue
			}
			for j := range n {
				kj := d.rtt[k*n+j]
				if kj == 0 || i == j {
					continue
				}
				if ij := d.rtt[i*n+j]; ij == 0 || ik+kj < ij {
					d.rtt[i*n+j] = ik + kj
				}
			}
		}
	}
}

// leg is a known distance between two nodes, a < b.
type leg struct {
	a, b uint16
	rtt  uint32
}

func (d *Distances) legs() []leg {
	var legs []leg
	for a := range d.n {
		for b := a + 1; b < d.n; b++ {
			if rtt := d.rtt[a*d.n+b]; rtt != 0 {
				legs = append(legs, leg{uint16(a), uint16(b), rtt})
			}
		}
	}
	slices.SortStableFunc(legs, func(x, y leg) int { return cmp.Compare(x.rtt, y.rtt) })
	return legs
}

// Path is one chain: the nodes in order, both ends included.
type Path struct {
	Nodes []int
	Sum   time.Duration // of the legs' round trips
	Max   time.Duration // the longest leg's round trip
}

// Relays is the number of nodes between the two ends.
func (p Path) Relays() int { return max(len(p.Nodes)-2, 0) }
