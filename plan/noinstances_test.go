package plan

import (
	"testing"
	"time"

	"github.com/onpath/onpath"
)

// TestElementWithoutInstances: a path through an element that is to have no instances
// keeps its flows when it ends.
func TestElementWithoutInstances(t *testing.T) {
	s := newSim(t, 8)
	s.site("fra1", 1, 2)
	off := aDeployment("default", "off", "fw", 0)
	ids := onpath.Element{Deployment: "off", None: onpath.NoneBypass}
	s.apply(aFunction("default", "fw", nil), off, aChain("default", "web", ids, through("fw", 1)))
	s.settle()
	old := s.chain("default", "web").Status.Path
	if s.chain("default", "web").Status.Active != true {
		t.Fatalf("%+v", s.chain("default", "web").Status)
	}
	for _, i := range s.instances("web-fw") {
		s.busy[i.Metadata.Name] = true
	}
	s.apply(aChain("default", "web", through("fw", 1), ids))
	s.pass(10 * time.Second)
	if p := indexOf(s.states["fra1-gw"].Acked).path(old); p == nil || p.Closed {
		t.Fatalf("the path has flows and is over: %+v", p)
	}
	clear(s.busy)
	s.pass(10 * time.Second)
	if p := indexOf(s.states["fra1-gw"].Acked).path(old); p != nil {
		t.Errorf("the path has no flows and stays: %+v", p)
	}
}
