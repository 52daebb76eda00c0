package plan

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/onpath/onpath"
)

// TestCutFlowsOfOthers: a chain with existing: cut that begins over another one gives
// that a new path, whose flows are not taken for older ones, and the old path ends at
// once; one that does not cut, comes behind, is another tenant's, or selects other
// traffic leaves it alone.
func TestCutFlowsOfOthers(t *testing.T) {
	over := func(tenant string, change func(*onpath.ChainSpec)) *onpath.Chain {
		c := aChain(tenant, "over", through("f", 1))
		c.Spec.Existing, c.Spec.Priority = onpath.ExistingCut, 1
		if tenant == onpath.OperatorTenant {
			c.Spec.Tier, c.Spec.Priority = onpath.TierOperator, 0
		}
		if change != nil {
			change(&c.Spec)
		}
		return c
	}
	for what, c := range map[string]struct {
		chain *onpath.Chain
		cuts  bool
	}{
		"operator's":                {over("operator", nil), true},
		"of higher priority":        {over("default", nil), true},
		"selects a part of it":      {over("operator", func(c *onpath.ChainSpec) { c.Select = []onpath.Selector{{Protocol: "udp"}} }), true},
		"the other way round":       {over("operator", func(c *onpath.ChainSpec) { c.From, c.To = c.To, c.From }), true},
		"leaves old flows alone":    {over("operator", func(c *onpath.ChainSpec) { c.Existing = onpath.ExistingPass }), false},
		"adopts nothing, cuts none": {over("operator", func(c *onpath.ChainSpec) { c.Adopt = new(onpath.Duration) }), false},
		"of lower priority":         {over("default", func(c *onpath.ChainSpec) { c.Priority = -1 }), false},
		"selects other traffic": {over("operator", func(c *onpath.ChainSpec) {
			c.From, c.To = onpath.Endpoints{Prefixes: prefixes("10.9.0.0/16")}, onpath.Endpoints{Prefixes: prefixes("203.0.113.0/24")}
		}), false},
	} {
		t.Run(what, func(t *testing.T) {
			s := newSim(t, 3)
			s.site("fra1", 1, 2)
			s.endless = true
			s.apply(aFunction("default", "a", nil), aFunction("default", "f", nil), aFunction("operator", "f", nil), aChain("default", "web", through("a", 1)))
			s.pass(3 * time.Second)
			old, inst := s.chain("default", "web").Status.Path, s.instances("web-a")
			s.apply(c.chain)
			s.pass(10 * time.Second)
			now := s.chain("default", "web").Status.Path
			if (now != old) != c.cuts {
				t.Fatalf("the path was %d and is %d", old, now)
			}
			told := slices.ContainsFunc(s.events, func(e Event) bool {
				return e.Reason == "OlderFlows" && e.About.Name == "over" && strings.Contains(e.Message, "chain default/web")
			})
			if told != (c.chain.Spec.Existing == onpath.ExistingPass) {
				t.Errorf("events: %+v", s.events)
			}
			if list := s.instances("web-a"); len(list) != 1 || list[0].Metadata.UID != inst[0].Metadata.UID || !list[0].Spec.Draining.IsZero() {
				t.Errorf("its instances are %+v", list)
			}
			for name, st := range s.states {
				was, is := indexOf(st.Acked).path(old), indexOf(st.Acked).path(now)
				switch {
				case c.cuts && was != nil:
					t.Errorf("%s still has the path of the flows that were to be cut: %+v", name, was)
				case is != nil && (is.Began.IsZero() || c.cuts && is.Adopt != 0):
					t.Errorf("%s: the path is %+v", name, is)
				}
			}
			s.pass(2 * time.Minute)
			if last := s.chain("default", "web").Status.Path; last != now {
				t.Errorf("later the path changed from %d to %d", now, last)
			}
		})
	}
}
