package plan

import (
	"slices"
	"strings"
	"testing"

	"github.com/onpath/onpath"
)

// TestUnplaceable: the reason of a chain whose instances have no place tells what may get
// free by itself from what somebody has to change.
func TestUnplaceable(t *testing.T) {
	for _, c := range []struct {
		name    string
		chain   func(*onpath.Chain)
		spec    func(*onpath.FunctionSpec)
		arrange func(*sim)
		reason  string
	}{
		{"no node has the label", func(c *onpath.Chain) { c.Spec.Through[0].Place.Nodes = map[string]string{"zone": "b"} }, nil, nil, onpath.ReasonUnplaceable},
		{"more than a node has", nil, func(f *onpath.FunctionSpec) { f.Resources.CPU = 900_000 }, nil, onpath.ReasonUnplaceable},
		{"the only node is away", nil, nil, func(s *sim) {
			delete(s.states, "fra1-gw")
			delete(s.states, "fra1-n1")
		}, "NoCapacity"},
	} {
		s := newSim(t, 3)
		s.site("fra1", 1, 1)
		for _, n := range []string{"fra1-gw", "fra1-n1"} {
			s.states[n].Report.Capacity.CPU = 4000
		}
		if c.arrange != nil {
			c.arrange(s)
		}
		web := aChain("default", "web", through("fw", 1))
		if c.chain != nil {
			c.chain(web)
		}
		s.apply(aFunction("default", "fw", c.spec), web)
		s.think()
		at := slices.IndexFunc(s.chain("default", "web").Status.Conditions, func(c onpath.Condition) bool { return c.Type == "Placed" })
		if at < 0 {
			t.Fatalf("%s: nothing is said of its place: %+v", c.name, s.chain("default", "web").Status)
		}
		if got := s.chain("default", "web").Status.Conditions[at]; got.Status != onpath.False || got.Reason != c.reason {
			t.Errorf("%s: %+v, want reason %s", c.name, got, c.reason)
		}
	}
}

// TestGatewayWaits: a chain without a gateway names those that wait for the operator.
func TestGatewayWaits(t *testing.T) {
	s := newSim(t, 3)
	s.site("fra1", 1, 1)
	snapshot := s.snapshot()
	web := aChain("default", "web", through("fw", 1))
	snapshot.Objects[onpath.KeyOf(web)] = web
	fw := aFunction("default", "fw", nil)
	snapshot.Objects[onpath.KeyOf(fw)] = fw
	k := onpath.Key{Kind: onpath.KindNode, Name: "fra1-gw"}
	snapshot.Waiting = []*onpath.Node{snapshot.Objects[k].(*onpath.Node)}
	delete(snapshot.Objects, k)
	delete(snapshot.States, k.Name)
	for _, o := range Make(snapshot).Update {
		if c, ok := o.(*onpath.Chain); ok {
			at := slices.IndexFunc(c.Status.Conditions, func(c onpath.Condition) bool { return c.Type == "Active" })
			got := c.Status.Conditions[at]
			if got.Reason != onpath.ReasonNotAccepted || !strings.Contains(got.Message, "onpath node accept fra1-gw") {
				t.Errorf("%+v", got)
			}
			return
		}
	}
	t.Error("nothing is said of the chain")
}
