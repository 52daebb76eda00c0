package plan

import (
	"testing"
	"time"

	"github.com/onpath/onpath"
)

// TestIdle: paths have their chain's idle times, and an instance that stands in
// several chains is told the longest. A change of them replaces no instance.
func TestIdle(t *testing.T) {
	s := newSim(t, 3)
	s.site("fra1", 1, 2)
	long, short := aChain("default", "long"), aChain("default", "short")
	for _, c := range []*onpath.Chain{long, short} {
		c.Spec.Through = []onpath.Element{{Deployment: "ids"}}
	}
	long.Spec.Idle = onpath.Idle{UDP: onpath.Duration(time.Hour)}
	short.Spec.Idle = onpath.Idle{UDP: onpath.Duration(10 * time.Second), ICMP: onpath.Duration(3 * time.Minute)}
	short.Spec.Priority = 1
	s.apply(aFunction("default", "fw", nil), aDeployment("default", "ids", "fw", 1), long, short)
	s.settle()
	check := func(udp time.Duration) string {
		t.Helper()
		told := ""
		for name, state := range s.states {
			for _, i := range state.Acked.Instances {
				told += i.Name
				if i.Idle.UDP != onpath.Duration(udp) || i.Idle.ICMP != onpath.Duration(3*time.Minute) || i.Idle.TCP != onpath.DefaultIdle.TCP {
					t.Errorf("instance %s on %s is told %+v", i.Name, name, i.Idle)
				}
			}
			for _, p := range state.Acked.Datapath.Paths {
				want := long.Spec.Idle
				if p.Chain == "default/short" {
					want = short.Spec.Idle
				}
				if p.Idle != want {
					t.Errorf("the path of %s on %s has %+v, must have %+v", p.Chain, name, p.Idle, want)
				}
			}
		}
		if told == "" {
			t.Error("there is no instance to tell")
		}
		return told
	}
	before := check(time.Hour)
	long = onpath.Clone(s.chain("default", "long"))
	long.Spec.Idle.UDP = onpath.Duration(2 * time.Hour)
	s.apply(long)
	s.settle()
	if after := check(2 * time.Hour); after != before {
		t.Errorf("instances %s became %s", before, after)
	}
}
