package plan

import (
	"fmt"
	"testing"
	"time"

	"github.com/onpath/onpath"
)

// TestGatewayLetsGoFirst: of a chain that was deleted and whose time to drain is
// up while it has flows, the other nodes keep all that leads on until the
// gateway sends nothing any more: a packet on its way finds no hole.
func TestGatewayLetsGoFirst(t *testing.T) {
	s := newSim(t, 5)
	s.site("fra1", 1, 3)
	s.apply(aFunction("default", "a", nil), aFunction("default", "b", nil), aFunction("default", "c", nil),
		aChain("default", "web", through("a", 1), through("b", 1), through("c", 1)))
	s.settle()
	path := s.chain("default", "web").Status.Path
	nodes := map[string]bool{}
	for _, d := range []string{"web-a", "web-b", "web-c"} {
		for _, i := range s.instances(d) {
			s.busy[i.Metadata.Name] = true
			nodes[i.Spec.Node] = true
		}
	}
	if len(nodes) != 3 {
		t.Fatalf("the elements are on %v; the test wants three nodes", nodes)
	}
	whole := func(when string) {
		t.Helper()
		gw := s.states["fra1-gw"]
		if indexOf(gw.Acked).path(path) == nil {
			return
		}
		for k := range 2 {
			members := 0
			for n := range nodes {
				x := indexOf(s.states[n].Acked)
				if g := x.groups[onpath.GroupOf(path, k+1, false)]; g != nil && len(g.Members) > 0 {
					members++
				}
			}
			if members < 3 {
				t.Fatalf("%s: the gateway still sends, and only %d of 3 nodes know the way to element %d", when, members, k+1)
			}
		}
	}
	s.remove(onpath.KindChain, "default", "web")
	s.watch(func() { whole("while it ends") })
	for range 40 {
		s.now = s.now.Add(time.Second)
		s.hear()
		s.watch(func() { whole("after its time") })
	}
	if n := len(s.instances("web-a")) + len(s.instances("web-b")) + len(s.instances("web-c")); n > 0 {
		t.Errorf("%d instances are left", n)
	}
	for n, st := range s.states {
		if indexOf(st.Acked).path(path) != nil {
			t.Errorf("%s still has the path", n)
		}
	}
}

// TestPathEndsWhole: flows of a chain that was deleted, or that lost an element, are
// led through all its elements until the gateway lets go of them: never to an element
// that has gone before the others, and no longer than the last one may drain.
func TestPathEndsWhole(t *testing.T) {
	chain := func(elements ...string) *onpath.Chain {
		var list []onpath.Element
		for _, e := range elements {
			one := through(e, 1)
			one.Drain = onpath.Duration(map[string]time.Duration{"a": 5 * time.Second, "b": 15 * time.Second, "c": time.Second}[e])
			list = append(list, one)
		}
		return aChain("default", "web", list...)
	}
	for _, nodes := range []int{0, 3} {
		t.Run(fmt.Sprintf("%d nodes beside the gateway", nodes), func(t *testing.T) { pathEndsWhole(t, nodes, chain) })
	}
}

func pathEndsWhole(t *testing.T, nodes int, chain func(elements ...string) *onpath.Chain) {
	for _, c := range []struct {
		what string
		left []string // of the elements a, b, c; none: the chain is deleted
		ends time.Duration
	}{
		{"deleted", nil, 15 * time.Second},
		{"without its first element", []string{"b", "c"}, 5 * time.Second},
		{"without its middle element", []string{"a", "c"}, 15 * time.Second},
		{"without its last elements", []string{"a"}, 15 * time.Second},
		{"without its last element", []string{"a", "b"}, time.Second},
	} {
		t.Run(c.what, func(t *testing.T) {
			s := newSim(t, 5)
			s.site("fra1", 1, nodes)
			s.apply(aFunction("default", "a", nil), aFunction("default", "b", nil), aFunction("default", "c", nil), chain("a", "b", "c"))
			s.settle()
			path, began := s.chain("default", "web").Status.Path, s.now
			for _, d := range []string{"web-a", "web-b", "web-c"} {
				for _, i := range s.instances(d) {
					s.busy[i.Metadata.Name] = d != "web-c" // an element before it answers
				}
			}
			var ended time.Duration
			whole := func() {
				t.Helper()
				x := indexOf(s.states["fra1-gw"].Acked)
				if x.path(path) == nil {
					if ended == 0 {
						ended = s.now.Sub(began)
					}
					return
				}
				for k := range 3 {
					if members := s.membersAnywhere(path, k); members == 0 {
						t.Fatalf("%s after the change the gateway leads flows into the path, and element %d has no instance", s.now.Sub(began), k+1)
					}
				}
			}
			if c.left == nil {
				s.remove(onpath.KindChain, "default", "web")
			} else {
				s.apply(chain(c.left...))
			}
			s.watch(whole)
			for range 40 {
				s.now = s.now.Add(time.Second)
				s.hear()
				s.watch(whole)
				whole()
			}
			if ended < c.ends || ended > c.ends+3*time.Second {
				t.Errorf("the gateway let go of the path after %s; it must after %s", ended, c.ends)
			}
			for n, st := range s.states {
				if indexOf(st.Acked).path(path) != nil {
					t.Errorf("%s still has the path", n)
				}
			}
		})
	}
}

// membersAnywhere counts the instances of an element to which nodes that have any
// packets for it lead them.
func (s *sim) membersAnywhere(path onpath.PathID, k int) (n int) {
	for _, st := range s.states {
		if g := indexOf(st.Acked).groups[onpath.GroupOf(path, k, false)]; g != nil {
			n += len(g.Members)
		}
	}
	return n
}

// TestNewPathFirst: what an element that rewrites sends belongs to the path in force
// before it belongs to one that has ended, in both directions; a new flow would leave
// out the elements that came since.
func TestNewPathFirst(t *testing.T) {
	s := newSim(t, 12)
	s.site("fra1", 1, 2)
	s.apply(aFunction("default", "fw", nil), aFunction("default", "dnat", func(f *onpath.FunctionSpec) { f.Packets = onpath.PacketsRewrite }),
		aChain("default", "web", through("dnat", 1)))
	s.settle()
	s.busy[s.instances("web-dnat")[0].Metadata.Name] = true
	s.apply(aChain("default", "web", through("fw", 1), through("dnat", 1)))
	s.settle()
	seen := 0
	for n, st := range s.states {
		ended := map[onpath.PathID]bool{}
		for _, p := range st.Acked.Datapath.Paths {
			ended[p.ID] = !p.Ended.IsZero()
		}
		for _, table := range st.Acked.Datapath.Tables {
			if !isEmit(table.ID) {
				continue
			}
			over := map[bool]bool{}
			for _, r := range table.Rules {
				if over[r.Reverse] && !ended[r.Path] {
					t.Errorf("%s: a rule of ended paths stands before %+v", n, r)
				}
				if ended[r.Path] {
					over[r.Reverse] = true
					seen++
				}
			}
		}
	}
	if seen < 2 {
		t.Errorf("%d rules are of ended paths: this tests nothing", seen)
	}
}
