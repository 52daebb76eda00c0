package plan

import (
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
