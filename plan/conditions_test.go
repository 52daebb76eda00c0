package plan

import (
	"slices"
	"testing"

	"github.com/onpath/onpath"
)

// TestConditionsOfRemovedUplinks: what a node said of an uplink goes with the uplink, and
// what the server said of a gateway with the last.
func TestConditionsOfRemovedUplinks(t *testing.T) {
	s := newSim(t, 1)
	s.site("fra1", 1, 1)
	s.settle()
	types := func() (out []string) {
		for _, c := range s.node("fra1-gw").Status.Conditions {
			out = append(out, c.Type)
		}
		return out
	}
	report := func(conditions ...string) {
		s.report("fra1-gw")
		r := *s.states["fra1-gw"].Report
		for _, c := range conditions {
			r.Conditions = append(r.Conditions, onpath.Condition{Type: c, Status: onpath.True})
		}
		s.states["fra1-gw"].Report = &r
		s.think()
	}
	report("Underlay", "Uplink/core", "Uplink/access")
	for _, c := range []string{"Uplink/core", "Uplink/access", "Underlay", "Gateway", "Ready", "Planned"} {
		if !slices.Contains(types(), c) {
			t.Fatalf("%s is not among %v", c, types())
		}
	}
	report() // an agent that has not looked yet
	if !slices.Contains(types(), "Uplink/access") {
		t.Errorf("a report without conditions takes them away: %v", types())
	}
	n := onpath.Clone(s.node("fra1-gw"))
	n.Spec.Uplinks = nil
	s.apply(n)
	report("Underlay")
	for _, c := range []string{"Uplink/core", "Uplink/access", "Gateway"} {
		if slices.Contains(types(), c) {
			t.Errorf("%s stays: %v", c, types())
		}
	}
}
