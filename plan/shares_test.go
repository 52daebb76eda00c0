package plan

import (
	"strings"
	"testing"
	"time"

	"github.com/onpath/onpath"
)

// shared is a chain of which instances on fra1-n2 get no new flows.
func shared(n int) *onpath.Chain {
	c := aChain("default", "web", through("fw", n))
	c.Spec.Through[0].Weights = map[string]int{"fra1-n2": 0}
	return c
}

func sharedSite(t *testing.T) *sim {
	s := newSim(t, 9)
	s.site("fra1", 1, 2)
	gw := onpath.Clone(s.node("fra1-gw"))
	gw.Spec.Schedulable = new(bool)
	s.apply(gw, aFunction("default", "fw", nil), shared(2))
	s.settle()
	s.pass(3 * time.Second)
	if s.takers() != 1 || s.open() != 2 {
		t.Fatalf("%d of %d instances get new flows", s.takers(), s.open())
	}
	return s
}

// takers counts the members of a chain's first element that get new flows of it.
func (s *sim) takers() int {
	n := 0
	x := indexOf(s.states["fra1-gw"].Acked)
	for _, t := range x.plan.Datapath.Tables {
		if t.ID != onpath.ClassifierTable(onpath.TierTenant) || len(t.Rules) == 0 {
			continue
		}
		for _, m := range x.groups[t.Rules[0].Action.Group].Members {
			if x.vports[m.Vport].State == onpath.VportUp && m.Weight > 0 {
				n++
			}
		}
	}
	return n
}

// TestWeightZero: an instance that gets no new flows takes nothing over.
func TestWeightZero(t *testing.T) {
	serves := func(s *sim, d time.Duration) {
		s.t.Helper()
		for end := s.now.Add(d); s.now.Before(end); {
			s.now = s.now.Add(500 * time.Millisecond)
			s.hear()
			s.watch(func() {
				s.t.Helper()
				if s.takers() == 0 {
					s.t.Fatal("no instance gets new flows")
				}
			})
		}
	}
	t.Run("fewer instances", func(t *testing.T) {
		s := sharedSite(t)
		s.apply(shared(1))
		serves(s, 40*time.Second)
		if l := s.instances("web-fw"); len(l) != 1 || l[0].Spec.Node != "fra1-n1" {
			t.Errorf("%d instances, the first on %s", len(l), l[0].Spec.Node)
		}
	})
	t.Run("node is drained", func(t *testing.T) {
		s := sharedSite(t)
		n := onpath.Clone(s.node("fra1-n1"))
		n.Spec.Drain = true
		s.apply(n)
		serves(s, 2*time.Minute)
		if c := s.drainedCondition("fra1-n1"); c.Reason != onpath.ReasonStuck || !strings.Contains(c.Message, "weight 0") {
			t.Errorf("it does not say why: %+v", c)
		}
		s.apply(aChain("default", "web", through("fw", 2)))
		serves(s, time.Minute)
		if c := s.drainedCondition("fra1-n1"); c.Status != onpath.True {
			t.Errorf("the node is not empty: %+v", c)
		}
	})
	t.Run("function changes", func(t *testing.T) {
		s := sharedSite(t)
		s.apply(aFunction("default", "fw", func(f *onpath.FunctionSpec) { f.Container.Command = []string{"new"} }))
		serves(s, time.Minute)
		if e := s.chain("default", "web").Status.Elements[0]; e.Ready != 2 || e.Outdated != 0 || len(s.instances("web-fw")) != 2 {
			t.Errorf("%+v, %d instances", e, len(s.instances("web-fw")))
		}
	})
	t.Run("at first", func(t *testing.T) {
		s := newSim(t, 9)
		s.site("fra1", 1, 2)
		for _, n := range []string{"fra1-gw", "fra1-n1"} {
			o := onpath.Clone(s.node(n))
			o.Spec.Schedulable = new(bool)
			s.apply(o)
		}
		s.apply(aFunction("default", "fw", nil), shared(1))
		s.settle()
		st := s.chain("default", "web").Status
		if m := st.Conditions[len(st.Conditions)-1].Message; st.Active || !strings.Contains(m, "weight 0") {
			t.Errorf("active %t: %s", st.Active, m)
		}
		c := shared(1)
		c.Spec.Through[0].None = onpath.NoneBypass
		s.apply(c)
		s.settle()
		if !s.chain("default", "web").Status.Active {
			t.Error("an element that may be bypassed is waited for")
		}
	})
}
