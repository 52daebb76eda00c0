package plan

import (
	"testing"
	"time"

	"github.com/onpath/onpath"
)

// TestDeadNodeAndDraining: a node that is dead for good, and still declared, does not
// have instances elsewhere take the whole of their time to drain.
func TestDeadNodeAndDraining(t *testing.T) {
	s := newSim(t, 8)
	s.site("fra1", 1, 3)
	gw := onpath.Clone(s.node("fra1-gw"))
	gw.Spec.Schedulable = new(bool)
	s.apply(gw, aFunction("default", "fw", nil), aChain("default", "web", through("fw", 3)))
	s.settle()
	s.dead["fra1-n3"], s.past["fra1-n3"] = true, true
	s.pass(2 * time.Minute)
	s.apply(aChain("default", "web", through("fw", 1)))
	s.pass(10 * time.Second)
	for _, i := range s.instances("web-fw") {
		if !i.Spec.Draining.IsZero() && i.Spec.Node != "fra1-n3" {
			t.Errorf("%s drains without flows", i.Metadata.Name)
		}
	}
}
