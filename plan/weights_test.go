package plan

import (
	"slices"
	"testing"
	"time"

	"github.com/onpath/onpath"
)

// checkRows holds the matrix of weights against the plan it stands in: rows are for
// instances of this node, and leave nobody without an instance who has one by the
// members' own weights.
func (s *sim) checkRows(x *index) {
	s.t.Helper()
	keys := map[uint32]bool{}
	for _, g := range x.groups {
		for _, m := range g.Members {
			keys[m.Key] = keys[m.Key] || x.local[m.Vport] != nil
		}
	}
	for _, g := range x.groups {
		for _, r := range g.Weights {
			if !keys[r.From] {
				s.t.Fatalf("%s: group %d has weights for what comes from %d, which is no instance of this node", x.plan.Node, g.ID, r.From)
			}
			for j, m := range g.Members {
				if (r.Weights[j] == 0) != (m.Weight == 0) {
					s.t.Fatalf("%s: group %d gives member %d the weight %d from %d, and %d otherwise", x.plan.Node, g.ID, m.Vport, r.Weights[j], r.From, m.Weight)
				}
			}
		}
	}
}

// rows are the weights, by the members' nodes, for what comes from a node's instances of
// one deployment to another, in a direction.
func (s *sim) rows(from, node, to string, reverse bool) (list []map[string]uint32) {
	x := indexOf(s.states[node].Acked)
	byKey := map[uint32]*onpath.Instance{}
	for _, i := range s.instances("") {
		byKey[i.Spec.Key] = i
	}
	for _, g := range x.groups {
		if g.Reverse != reverse || len(g.Members) == 0 || byKey[g.Members[0].Key].Spec.Deployment != to {
			continue
		}
		for _, r := range g.Weights {
			if i := byKey[r.From]; i.Spec.Deployment != from || i.Spec.Node != node {
				s.t.Errorf("%s has weights for what comes from %s of %s", node, i.Metadata.Name, i.Spec.Node)
			}
			row := map[string]uint32{}
			for j, m := range g.Members {
				row[byKey[m.Key].Spec.Node] = r.Weights[j]
			}
			list = append(list, row)
		}
	}
	return list
}

// TestWeightsFrom: flows stay on their node, by the weights for what comes from there; they
// follow a change of the matrix, instances that move, and weight 0.
func TestWeightsFrom(t *testing.T) {
	s := newSim(t, 17)
	s.site("fra1", 1, 2)
	gw := onpath.Clone(s.node("fra1-gw"))
	gw.Spec.Schedulable = new(bool)
	s.apply(gw, aFunction("default", "fw", nil), aFunction("default", "cache", nil))
	c := aChain("default", "web", through("fw", 2), through("cache", 2))
	for i := range c.Spec.Through {
		c.Spec.Through[i].Place.Spread = onpath.SpreadNode
		c.Spec.Through[i].WeightsFrom = map[string]map[string]int{"fra1-n1": {"fra1-n1": 9}, "fra1-n2": {"fra1-n1": 2, "fra1-n2": 500}}
	}
	s.apply(c)
	s.settle()
	s.pass(3 * time.Second)
	expect := func(when string, n1, n2 map[string]uint32) {
		t.Helper()
		for node, want := range map[string]map[string]uint32{"fra1-n1": n1, "fra1-n2": n2} {
			for _, reverse := range []bool{false, true} {
				from, to := "web-fw", "web-cache"
				if reverse {
					from, to = to, from
				}
				got := s.rows(from, node, to, reverse)
				if want == nil && len(got) == 0 {
					continue
				}
				if len(got) != 1 || len(got[0]) != len(want) || !slices.Equal(values(got[0]), values(want)) {
					t.Errorf("%s: from %s of %s to %s (reverse %v) the weights are %v, must be %v", when, from, node, to, reverse, got, want)
				}
			}
		}
		for _, g := range indexOf(s.states["fra1-gw"].Acked).groups {
			if len(g.Weights) > 0 {
				t.Errorf("%s: the gateway, which runs no instance, has weights for what comes from one: %v", when, g.Weights)
			}
		}
	}
	expect("at first", map[string]uint32{"fra1-n1": 9, "fra1-n2": 1}, map[string]uint32{"fra1-n1": 2, "fra1-n2": 500})

	path := s.chain("default", "web").Status.Path
	next := onpath.Clone(s.chain("default", "web"))
	for i := range next.Spec.Through {
		next.Spec.Through[i].Weights = map[string]int{"fra1-n1": 0}
		next.Spec.Through[i].WeightsFrom = map[string]map[string]int{"fra1-n2": {"fra1-n1": 2, "fra1-n2": 500}}
	}
	s.apply(next)
	s.settle()
	expect("with weight 0", nil, map[string]uint32{"fra1-n1": 0, "fra1-n2": 500})
	if p := s.chain("default", "web").Status.Path; p != path {
		t.Errorf("path %d became %d by a change of weights", path, p)
	}
}

// values are those of a map in the order of its keys.
func values(m map[string]uint32) (list []uint32) {
	for _, n := range []string{"fra1-gw", "fra1-n1", "fra1-n2"} {
		if v, ok := m[n]; ok {
			list = append(list, v)
		}
	}
	return list
}
