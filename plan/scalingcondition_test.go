package plan

import (
	"testing"

	"github.com/onpath/onpath"
)

// TestScalingCondition: a chain says in a condition that its metric is not believed, and why;
// a chain that does not scale says nothing.
func TestScalingCondition(t *testing.T) {
	s := newSim(t, 3)
	s.site("fra1", 1, 1)
	c := aChain("default", "web", onpath.Element{Function: "fw"})
	c.Spec.Scaling = &onpath.Scaling{Elements: map[string]onpath.ElementScaling{"fw": {Min: 1, Max: 3}}}
	s.apply(aFunction("default", "fw", nil), c)
	s.settle()
	for _, x := range []struct {
		status onpath.ScalingStatus
		want   onpath.Condition
	}{
		{onpath.ScalingStatus{Phase: onpath.ScalingStopped, Message: "no value has come"}, onpath.Condition{Status: onpath.False, Reason: onpath.ReasonNoMetric, Message: "no value has come"}},
		{onpath.ScalingStatus{Phase: onpath.ScalingTrying, Doubt: "it is 7"}, onpath.Condition{Status: onpath.False, Reason: onpath.ReasonSameMetric, Message: "it is 7"}},
		{onpath.ScalingStatus{Phase: onpath.ScalingWatching}, onpath.Condition{Status: onpath.True, Reason: "Scaling"}},
	} {
		o := onpath.Clone(s.chain("default", "web"))
		o.Status.Scaling = &x.status
		s.objects[onpath.KeyOf(o)] = o
		s.settle()
		got := condition(s.chain("default", "web").Status.Conditions, "Scaling")
		if got.Status != x.want.Status || got.Reason != x.want.Reason || got.Message != x.want.Message {
			t.Errorf("%+v: %+v", x.status, got)
		}
	}
	o := onpath.Clone(s.chain("default", "web"))
	o.Spec.Scaling, o.Status.Scaling = nil, nil
	s.objects[onpath.KeyOf(o)] = o
	s.settle()
	if got := condition(s.chain("default", "web").Status.Conditions, "Scaling"); got.Type != "" {
		t.Errorf("it does not scale: %+v", got)
	}
}
