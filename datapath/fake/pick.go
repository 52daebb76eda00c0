package fake

import (
	"encoding/binary"
	"math"
	"net/netip"
	"slices"

	"github.com/onpath/onpath"
)

// Picker chooses one of members, all of which may be chosen and have a weight,
// for a flow, by its tuple in the chain's from/to orientation. It must depend on
// nothing else, so that both directions choose alike.
type Picker func(g *onpath.Group, members []onpath.Member, oriented onpath.Tuple) int

// Rendezvous is weighted rendezvous hashing: a member that comes or goes moves
// only its own share of new flows.
func Rendezvous(g *onpath.Group, members []onpath.Member, oriented onpath.Tuple) int {
	seed := hashTuple(uint64(g.ID>>1), oriented)
	best, lowest := 0, math.Inf(1)
	for i, m := range members {
		x := mix(seed ^ (uint64(m.Key)+1)*0x9e3779b97f4a7c15)
		u := (float64(x>>11) + 0.5) / (1 << 53)
		if score := -math.Log(u) / float64(m.Weight); score < lowest {
			best, lowest = i, score
		}
	}
	return best
}

func hashTuple(h uint64, t onpath.Tuple) uint64 {
	for _, a := range [2]netip.Addr{t.Src, t.Dst} {
		b := a.As16()
		h = mix(h ^ binary.BigEndian.Uint64(b[:8]))
		h = mix(h ^ binary.BigEndian.Uint64(b[8:]))
	}
	return mix(h ^ uint64(t.SrcPort)<<32 ^ uint64(t.DstPort)<<8 ^ uint64(t.Protocol))
}

// mix is the finalizer of splitmix64.
func mix(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// pickFor chooses a member of g for a new flow that comes from the instance with
// a key, or 0 from the edge.
func (n *Node) pickFor(g *onpath.Group, t onpath.Tuple, upstream uint32) (onpath.VportID, bool) {
	if !g.Together.Apart() && g.Mode != onpath.ModeMirror {
		if to, ok := withOthers(n, g, t); ok {
			return to, ok
		}
	}
	for _, row := range g.Weights {
		if row.From != upstream || g.Mode == onpath.ModeMirror {
			continue
		}
		weighed := *g
		weighed.Members = slices.Clone(g.Members)
		for i := range weighed.Members {
			weighed.Members[i].Weight = row.Weights[i]
		}
		return n.pick(&weighed, t)
	}
	return n.pick(g, t)
}

// pick chooses a member of g by the members' own weights, for a flow with tuple t
// as it stands in the packet. Members that are closed, draining or away are passed
// over.
func (n *Node) pick(g *onpath.Group, t onpath.Tuple) (onpath.VportID, bool) {
	members := make([]onpath.Member, 0, 8)
	for _, m := range g.Members {
		if v := n.vports[m.Vport]; v != nil && v.State == onpath.VportUp && m.Weight > 0 {
			members = append(members, m)
		}
	}
	if len(members) == 0 {
		return 0, false
	}
	return members[n.options.Pick(g, members, partOf(g, t))].Vport, true
}

// home finds the instance that knows a running connection of which this place knows
// nothing, because the instance that it passed here died. The members of g are asked
// in the order in which they would be picked, the first one last; the packet goes to
// the next one that knows the connection or is on another node, which asks on.
// asked is the member that it came for, and that does not know it, or 0.
func (n *Node) home(g *onpath.Group, t onpath.Tuple, asked onpath.VportID) onpath.VportID {
	first, ok := n.pick(g, t)
	if !ok || first == asked || n.function(first) != nil {
		return asked
	}
	if !hasMember(g, asked) {
		asked = 0 // of another plan's
	}
	rest := make([]onpath.Member, 0, 8)
	for _, m := range g.Members {
		if m.Vport != first && n.takes(m.Vport) && n.function(m.Vport) == nil {
			m.Weight = max(m.Weight, 1)
			rest = append(rest, m)
		}
	}
	oriented := partOf(g, t)
	for len(rest) > 0 {
		i := n.options.Pick(g, rest, oriented)
		m := rest[i].Vport
		rest = slices.Delete(rest, i, i+1)
		switch {
		case asked != 0:
			if m == asked {
				asked = 0
			}
		case n.local(m) == nil || n.anywhere(flowKey{m, t.Reverse()}) != nil:
			return m
		}
	}
	return first
}
