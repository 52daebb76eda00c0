package plan

import (
	"testing"
	"time"

	"github.com/onpath/onpath"
)

// TestNodeAwayHoldsNothingUp: a chain begins, and changes, without the instances on a
// node whose agent is away, if there are others.
func TestNodeAwayHoldsNothingUp(t *testing.T) {
	s := newSim(t, 4)
	s.site("fra1", 1, 2)
	gw := onpath.Clone(s.node("fra1-gw"))
	gw.Spec.Schedulable = new(bool)
	d := aDeployment("default", "fw", "fw", 2)
	d.Spec.Place.Cloudlets = []string{"fra1"}
	s.apply(gw, aFunction("default", "fw", nil), aFunction("default", "cache", nil), d)
	s.settle()
	s.mute["fra1-n2"] = true
	s.pass(10 * time.Second) // less than what has its instances replaced

	s.apply(aChain("default", "web", onpath.Element{Deployment: "fw"}))
	s.settle()
	st := s.chain("default", "web").Status
	if !st.Active {
		t.Fatalf("it waits: %+v", st.Conditions)
	}
	s.apply(aChain("default", "web", onpath.Element{Deployment: "fw"}, through("cache", 1)))
	s.pass(3 * time.Second)
	st = s.chain("default", "web").Status
	if len(st.Cloudlets) != 1 {
		t.Errorf("its change waits: %+v", st.Conditions)
	}
	clear(s.mute)
	s.pass(3 * time.Second)
	if n := s.open(); n != 2 {
		t.Errorf("%d of 2 instances get flows when the agent is back", n)
	}
}
