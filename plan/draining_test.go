package plan

import (
	"testing"
	"time"

	"github.com/onpath/onpath"
)

// TestDrainingGetsNoNewFlows: as long as an instance drains beside others of its element,
// no node chooses it for a new flow.
func TestDrainingGetsNoNewFlows(t *testing.T) {
	s := fraWeb(t, 3, 2)
	for _, i := range s.instances("web-fw") {
		s.busy[i.Metadata.Name] = true
	}
	s.apply(aChain("default", "web", through("fw", 1)))
	s.settle()
	for range 20 {
		s.pass(time.Second)
		for _, i := range s.instances("web-fw") {
			for n, st := range s.states {
				if v := indexOf(st.Acked).vports[i.Spec.Vport]; !i.Spec.Draining.IsZero() && v != nil && v.State != onpath.VportDraining {
					t.Fatalf("%s drains and is %s at %s", i.Metadata.Name, v.State, n)
				}
			}
		}
	}
	if s.open() != 1 || len(s.instances("web-fw")) != 2 {
		t.Errorf("%d of %d instances get new flows", s.open(), len(s.instances("web-fw")))
	}
}
