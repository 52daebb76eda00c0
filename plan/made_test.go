package plan

import (
	"maps"
	"slices"
	"testing"

	"github.com/onpath/onpath"
)

// TestMade: a label that is like one of onpath's own has no user's object deleted.
func TestMade(t *testing.T) {
	s := newSim(t, 1)
	s.site("fra1", 1, 1)
	before := *s.snapshot()
	before.Objects = maps.Clone(before.Objects)
	n := s.node("fra1-n1")
	labelled := *n
	labelled.Metadata.Labels = map[string]string{onpath.AcceleratorLabel: "gpu"}
	d := aDeployment("acme", "web", "web", 1)
	d.Metadata.Labels = map[string]string{onpath.ServiceLabel: "cdn"}
	s.apply(&labelled, aTenant("acme"), aFunction("acme", "web", nil), d)
	after := s.snapshot()
	if err := CheckChange(&before, after, []onpath.Key{onpath.KeyOf(n), onpath.KeyOf(d)}); err != nil {
		t.Errorf("labels that mark nothing: %v", err)
	}
	if gone := Make(after).Delete; slices.ContainsFunc(gone, func(k onpath.Key) bool { return !k.Kind.ReadOnly() }) {
		t.Errorf("the planner deletes %v", gone)
	}
	for name, o := range map[string]onpath.Object{
		"function": aFunction("acme", "ids", nil), "deployment": aDeployment("acme", "more", "web", 1),
	} {
		o.Meta().Labels = map[string]string{onpath.AcceleratorLabel: "gpu"}
		s.apply(o)
		err := CheckChange(&before, s.snapshot(), []onpath.Key{onpath.KeyOf(o)})
		if onpath.CodeOf(err) != onpath.CodeInvalid {
			t.Errorf("%s: %v", name, err)
		}
		s.remove(onpath.KeyOf(o).Kind, "acme", o.Meta().Name)
	}
}
