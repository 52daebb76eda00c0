package control

import (
	"testing"
	"time"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/plan"
	"github.com/onpath/onpath/store/mem"
)

// TestSilenceMakesPlans: a node that goes on reporting has nothing planned, however much
// time passes; one that is silent has, when it counts as away and when it counts as gone.
func TestSilenceMakesPlans(t *testing.T) {
	now := time.Now()
	c := New(Options{Store: mem.New(mem.Options{}), Clock: func() time.Time { return now }})
	c.started = now.Add(-time.Hour)
	report := onpath.NodeReport{Node: "n1"}
	c.nodes["n1"] = &session{connected: true, state: plan.NodeState{Report: &report, Seen: now}}
	for range 20 {
		planned := now
		now = now.Add(time.Second)
		c.NodeReported(report)
		if next := c.next(time.Time{}, planned); !next.Equal(now.Add(onpath.NodeTimeout)) || len(c.wake) > 0 {
			t.Fatalf("at %v it plans at %v, woken %t", now, next, len(c.wake) > 0)
		}
	}
	if next := c.next(now.Add(time.Second), now); !next.Equal(now.Add(time.Second)) {
		t.Errorf("what happens earlier waits until %v", next)
	}
	seen, planned := now, now.Add(onpath.NodeTimeout)
	if next := c.next(time.Time{}, planned); !next.Equal(seen.Add(plan.DefaultGrace)) {
		t.Errorf("a node that is away is gone at %v", next)
	}
	if next := c.next(time.Time{}, seen.Add(plan.DefaultGrace)); !next.IsZero() {
		t.Errorf("nothing is left to come, and it plans at %v", next)
	}
}
