package fake

import (
	"time"

	"github.com/onpath/onpath"
)

// affinity is what flows have in common that meet one member of a group.
type affinity struct {
	group onpath.GroupID // or that of the other direction, the smaller one
	part  onpath.Tuple
}

// noted is which member they meet.
type noted struct {
	key  uint32
	seen time.Time // when the last one began
}

// affinityStays is how long a member is noted that none of the flows has any more.
const affinityStays = time.Minute

// partOf is the part of a tuple, as it stands in the packet, by which a group chooses.
func partOf(g *onpath.Group, t onpath.Tuple) onpath.Tuple {
	if g.Reverse {
		t = t.Reverse()
	}
	return g.Together.Of(t)
}

// withOthers is the member that others of a new flow's part have.
func withOthers(n *Node, g *onpath.Group, t onpath.Tuple) (onpath.VportID, bool) {
	a := affinity{g.ID &^ 1, partOf(g, t)}
	x := n.together[a]
	if x == nil || n.now().Sub(x.seen) > affinityStays && !anyOf(n, a) {
		return 0, false
	}
	for _, m := range g.Members {
		if m.Key == x.key {
			return m.Vport, n.takes(m.Vport) && n.function(m.Vport) == nil
		}
	}
	return 0, false
}

// noteAffinity has new flows of the same part meet the member that a flow begins with.
func noteAffinity(n *Node, g *onpath.Group, t onpath.Tuple, to onpath.VportID) {
	if !g.Together.Apart() {
		n.together[affinity{g.ID &^ 1, partOf(g, t)}] = &noted{n.keys[to], n.now()}
	}
}

// anyOf reports whether a flow is known that has the member noted for its part.
func anyOf(n *Node, a affinity) bool {
	for k, f := range n.flows {
		g := n.groups[f.group]
		if g != nil && g.ID&^1 == a.group && f.kind == onpath.NextVport && n.keys[f.next] == n.together[a].key &&
			partOf(g, k.tuple) == a.part {
			return true
		}
	}
	return false
}
