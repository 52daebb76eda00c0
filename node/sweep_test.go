package node_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/onpath/onpath"
)

// leftover is a fixture in which an agent has left the instance old, which the plan that
// is saved, of generation 2, does not name.
func leftover(t *testing.T) *fixture {
	t.Helper()
	b := newFixture(t)
	r := b.run()
	r.plan(planOf(1, routed("old", 17)))
	r.untilState("old", onpath.InstanceReady)
	b.until("acknowledged", func() bool { return r.server.last().Plan == 1 })
	r.stop()
	saved := fmt.Sprintf(`{"node":%q,"wanted":%s,"acked":true}`, nodeName, mustJSON(t, planOf(2)))
	must(t, os.WriteFile(filepath.Join(b.dir, "plan.json"), []byte(saved), 0o600))
	return b
}

// TestSweepHangs: a leftover whose process does not stop holds up no plan, and what
// has its id waits for its end.
func TestSweepHangs(t *testing.T) {
	b := leftover(t)
	release := make(chan struct{})
	deadline := make(chan time.Time, 10)
	b.recorder.stopping = func(ctx context.Context, name string) error {
		at, _ := ctx.Deadline()
		deadline <- at
		select {
		case <-release:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	r := b.run()
	b.until("it is being stopped", func() bool { return b.recorder.count("stop old") == 1 })
	if left := time.Until(<-deadline); left <= 0 || left > 2*time.Minute {
		t.Errorf("it may take %v to stop", left)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	taken := make(chan error, 1)
	go func() { taken <- r.SetPlan(ctx, planOf(3, routed("old", 17), routed("new", 18))) }()
	select {
	case err := <-taken:
		must(t, err)
	case <-ctx.Done():
		close(release)
		t.Fatalf("no plan is taken: %v", <-taken)
	}
	r.untilState("new", onpath.InstanceReady)
	if got := r.untilState("old", onpath.InstanceStarting); got.Message == "" || b.recorder.count("start old") != 1 {
		t.Errorf("it does not wait for the leftover's end: %+v", got)
	}
	close(release)
	r.untilState("old", onpath.InstanceReady)
	b.until("plan 3 is acknowledged", func() bool { return r.server.last().Plan == 3 })
	r.plan(planOf(4))
	b.gone()
}

// TestSweepWhenRuntimeIsBack: what could not be cleared away because its runtime did
// not answer goes when that does.
func TestSweepWhenRuntimeIsBack(t *testing.T) {
	b := leftover(t)
	var answers atomic.Bool
	b.runtime.adopt = func() error {
		if answers.Load() {
			return nil
		}
		return errors.New("connection refused")
	}
	r := b.run()
	b.until("the plan is acknowledged", func() bool { return r.server.last().Plan == 2 })
	time.Sleep(100 * time.Millisecond)
	if len(b.leftovers()) == 0 {
		t.Error("it is gone, and nobody knows whether it runs")
	}
	answers.Store(true)
	b.gone()
	b.until("it is told", func() bool { return slices.Contains(r.server.reasons(), "Swept") }) // after it is gone
}
