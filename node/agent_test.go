package node_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/internal/netnsrun"
	"github.com/onpath/onpath/node"
	"github.com/onpath/onpath/runtime/fake"
)

func TestInstanceComesAndGoes(t *testing.T) {
	b := newBed(t)
	r := b.run()
	r.plan(planOf(1, routed("web", 16, "10.9.0.5/24")))
	got := r.untilState("web", onpath.InstanceReady)
	b.until("plan 1 is acknowledged", func() bool { return r.server.last().Plan == 1 })
	if got, _ = r.server.instance("web"); !got.Wired {
		t.Error("acknowledged, but not wired")
	}
	if s := b.path.state(16); s != onpath.VportUp {
		t.Errorf("vport is %q, want up", s)
	}
	r.plan(planOf(2))
	r.untilState("web", onpath.InstanceStopped)
	b.gone()

	lines := b.story.all()
	rules, stop := slices.Index(lines, "apply 2 []"), slices.Index(lines, "stop web")
	if rules < 0 || stop < 0 || rules > stop {
		t.Errorf("rules go before the instance stops; got\n%s", strings.Join(lines, "\n"))
	}
	start := slices.Index(lines, "start web")
	if wired := slices.Index(lines, "apply 1 [16:closed]"); wired < 0 || wired > start {
		t.Errorf("the vport is in force, closed, before the process starts; got\n%s", strings.Join(lines, "\n"))
	}
	for _, want := range []string{"Started", "Ready", "Stopped"} {
		if !slices.Contains(r.server.reasons(), want) {
			t.Errorf("no event %s in %v", want, r.server.reasons())
		}
	}
}

// The vport closes before the process starts again, and the waits double.
func TestRestartWithBackoff(t *testing.T) {
	b := newBed(t)
	clock := newHands()
	b.clock = clock
	r := b.run()
	r.plan(planOf(1, routed("web", 16)))
	r.untilState("web", onpath.InstanceReady)
	for i, wait := range []time.Duration{100, 200, 400, 800} {
		wait *= time.Millisecond
		b.machine.Kill(b.id("web"), 137)
		b.until(fmt.Sprintf("the wait of %s is told", wait), func() bool {
			got, _ := r.server.instance("web")
			return got.State == onpath.InstanceFailed && strings.Contains(got.Message, "next attempt in "+wait.String()) && clock.awaited(wait)
		})
		if s := b.path.state(16); s != onpath.VportClosed {
			t.Fatalf("death %d: the vport is %q, want closed", i, s)
		}
		clock.move(wait - time.Millisecond)
		time.Sleep(20 * time.Millisecond)
		if n := b.story.count("start web"); n != i+1 {
			t.Fatalf("death %d: %d starts before the wait is over", i, n)
		}
		clock.move(time.Millisecond)
		b.until("it starts again", func() bool { return b.story.count("start web") == i+2 })
		r.untilState("web", onpath.InstanceReady)
		if got, _ := r.server.instance("web"); got.Restarts != i+1 {
			t.Errorf("%d restarts reported, want %d", got.Restarts, i+1)
		}
	}
	clock.move(61 * time.Second) // a good minute
	b.machine.Kill(b.id("web"), 1)
	b.until("the wait is the first again", func() bool {
		got, _ := r.server.instance("web")
		return strings.Contains(got.Message, "exited with code 1; next attempt in 100ms")
	})
	if !slices.Contains(r.server.reasons(), "BackOff") || !slices.Contains(r.server.reasons(), "Exited") {
		t.Errorf("events %v lack Exited or BackOff", r.server.reasons())
	}
}

func TestClosedBeforeRestart(t *testing.T) {
	b := newBed(t)
	r := b.run()
	r.plan(planOf(1, routed("web", 16)))
	r.untilState("web", onpath.InstanceReady)
	device := b.index("op000010")
	b.machine.Kill(b.id("web"), 9)
	b.until("it runs again", func() bool { return b.story.count("start web") == 2 })
	r.untilState("web", onpath.InstanceReady)
	lines := b.story.all()
	second := lastIndex(lines, "start web")
	closed := -1
	for i, l := range lines[:second] {
		if l == "apply 1 [16:closed]" {
			closed = i
		}
	}
	if up := slices.Index(lines, "apply 1 [16:up]"); closed < up || closed < 0 {
		t.Errorf("closed before it starts again; got\n%s", strings.Join(lines, "\n"))
	}
	if now := b.index("op000010"); now != device {
		t.Errorf("the device was made anew (index %d, then %d); it is kept across restarts", device, now)
	}
}

func lastIndex(lines []string, want string) int {
	for i := len(lines) - 1; i >= 0; i-- {
		if lines[i] == want {
			return i
		}
	}
	return -1
}

func (b *bed) index(name string) int {
	b.t.Helper()
	for _, l := range b.links() {
		if l.Attrs().Name == name {
			return l.Attrs().Index
		}
	}
	b.t.Fatalf("no device %s", name)
	return 0
}

// A new agent finds everything as it was and touches nothing.
func TestAdoption(t *testing.T) {
	b := newBed(t)
	r := b.run()
	probed := routed("web", 16, "10.9.0.5/24")
	probed.Spec.Health = onpath.Health{Exec: []string{"true"}, Every: onpath.Duration(20 * time.Millisecond)}
	r.plan(planOf(3, probed, routed("ids", 17)))
	r.untilState("web", onpath.InstanceReady)
	r.untilState("ids", onpath.InstanceReady)
	b.until("plan 3 is acknowledged", func() bool { return r.server.last().Plan == 3 })
	device, id := b.index("op000010"), b.id("web")
	r.stop()
	before := len(b.story.all())

	r = b.run()
	if h := r.Hello(); h.Plan == nil || h.Plan.Generation != 3 || h.Report.Plan != 3 {
		t.Errorf("after a restart hello says plan %+v, report %d; want 3 and 3", h.Plan, h.Report.Plan)
	}
	r.untilState("web", onpath.InstanceReady)
	b.machine.Kill(b.id("ids"), 1) // it is watched again
	b.until("ids runs again", func() bool { return b.story.count("start ids") == 2 })
	for _, l := range b.story.all()[before:] {
		if strings.Contains(l, "16:closed") || l == "start web" || l == "stop web" || strings.HasPrefix(l, "apply") && !strings.Contains(l, "16:up") {
			t.Errorf("the new agent did %q", l)
		}
	}
	if b.index("op000010") != device || b.id("web") != id {
		t.Error("device or process is another")
	}
	if !slices.Contains(r.server.reasons(), "Adopted") {
		t.Errorf("no event Adopted in %v", r.server.reasons())
	}
}

// What died while no agent ran is closed at once and started again.
func TestDiedWhileAgentWasAway(t *testing.T) {
	b := newBed(t)
	r := b.run()
	r.plan(planOf(1, routed("web", 16)))
	r.untilState("web", onpath.InstanceReady)
	r.stop()
	b.machine.Kill(b.id("web"), 1)
	before := len(b.story.all())
	r = b.run()
	r.untilState("web", onpath.InstanceReady)
	after := b.story.all()[before:]
	if after[0] != "apply 1 [16:closed]" {
		t.Errorf("the first configuration of the new agent must close it; got\n%s", strings.Join(after, "\n"))
	}
}

// A runtime that does not answer changes nothing.
func TestRuntimeAwayAtStart(t *testing.T) {
	b := newBed(t)
	r := b.run()
	r.plan(planOf(1, routed("web", 16)))
	r.untilState("web", onpath.InstanceReady)
	r.stop()
	before := len(b.story.all())
	fail := make(chan error, 1)
	fail <- errors.New("connection refused")
	b.runtime.adopt = func() error {
		select {
		case err := <-fail:
			return err
		default:
			return nil
		}
	}
	r = b.run()
	if s := b.path.state(16); s != onpath.VportUp {
		t.Fatalf("vport is %q while the runtime does not answer, want up", s)
	}
	b.until("adopted later", func() bool { return slices.Contains(r.server.reasons(), "Adopted") })
	for _, l := range b.story.all()[before:] {
		if strings.Contains(l, "closed") || strings.HasPrefix(l, "start") {
			t.Errorf("the new agent did %q", l)
		}
	}
}

// Leftovers of a crash that no plan names go, after the rules.
func TestSweep(t *testing.T) {
	b := newBed(t)
	r := b.run()
	r.plan(planOf(1, routed("web", 16), routed("old", 17)))
	r.untilState("web", onpath.InstanceReady)
	r.untilState("old", onpath.InstanceReady)
	b.until("acknowledged", func() bool { return r.server.last().Plan == 1 })
	r.stop()
	// The next plan came and was saved, and the agent died.
	half := filepath.Join(b.dir, "netns", "acme-half-0123456789")
	if err := netnsrun.Create(half); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(b.dir, "plan.json")
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	p := planOf(2, routed("web", 16))
	saved := fmt.Sprintf(`{"node":%q,"wanted":%s,"inForce":%s}`, nodeName, mustJSON(t, p), mustJSON(t, planOf(1, routed("web", 16), routed("old", 17))))
	if len(data) == 0 || os.WriteFile(file, []byte(saved), 0o600) != nil {
		t.Fatal("cannot write the plan")
	}
	r = b.run()
	b.until("old is gone", func() bool {
		return !slices.ContainsFunc(b.leftovers(), func(s string) bool {
			return strings.Contains(s, "old") || strings.Contains(s, "half") || s == "op000011"
		})
	})
	if got := b.machine.Running(); len(got) != 1 {
		t.Errorf("running: %v, want web alone", got)
	}
	lines := b.story.all()
	if rules, stop := slices.Index(lines, "apply 2 [16:up]"), slices.Index(lines, "stop old"); rules < 0 || stop < rules {
		t.Errorf("rules go first; got\n%s", strings.Join(lines, "\n"))
	}
	r.untilState("web", onpath.InstanceReady)
}

// A configuration that the data path refuses leaves the old one, in which what
// happens here still counts.
func TestApplyError(t *testing.T) {
	b := newBed(t)
	r := b.run()
	r.plan(planOf(1, routed("web", 16)))
	r.untilState("web", onpath.InstanceReady)
	b.until("acknowledged", func() bool { return r.server.last().Plan == 1 })
	b.path.set(func() {
		b.path.fail = func(c *onpath.DatapathConfig) error {
			if c.Generation == 2 {
				return errors.New("table 9 is missing")
			}
			return nil
		}
	})
	r.plan(planOf(2, routed("web", 16), routed("new", 17)))
	b.until("the error is reported", func() bool {
		rep := r.server.last()
		return rep.Plan == 1 && strings.Contains(rep.PlanError, "table 9")
	})
	if r.Health() == nil {
		t.Error("healthy with a plan that cannot be put in force")
	}
	b.machine.Kill(b.id("web"), 1)
	b.until("closed in the old plan", func() bool { return b.story.count("apply 1 [16:closed]") >= 2 })
	if b.story.count("start new") != 0 {
		t.Error("an instance whose vport is not in force was started")
	}
	b.path.set(func() { b.path.fail = nil })
	b.until("plan 2 is acknowledged", func() bool { return r.server.last().Plan == 2 && r.server.last().PlanError == "" })
	r.untilState("new", onpath.InstanceReady)
}

func TestImageMissing(t *testing.T) {
	b := newBed(t)
	missing := true
	b.machine.Set(knobs(func(*onpath.FunctionSpec) error {
		if missing {
			return onpath.Errorf(onpath.CodeNotFound, "no image acme/f")
		}
		return nil
	}))
	r := b.run()
	r.plan(planOf(1, routed("web", 16)))
	got := r.untilState("web", onpath.InstanceFailed)
	if !strings.Contains(got.Message, "no image acme/f") {
		t.Errorf("message %q does not say what is missing", got.Message)
	}
	b.until("the plan is acknowledged all the same", func() bool { return r.server.last().Plan == 1 })
	if !slices.Contains(r.server.reasons(), "ImageMissing") {
		t.Errorf("no event ImageMissing in %v", r.server.reasons())
	}
	r.plan(planOf(2))
	r.untilState("web", onpath.InstanceStopped)
	b.gone()
}

func TestDraining(t *testing.T) {
	b := newBed(t)
	b.path.flows = []onpath.FlowEntry{
		{Vport: 1, Kind: onpath.NextVport, Next: 16}, {Vport: 1, Kind: onpath.NextVport, Next: 16, Path: 4},
		{Vport: 16, Kind: onpath.NextExit}, {Vport: 1, Kind: onpath.NextVport, Next: 17},
	}
	r := b.run()
	in := routed("web", 16)
	r.plan(planOf(1, in))
	r.untilState("web", onpath.InstanceReady)
	in.Draining = true
	p := planOf(2, in)
	p.Datapath.Paths = []onpath.Path{{ID: 4, Ended: time.Now()}, {ID: 5, Ended: time.Now()}, {ID: 6}}
	r.plan(p)
	b.until("its flows are counted", func() bool {
		got, _ := r.server.instance("web")
		return got.Flows == 2
	})
	if s := b.path.state(16); s != onpath.VportDraining {
		t.Errorf("vport is %q, want draining", s)
	}
	b.until("ended paths are counted", func() bool {
		paths := r.server.last().Paths
		return len(paths) == 2 && paths[4] == 1 && paths[5] == 0
	})
	b.machine.Kill(b.id("web"), 0)
	b.until("it is not started again", func() bool {
		got, _ := r.server.instance("web")
		return got.State == onpath.InstanceFailed && strings.Contains(got.Message, "not started again")
	})
	if b.story.count("start web") != 1 {
		t.Error("a draining instance was started again")
	}
}

func TestResize(t *testing.T) {
	b := newBed(t)
	r := b.run()
	in := routed("web", 16)
	in.Spec.Resources = onpath.Resources{CPU: 100, Memory: 64 << 20}
	r.plan(planOf(1, in))
	r.untilState("web", onpath.InstanceReady)
	in.Spec.Resources.CPU = 700
	r.plan(planOf(2, in))
	b.until("its limits are changed", func() bool { return b.machine.Resources(b.id("web")).CPU == 700 })
	if b.story.count("start web") != 1 {
		t.Error("a resize is no restart")
	}
}

func TestSameNameNewUID(t *testing.T) {
	b := newBed(t)
	r := b.run()
	r.plan(planOf(1, routed("web", 16)))
	r.untilState("web", onpath.InstanceReady)
	other := routed("web", 18)
	other.UID = "another"
	r.plan(planOf(2, other))
	b.until("only the new one is left", func() bool {
		return b.path.state(18) == onpath.VportUp && len(b.machine.Running()) == 1 && !slices.Contains(b.leftovers(), "op000010")
	})
	r.untilState("web", onpath.InstanceReady)
}

// A plan that names again what is just being taken away.
func TestNamedAgainWhileItGoes(t *testing.T) {
	b := newBed(t)
	b.edit = func(o *node.Options) { o.StopGrace = 300 * time.Millisecond }
	r := b.run()
	in := routed("web", 16)
	in.Spec.Container.Command = []string{"stubborn"}
	r.plan(planOf(1, in))
	r.untilState("web", onpath.InstanceReady)
	r.plan(planOf(2))
	b.until("it is being stopped", func() bool { return b.story.count("stop web") == 1 })
	r.plan(planOf(3, in))
	b.until("it runs anew", func() bool { return b.story.count("start web") == 2 })
	b.until("plan 3 is acknowledged", func() bool { return r.server.last().Plan == 3 })
}

func TestOff(t *testing.T) {
	b := newBed(t)
	r := b.run()
	r.plan(planOf(1, routed("web", 16), routed("ids", 17)))
	r.untilState("web", onpath.InstanceReady)
	r.untilState("ids", onpath.InstanceReady)
	o := node.OffOptions{StateDir: b.dir, NetNS: b.host, Datapath: b.path, Runtimes: map[string]onpath.Runtime{node.KindContainer: b.runtime}}
	if _, err := node.Off(t.Context(), o); onpath.CodeOf(err) != onpath.CodeConflict || b.path.removed {
		t.Fatalf("Off beside a living agent: got %v, want CodeConflict and nothing removed", err)
	}
	r.stop()
	for round := range 2 {
		removed, err := node.Off(context.Background(), o)
		if err != nil {
			t.Fatalf("round %d: %v", round, err)
		}
		if round == 0 && len(removed) < 5 {
			t.Errorf("removed only %v", removed)
		}
		if left := b.leftovers(); len(left) > 0 {
			t.Errorf("round %d left %v", round, left)
		}
	}
	if _, err := os.Stat(b.dir); !os.IsNotExist(err) {
		t.Errorf("the state folder is left: %v", err)
	}
	if len(b.machine.Running()) != 0 || !b.path.removed {
		t.Error("instances or data path are left")
	}
	lines := b.story.all()
	if slices.Index(lines, "remove path") > slices.Index(lines, "remove instances") {
		t.Errorf("the data path goes first; got\n%s", strings.Join(lines, "\n"))
	}
}

func TestPlanIsChecked(t *testing.T) {
	b := newBed(t)
	r := b.run()
	for name, p := range map[string]*onpath.NodePlan{
		"another node's": {Node: "n2"},
		"no vport":       planOf(1, routed("web", 0)),
		"same vport":     planOf(1, routed("web", 16), routed("ids", 16)),
	} {
		if err := r.SetPlan(t.Context(), p); onpath.CodeOf(err) != onpath.CodeInvalid {
			t.Errorf("%s: got %v, want CodeInvalid", name, err)
		}
	}
}

func TestMetrics(t *testing.T) {
	b := newBed(t)
	r := b.run()
	r.plan(planOf(1, routed("web", 16)))
	r.untilState("web", onpath.InstanceReady)
	reg := prometheus.NewPedanticRegistry()
	if err := r.Register(reg); err != nil {
		t.Fatal(err)
	}
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]bool{}
	for _, f := range families {
		got[f.GetName()] = true
	}
	for _, want := range []string{"onpath_node_instances", "onpath_vport_packets_total", "onpath_vport_dropped_packets_total", "onpath_node_flow_entries", "onpath_node_apply_seconds"} {
		if !got[want] {
			t.Errorf("no metric %s in %v", want, got)
		}
	}
}

func knobs(prepare func(*onpath.FunctionSpec) error) fake.Knobs {
	return fake.Knobs{Prepare: func(_ context.Context, s *onpath.FunctionSpec) error { return prepare(s) }}
}

func mustJSON(t *testing.T, v any) string {
	t.Helper()
	data, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}
