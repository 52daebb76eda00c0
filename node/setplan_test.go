package node_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/onpath/onpath"
)

// full makes the state folder refuse the plan, until it is let go.
func (b *fixture) full() (letGo func()) {
	b.t.Helper()
	file := filepath.Join(b.dir, "plan.json")
	aside := filepath.Join(filepath.Dir(b.dir), "plan.aside")
	must(b.t, os.Rename(file, aside))
	must(b.t, os.MkdirAll(filepath.Join(file, "in the way"), 0o755))
	return func() {
		must(b.t, os.RemoveAll(file))
		must(b.t, os.Rename(aside, file))
	}
}

// TestPlanRefusedForAWhile: the server sends a plan once. One that cannot be saved
// is tried again until it is taken, and its error stays although the plan before is
// in force and applied again.
func TestPlanRefusedForAWhile(t *testing.T) {
	b := newFixture(t)
	r := b.run()
	r.plan(planOf(1, routed("web", 16)))
	r.untilState("web", onpath.InstanceReady)
	b.until("acknowledged", func() bool { return r.server.last().Plan == 1 })
	letGo := b.full()
	r.Plan(t.Context(), planOf(2, routed("web", 16), routed("new", 17)))
	refused := func() bool { return strings.Contains(r.server.last().PlanError, "save the plan") }
	b.until("the error is reported", refused)
	n := b.path.count()
	b.machine.Kill(b.id("web"), 1)
	b.until("the plan before is applied again", func() bool { return b.path.count() > n+1 })
	r.untilState("web", onpath.InstanceReady)
	if rep := r.Report(); !strings.Contains(rep.PlanError, "save the plan") || r.Health() == nil {
		t.Errorf("the error is forgotten: %q", rep.PlanError)
	}
	letGo()
	b.until("plan 2 is acknowledged", func() bool { return r.server.last().Plan == 2 && r.server.last().PlanError == "" })
	r.untilState("new", onpath.InstanceReady)

	letGo = b.full()
	r.Plan(t.Context(), planOf(3, routed("web", 16)))
	b.until("the error is reported", refused)
	r.Plan(t.Context(), planOf(2, routed("web", 16), routed("new", 17))) // as it is
	letGo()
	b.until("no error is left", func() bool { return r.server.last().PlanError == "" })
	r.plan(planOf(4, routed("new", 17)))
	b.until("plan 4 is acknowledged", func() bool { return r.server.last().Plan == 4 })
	if _, ok := r.server.instance("new"); !ok {
		t.Error("a plan that another has replaced was taken")
	}
	wrong := planOf(5)
	wrong.Node = "n2"
	r.Plan(t.Context(), wrong)
	b.until("the error is reported", func() bool { return strings.Contains(r.server.last().PlanError, "not for node") })
}
