package plan

import (
	"fmt"
	"strings"
	"testing"

	"github.com/onpath/onpath"
)

// spread are n prefixes that nothing joins.
func spread(first, n int) []onpath.Prefix {
	var out []string
	for i := range n {
		out = append(out, fmt.Sprintf("%d.%d.%d.0/24", first, i/128, 2*(i%128)))
	}
	return prefixes(out...)
}

// TestRulesOfElements: what an element selects, and what instances send, are rules of
// tables as well; a data path that has no room for one takes nothing of a plan.
func TestRulesOfElements(t *testing.T) {
	rewrites := func(f *onpath.FunctionSpec) { f.Packets = onpath.PacketsRewrite }
	selecting := func(n, elements int) *onpath.Chain {
		c := aChain("default", "web")
		for k := range elements {
			e := through("fw", 1)
			e.Function, e.Deployment, e.Instances = "", onpath.Ref(fmt.Sprintf("d%d", k)), nil
			e.Select = []onpath.Selector{{Sources: spread(10, n), Destinations: spread(20, n)}}
			c.Spec.Through = append(c.Spec.Through, e)
		}
		return c
	}
	site := func(t *testing.T) *sim {
		s := newSim(t, 1)
		s.site("fra1", 1, 1)
		s.apply(aFunction("default", "fw", nil), aFunction("default", "nat", rewrites), aDeployment("default", "nat", "nat", 1))
		for k := range 4 {
			s.apply(aDeployment("default", fmt.Sprintf("d%d", k), "fw", 1))
		}
		s.settle()
		return s
	}
	refused := func(t *testing.T, s *sim, c *onpath.Chain, field string, words ...string) {
		t.Helper()
		before, after := s.snapshot(), s.snapshot()
		after.Objects = map[onpath.Key]onpath.Object{onpath.KeyOf(c): c}
		for k, o := range s.objects {
			if k != onpath.KeyOf(c) {
				after.Objects[k] = o
			}
		}
		err := CheckChange(before, after, []onpath.Key{onpath.KeyOf(c)})
		if field == "" {
			if err != nil {
				t.Errorf("refused: %v", err)
			}
			return
		}
		if onpath.CodeOf(err) != onpath.CodeNoCapacity || !strings.Contains(err.Error(), field) {
			t.Fatalf("got %v, want no room in %s", err, field)
		}
		for _, w := range words {
			if !strings.Contains(err.Error(), w) {
				t.Errorf("%q does not say %q", err, w)
			}
		}
	}
	t.Run("one element", func(t *testing.T) {
		refused(t, site(t), selecting(600, 1), "spec.through[0].select", "more than 131072 rules")
	})
	t.Run("many elements", func(t *testing.T) {
		refused(t, site(t), selecting(120, 4), "spec.through[", "more than 131072") // 14,400 at 20 places
	})
	t.Run("few elements", func(t *testing.T) {
		refused(t, site(t), selecting(120, 2), "")
	})
	t.Run("what instances send", func(t *testing.T) {
		s := site(t)
		wide := func(name string, first int) *onpath.Chain {
			c := aChain("default", name, onpath.Element{Deployment: "nat"})
			c.Spec.From, c.Spec.To = onpath.Endpoints{Prefixes: spread(first, 1)}, onpath.Endpoints{Prefixes: spread(first+1, 10_000)}
			for p := range uint16(6) {
				c.Spec.Select = append(c.Spec.Select, onpath.Selector{DestinationPorts: []onpath.PortRange{{First: 10 * p, Last: 10 * p}}})
			}
			return c
		}
		s.apply(wide("a", 11))
		refused(t, s, wide("b", 13), "spec.through[0]", "deployment default/nat", "at most 262144")
		elsewhere := wide("b", 13)
		elsewhere.Spec.Through[0].Deployment = "d0" // its instances send what they were given
		refused(t, s, elsewhere, "")
	})
}
