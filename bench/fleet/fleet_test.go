package fleet

import (
	"testing"
	"time"

	"github.com/onpath/onpath/plan"
)

// BenchmarkMake plans for 1,000 nodes when one instance has failed.
func BenchmarkMake(b *testing.B) {
	f, err := New(Size{Cloudlets: 20, Nodes: 50, Chains: 500}, time.Now())
	if err != nil {
		b.Fatal(err)
	}
	s, p := f.FailedSnapshot(), new(plan.Planner)
	p.Make(f.Snapshot())
	for b.Loop() {
		p.Make(s)
	}
}

// TestFleet: a small fleet settles, and a plan answers a failure with new plans only
// where something changes.
func TestFleet(t *testing.T) {
	f, err := New(Size{Cloudlets: 2, Nodes: 4, Chains: 10}, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	if r := plan.Make(f.Snapshot()); len(r.Plans)+len(r.Create)+len(r.Update)+len(r.Delete) > 0 {
		t.Errorf("it is not at rest: %d plans, %d updates", len(r.Plans), len(r.Update))
	}
	if r := plan.Make(f.FailedSnapshot()); len(r.Plans) == 0 || len(r.Plans) > 4 {
		t.Errorf("%d plans follow from a failure in one cloudlet of four nodes", len(r.Plans))
	}
	if err := f.RemoveChain(1, 3); err != nil {
		t.Fatal(err)
	}
}
