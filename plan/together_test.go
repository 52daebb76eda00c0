package plan

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/plan/verify"
)

// TestTogether: every node is told which flows stay together, and none by where flows come
// from; a plan that says otherwise is refuted, and trace says by what an instance is chosen.
func TestTogether(t *testing.T) {
	s := newSim(t, 17)
	s.site("fra1", 1, 2)
	s.apply(aFunction("default", "fw", nil), aFunction("default", "ids", nil))
	c := aChain("default", "web", through("ids", 2), through("fw", 2))
	c.Spec.Through[1].Together = onpath.TogetherHosts
	c.Spec.Distribution = onpath.DistributionNetwork
	s.apply(c)
	s.settle()
	s.pass(3 * time.Second)
	s.proveAll(t)
	of := map[bool]onpath.Together{false: "", true: onpath.TogetherHosts}
	for n, st := range s.states {
		for _, g := range st.Acked.Datapath.Groups {
			_, k, _ := g.ID.Split()
			if g.Together != of[k == 1] || k == 1 && len(g.Weights) > 0 {
				t.Errorf("%s: the group of element %d has together %q, and %d rows", n, k, g.Together, len(g.Weights))
			}
		}
	}
	tr := Trace(TraceInput{Snapshot: s.snapshot(), Request: onpath.TraceRequest{Tuple: onpath.Tuple{
		Protocol: 6, Src: netip.MustParseAddr("192.0.2.1"), Dst: netip.MustParseAddr("198.51.100.10"), DstPort: 80,
	}}})
	said := false
	for _, h := range tr.Forward {
		said = said || strings.Contains(h.Message, "other flows between the two addresses")
	}
	if !said {
		t.Errorf("trace does not say by what the instance is chosen: %+v", tr.Forward)
	}
	for how, spoil := range map[string]func(*onpath.Group){
		"none":        func(g *onpath.Group) { g.Together = "" },
		"another":     func(g *onpath.Group) { g.Together = onpath.TogetherSource },
		"none, where": func(g *onpath.Group) { g.Weights = []onpath.WeightRow{{Weights: make([]uint32, len(g.Members))}} },
	} {
		plans := cloned(t, s.snapshot().InForce())
		for _, p := range plans {
			for i := range p.Datapath.Groups {
				if g := &p.Datapath.Groups[i]; g.Together != "" && g.Reverse {
					spoil(g)
				}
			}
		}
		if v := verify.Check(verify.Input{Objects: s.objects, Plans: plans}); v.Verdict != onpath.VerdictRefuted {
			t.Errorf("%s: answers' groups choose otherwise than the chain says, and the verdict is %s", how, v.Verdict)
		}
	}
}
