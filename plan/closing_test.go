package plan

import (
	"fmt"
	"testing"
	"time"

	"github.com/onpath/onpath"
)

// TestGatewayCloses: a path whose elements stand at its gateway and elsewhere is
// closed at the gateway before any node lets go of its members; new flows are never
// led into a path by a gateway that has no way on. All of it goes in the end.
func TestGatewayCloses(t *testing.T) {
	for seed := range uint64(20) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) { gatewayCloses(t, seed) })
	}
}

func gatewayCloses(t *testing.T, seed uint64) {
	s := newSim(t, seed)
	s.site("fra1", 1, 3)
	at := func(name, node string, n int) onpath.Element {
		e := through(name, n)
		e.Drain = onpath.Duration(5 * time.Second)
		if node != "" {
			e.Place.Nodes = map[string]string{"name": node}
		}
		return e
	}
	s.apply(aFunction("default", "a", nil), aFunction("default", "b", nil), aFunction("default", "c", nil))
	s.apply(aChain("default", "web", at("a", "fra1-gw", 1), at("b", "", 3), at("c", "fra1-gw", 1)))
	s.settle()
	path := s.chain("default", "web").Status.Path
	for _, d := range []string{"web-a", "web-b", "web-c"} {
		for _, i := range s.instances(d) {
			s.busy[i.Metadata.Name] = true
		}
	}
	before := map[string]map[onpath.GroupID]int{}
	members := func(node string) map[onpath.GroupID]int {
		out := map[onpath.GroupID]int{}
		for id, g := range indexOf(s.states[node].Acked).groups {
			if g.Path == path {
				out[id] = len(g.Members)
			}
		}
		return out
	}
	for n := range s.states {
		before[n] = members(n)
	}
	closed := false
	look := func() {
		t.Helper()
		p := indexOf(s.states["fra1-gw"].Acked).path(path)
		if p == nil || p.Closed {
			closed = closed || p != nil
			return
		}
		for n, was := range before {
			if indexOf(s.states[n].Acked).path(path) == nil && len(was) > 0 {
				t.Fatalf("%s let go of the path before the gateway closed it", n)
			}
			now := members(n)
			for id, k := range was {
				if k > 0 && now[id] == 0 {
					t.Fatalf("group %d at %s has no member, and the gateway has not closed the path", id, n)
				}
			}
		}
		for _, v := range s.states["fra1-gw"].Acked.Datapath.Vports {
			if v.State != onpath.VportUp && v.Kind != onpath.VportRemote {
				t.Fatalf("vport %d of the path is %s; what is under way must pass it", v.ID, v.State)
			}
		}
	}
	s.remove(onpath.KindChain, "default", "web")
	s.watch(look)
	for range 20 {
		s.now = s.now.Add(time.Second)
		s.hear()
		s.watch(look)
		look()
	}
	if !closed {
		t.Error("the gateway never closed the path")
	}
	for n, st := range s.states {
		if indexOf(st.Acked).path(path) != nil {
			t.Errorf("%s still has the path", n)
		}
	}
	for _, d := range []string{"web-a", "web-b", "web-c"} {
		if left := s.instances(d); len(left) > 0 {
			t.Errorf("%d instances of %s are left", len(left), d)
		}
	}
}

// TestIdleChainGoes: what a deleted chain had goes at once if it has no flows,
// whatever its drain.
func TestIdleChainGoes(t *testing.T) {
	s := newSim(t, 3)
	s.site("fra1", 1, 2)
	e := through("a", 2)
	e.Drain = onpath.Duration(time.Hour)
	s.apply(aFunction("default", "a", nil), aChain("default", "web", e))
	s.settle()
	s.remove(onpath.KindChain, "default", "web")
	for range 6 {
		s.settle()
		s.now = s.now.Add(time.Second)
		s.hear()
	}
	s.settle()
	if left := s.instances("web-a"); len(left) > 0 {
		t.Errorf("%d idle instances are left", len(left))
	}
}
