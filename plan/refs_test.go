package plan

import (
	"strings"
	"testing"

	"github.com/onpath/onpath"
)

// TestLoopPastTheFirstUse: a deployment that several chains use is in no loop with any.
func TestLoopPastTheFirstUse(t *testing.T) {
	s := newSim(t, 8)
	s.site("fra1", 1, 2)
	chain := func(name string, tier onpath.Tier, to string) *onpath.Chain {
		c := aChain(onpath.OperatorTenant, name, onpath.Element{Deployment: "fw"})
		c.Spec.Tier, c.Spec.From, c.Spec.To = tier, onpath.Endpoints{Prefixes: prefixes("10.1.0.0/16")}, onpath.Endpoints{Prefixes: prefixes(to)}
		return c
	}
	s.apply(aFunction(onpath.OperatorTenant, "fw", nil), aDeployment(onpath.OperatorTenant, "fw", "fw", 1),
		chain("a", onpath.TierOperator, "198.51.100.1"), chain("b", onpath.TierOperator, "198.51.100.2"))
	for to, loop := range map[string]bool{"198.51.100.1": true, "198.51.100.2": true, "198.51.100.3": false} {
		_, why := s.refusal(chain("c", onpath.TierTenant, to))
		if strings.Contains(why, "a loop") != loop || !loop && why != "" {
			t.Errorf("to %s: %q", to, why)
		}
	}
}
