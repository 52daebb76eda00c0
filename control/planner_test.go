package control_test

import (
	"context"
	"strings"
	"testing"

	"github.com/onpath/onpath/plan"
)

// TestPlannerFails: a planner that fails on what it is given ends nothing. The nodes
// keep their plans, the server says so, and goes on with the next change.
func TestPlannerFails(t *testing.T) {
	s := threeNodes(t)
	s.apply(function("fw"))
	s.apply(web(1))
	s.until("active", s.active)
	s.until("one instance", func() bool { return len(s.instances()) == 1 })
	before := s.plan("gw")

	s.c.PlanBy(func(*plan.Snapshot) *plan.Result { var none []int; _ = none[len(none)]; return nil })
	s.apply(web(2))
	s.until("the server says so", func() bool {
		err := s.c.Ready(context.Background())
		return err != nil && strings.Contains(err.Error(), "index out of range")
	})
	s.until("an event says so", func() bool { return s.hasEvent("PlannerFailed") })
	if s.plan("gw") != before || !s.active() || len(s.instances()) != 1 {
		t.Error("something changed without a plan")
	}

	s.c.PlanBy(plan.Make)
	s.apply(web(3))
	s.until("three instances", func() bool { return len(s.instances()) == 3 })
	if err := s.c.Ready(context.Background()); err != nil {
		t.Errorf("when it plans again: %v", err)
	}
}
