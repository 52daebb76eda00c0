package plan

import (
	"testing"

	"github.com/onpath/onpath"
)

// TestWantedFromElsewhere: a number of instances that the snapshot says holds over the
// specification's, also when that is applied again, for deployments and short forms, and
// within what a data path chooses among.
func TestWantedFromElsewhere(t *testing.T) {
	s := newSim(t, 1)
	s.site("fra1", 1, 2)
	two := 2
	short := onpath.Element{Function: "fw", Instances: &two}
	object := aDeployment("default", "ids", "fw", 1)
	chain := aChain("default", "web", short, onpath.Element{Deployment: "ids"})
	s.apply(aFunction("default", "fw", func(f *onpath.FunctionSpec) { f.Resources.CPU, f.Resources.Memory = 1, 4<<20 }), object, chain)
	running := func(deployment string) (n int) {
		for _, i := range s.instances(deployment) {
			if i.Spec.Draining.IsZero() {
				n++
			}
		}
		return n
	}
	key := func(deployment string) onpath.Key {
		return onpath.Key{Kind: onpath.KindDeployment, Tenant: "default", Name: deployment}
	}
	made := onpath.ShortDeployment("web", "fw")
	for _, step := range []struct {
		wanted     map[onpath.Key]int
		short, ids int
	}{
		{nil, 2, 1},
		{map[onpath.Key]int{key("ids"): 4, key(made): 1}, 1, 4},
		{map[onpath.Key]int{key("ids"): onpath.MaxMembers + 100, key(made): -1}, 0, onpath.MaxMembers},
		{nil, 2, 1},
	} {
		s.wanted = step.wanted
		s.apply(object, chain)
		s.settle()
		if got := running(made); got != step.short {
			t.Errorf("wanted %v: the short form has %d instances, want %d", step.wanted, got, step.short)
		}
		if got := running("ids"); got != step.ids {
			t.Errorf("wanted %v: ids has %d instances, want %d", step.wanted, got, step.ids)
		}
		if d := s.objects[key("ids")].(*onpath.Deployment); d.Status.Desired != step.ids {
			t.Errorf("wanted %v: %d instances are desired, want %d", step.wanted, d.Status.Desired, step.ids)
		}
	}
}
