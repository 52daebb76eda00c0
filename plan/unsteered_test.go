package plan

import (
	"slices"
	"testing"
	"time"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/plan/verify"
)

// TestUplinkNotSteered: as long as a gateway says that it does not steer what comes in at an
// uplink, whatever the reason, the chain is not active, verify refutes it, and both name the
// uplink; a reason under which all is steered changes nothing.
func TestUplinkNotSteered(t *testing.T) {
	for _, r := range onpath.UplinkReasons() {
		t.Run(r.Reason, func(t *testing.T) {
			s := newSim(t, 7)
			s.site("fra1", 1, 1)
			s.apply(aFunction("default", "a", nil), aChain("default", "web", through("a", 1)))
			s.pass(3 * time.Second)
			look := func() (onpath.Condition, *onpath.ChainVerification) {
				c := s.chain("default", "web")
				i := slices.IndexFunc(c.Status.Conditions, func(c onpath.Condition) bool { return c.Type == "Active" })
				sn := s.snapshot()
				p := verify.Check(verify.Input{Now: s.now, Objects: s.objects, Plans: sn.InForce(),
					Unsteered: map[string][]onpath.Condition{"fra1-gw": onpath.Unsteered(sn.States["fra1-gw"].Report.Conditions)}})
				return c.Status.Conditions[i], &p.Chains[0]
			}
			well := func(when string) {
				t.Helper()
				if active, verified := look(); active.Status != onpath.True || verified.Verdict != onpath.VerdictProved {
					t.Fatalf("%s: %+v, %+v", when, active, verified)
				}
			}
			well("before")
			s.says["fra1-gw"] = []onpath.Condition{{Type: onpath.ConditionUplink + "core", Status: onpath.False, Reason: r.Reason, Message: "why"}}
			s.pass(3 * time.Second)
			if r.Steers {
				well("although " + r.Reason)
			} else {
				active, verified := look()
				want := "uplink core of node fra1-gw is not steered (" + r.Reason + "): see that node's condition Uplink/core"
				if active.Status != onpath.False || active.Reason != onpath.ReasonUnsteered || active.Message != want {
					t.Errorf("the chain says %+v", active)
				}
				if verified.Verdict != onpath.VerdictRefuted || verified.Counterexample.At != "fra1-gw" {
					t.Errorf("verify says %+v", verified)
				}
			}
			s.says["fra1-gw"] = nil
			s.pass(3 * time.Second)
			well("after")
		})
	}
}
