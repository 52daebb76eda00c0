package plan

import (
	"testing"
	"time"

	"github.com/onpath/onpath"
)

// fullSite is a cloudlet of two nodes that four instances fill.
func fullSite(t *testing.T) *sim {
	s := newSim(t, 7)
	s.site("fra1", 1, 2)
	gw := onpath.Clone(s.node("fra1-gw"))
	gw.Spec.Schedulable = new(bool)
	s.apply(gw, aFunction("default", "fw", filling(nil)), aChain("default", "web", through("fw", 4)))
	s.settle()
	s.pass(5 * time.Second)
	if n := s.open(); n != 4 {
		t.Fatalf("%d of 4 instances get flows", n)
	}
	for _, i := range s.instances("web-fw") {
		s.spared[i.Metadata.Name] = true
	}
	return s
}

// filling is a function of which a node holds two.
func filling(change func(*onpath.FunctionSpec)) func(*onpath.FunctionSpec) {
	return func(f *onpath.FunctionSpec) {
		f.Resources = onpath.Resources{CPU: 4000, Memory: 4 << 30}
		if change != nil {
			change(f)
		}
	}
}

// TestRoomForTheBroken: what serves makes room for a change once, and no further while
// what came of it does not serve.
func TestRoomForTheBroken(t *testing.T) {
	s := fullSite(t)
	s.broken["web-fw"] = true
	s.apply(aFunction("default", "fw", filling(func(f *onpath.FunctionSpec) { f.Container.Command = []string{"broken"} })))
	for range 120 {
		s.pass(time.Second)
		if n := s.open(); n < 3 {
			t.Fatalf("%d of the 4 instances from before get flows", n)
		}
	}
	s.broken["web-fw"] = false
	s.hear()
	for range 300 {
		s.pass(time.Second)
		if n := s.open(); n < 3 {
			t.Fatalf("mended: %d instances get flows", n)
		}
	}
	if e := s.chain("default", "web").Status.Elements[0]; e.Ready != 4 || e.Outdated != 0 {
		t.Errorf("mended: %+v", e)
	}
}

// TestRoomForNothing: nothing makes room where that is not what is lacking.
func TestRoomForNothing(t *testing.T) {
	another := func(f *onpath.FunctionSpec) { f.Container.Command = []string{"new"} }
	nodes := func(s *sim, change func(*onpath.Node)) {
		for _, n := range []string{"fra1-n1", "fra1-n2"} {
			o := onpath.Clone(s.node(n))
			change(o)
			s.apply(o)
		}
	}
	for what, change := range map[string]func(*sim){
		"far more memory": func(s *sim) {
			s.apply(aFunction("default", "fw", filling(func(f *onpath.FunctionSpec) { another(f); f.Resources.Memory = 40 << 30 })))
		},
		"another part is lacking": func(s *sim) {
			nodes(s, func(n *onpath.Node) { n.Spec.Capacity.Disk = 1 << 30 })
			s.apply(aFunction("default", "fw", filling(func(f *onpath.FunctionSpec) { another(f); f.Resources.Disk = 2 << 30 })))
		},
		"a label that no node has": func(s *sim) {
			c := aChain("default", "web", through("fw", 4))
			c.Spec.Through[0].Place.Nodes = map[string]string{"gpu": "yes"}
			s.apply(aFunction("default", "fw", filling(another)), c)
		},
		"all is cordoned": func(s *sim) {
			nodes(s, func(n *onpath.Node) { n.Spec.Schedulable = new(bool) })
			s.apply(aFunction("default", "fw", filling(another)))
		},
		"image: host is not permitted": func(s *sim) {
			s.hostless["fra1-n1"], s.hostless["fra1-n2"] = true, true
			s.hear()
			s.apply(aFunction("default", "fw", filling(another)))
		},
		"the container runtimes do not answer": func(s *sim) {
			for _, n := range []string{"fra1-n1", "fra1-n2"} {
				s.says[n] = []onpath.Condition{{Type: onpath.ConditionRuntime, Status: onpath.False, Reason: onpath.ReasonRuntimeDown, Message: "it is dead"}}
			}
			s.hear()
			s.apply(aFunction("default", "fw", filling(another)))
		},
	} {
		t.Run(what, func(t *testing.T) {
			s := fullSite(t)
			change(s)
			s.pass(2 * time.Minute)
			if n := s.open(); n != 4 {
				t.Errorf("%d of the 4 instances from before get flows", n)
			}
			if e := s.chain("default", "web").Status.Elements[0]; e.Message == "" {
				t.Errorf("it does not say why: %+v", e)
			}
		})
	}
}
