package node_test

import (
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/onpath/onpath"
)

// TestSlowCount: reports go on while flows are counted, which is done once at a time,
// and a count that began before an instance or a path began to drain says nothing of
// them.
func TestSlowCount(t *testing.T) {
	b := newFixture(t)
	step := make(chan struct{})
	var walks, began atomic.Int32
	b.path.walking = func() {
		if walks.Add(1) > 1 {
			t.Error("two counts at once")
		}
		began.Add(1)
		<-step
		walks.Add(-1)
	}
	r := b.run()
	defer func() { r.stop() }()
	letGo := sync.OnceFunc(func() { close(step) })
	defer letGo() // whatever fails
	in := routed("web", 16)
	plan := func(g uint64, ended time.Time) {
		t.Helper()
		in.Draining = !ended.IsZero()
		p := planOf(g, in)
		p.Datapath.Paths = []onpath.Path{{ID: 4, Ended: ended}}
		r.plan(p)
		b.until("acknowledged", func() bool { return r.server.last().Plan == g })
	}
	first := time.Unix(1000, 0)
	plan(1, time.Time{})
	r.untilState("web", onpath.InstanceReady)
	plan(2, first)
	b.until("a count begins", func() bool { return began.Load() == 1 })
	n, seen := len(r.server.since(0)), time.Now()
	b.until("reports go on", func() bool { return len(r.server.since(n)) > 3 })
	if got := r.server.last(); got.Instances[0].Flows != 1 || len(got.Paths) != 0 {
		t.Errorf("before a count has ended: %d flows, paths %v; want one and none", got.Instances[0].Flows, got.Paths)
	}

	// Taken back, and let go again with flows that the count has not seen.
	plan(3, time.Time{})
	b.path.set(func() {
		b.path.flows = []onpath.FlowEntry{
			{Vport: 1, Kind: onpath.NextVport, Next: 16, Path: 4}, {Vport: 1, Kind: onpath.NextVport, Next: 16, Path: 4},
		}
	})
	plan(4, first.Add(time.Minute))
	n = len(r.server.since(0))
	took, ended := time.Since(seen), time.Now()
	step <- struct{}{}
	b.until("the next count begins", func() bool { return began.Load() == 2 })
	if rest := time.Since(ended); rest < took {
		t.Errorf("it rested for %v after a count of %v", rest, took)
	}
	step <- struct{}{}
	b.until("they are counted", func() bool {
		got := r.server.last()
		return got.Instances[0].Flows == 2 && got.Paths[4] == 2
	})
	for _, got := range r.server.since(n) {
		if flows, ok := got.Paths[4]; got.Instances[0].Flows == 0 || ok && flows == 0 {
			t.Errorf("a count from before said that no flows are left: %+v, paths %v", got.Instances[0], got.Paths)
		}
	}

	b.path.set(func() { b.path.flows = nil })
	b.until("the next count begins", func() bool { return began.Load() >= 3 })
	letGo()
	b.until("no flows are left", func() bool {
		got := r.server.last()
		flows, ok := got.Paths[4]
		return got.Instances[0].Flows == 0 && ok && flows == 0
	})
}
