package plan

import (
	"slices"
	"testing"

	"github.com/onpath/onpath"
)

// TestActiveIsInForce: a chain is active, and its present path listed, once its gateways
// have acknowledged the path: a connection that begins then does not pass it by. While
// a change is under way it stays active, by the path from before.
func TestActiveIsInForce(t *testing.T) {
	for seed := range uint64(20) {
		s := newSim(t, seed)
		s.site("fra1", 1, 2)
		s.apply(aNode("fra1-gw2", "fra1", 190, true))
		s.connect("fra1-gw2")
		for _, f := range []string{"fw", "ids"} {
			s.apply(aFunction("default", f, nil))
		}
		s.apply(aChain("default", "web", through("fw", 1)))
		s.untilListed(false)
		s.apply(aChain("default", "web", through("fw", 1), through("ids", 1)))
		s.think()
		s.untilListed(true)
	}
}

// untilListed plans and acknowledges in random order until the chain's present path is
// listed, and holds what is said against what the gateways have acknowledged.
func (s *sim) untilListed(active bool) {
	s.t.Helper()
	for range 400 {
		s.think()
		st := s.chain("default", "web").Status
		x, y := indexOf(s.states["fra1-gw"].Acked), indexOf(s.states["fra1-gw2"].Acked)
		both := inForceAt(x, st.Path) && inForceAt(y, st.Path)
		switch listed := len(st.Cloudlets) > 0; {
		case listed && !both:
			s.t.Fatalf("listed before the gateways have it: %+v", st)
		case st.Active != (active || both):
			s.t.Fatalf("active %t, in force %t, active before %t", st.Active, both, active)
		case listed:
			return
		}
		if waiting := s.waiting(); len(waiting) > 0 {
			n := waiting[s.rng.IntN(len(waiting))]
			s.ack(n, s.rng.IntN(len(s.states[n].Sent)))
		}
	}
	s.t.Fatalf("never listed: %+v", s.chain("default", "web").Status)
}

func inForceAt(x *index, id onpath.PathID) bool {
	return x != nil && slices.ContainsFunc(x.plan.Datapath.Paths, func(p onpath.Path) bool {
		return p.ID == id && !p.Began.IsZero() && p.Ended.IsZero()
	})
}
