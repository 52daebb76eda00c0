package node_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/internal/netnsrun"
	"github.com/onpath/onpath/internal/sockets"
	"github.com/onpath/onpath/node"
	"github.com/onpath/onpath/runtime/fake"
)

func TestInstanceComesAndGoes(t *testing.T) {
	b := newFixture(t)
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

	lines := b.recorder.all()
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

// The server calls a vport closed until it has heard that the instance is ready; the
// node opens it at once, and says so only then. Where flows leave elsewhere, it does
// not choose the instance itself before the plan does.
func TestOpensBeforeTheServerHears(t *testing.T) {
	for want, edge := range map[onpath.VportState]*onpath.Edge{
		onpath.VportUp:       {Vport: 1},
		onpath.VportDraining: nil,
	} {
		b := newFixture(t)
		r := b.run()
		p := planOf(1, routed("web", 16))
		p.Datapath.Vports[0].State = onpath.VportClosed
		p.Datapath.Edge = edge
		r.plan(p)
		r.untilState("web", onpath.InstanceReady)
		if s := b.path.state(16); s != want {
			t.Errorf("the instance was reported ready while its vport was %q, want %s", s, want)
		}
		p = planOf(2, routed("web", 16))
		p.Datapath.Edge = edge
		r.plan(p)
		b.until("it is open", func() bool { return b.path.state(16) == onpath.VportUp })
	}
}

// The vport closes before the process starts again, and the waits double.
func TestRestartWithBackoff(t *testing.T) {
	b := newFixture(t)
	clock := newManualClock()
	b.clock = clock
	r := b.run()
	settle := func(d time.Duration, sleepers int) {
		t.Helper()
		b.until("it settles", func() bool { return clock.awaited(d) == sleepers })
		if s := b.path.state(16); s == onpath.VportUp {
			t.Errorf("the vport is %q before the process has run for %s", s, d)
		}
		clock.move(d)
		r.untilState("web", onpath.InstanceReady)
	}
	r.plan(planOf(1, routed("web", 16)))
	settle(100*time.Millisecond, 2) // what looks for stopped programs sleeps as long
	for i, wait := range []time.Duration{100, 200, 400, 800} {
		wait *= time.Millisecond
		b.machine.Kill(b.id("web"), 137)
		b.until(fmt.Sprintf("the wait of %s is told", wait), func() bool {
			got, _ := r.server.instance("web")
			return got.State == onpath.InstanceFailed && got.NextTry == onpath.Duration(wait) && clock.awaited(wait) == 1
		})
		if s := b.path.state(16); s != onpath.VportClosed {
			t.Fatalf("death %d: the vport is %q, want closed", i, s)
		}
		clock.move(wait - time.Millisecond)
		time.Sleep(20 * time.Millisecond)
		if n := b.recorder.count("start web"); n != i+1 {
			t.Fatalf("death %d: %d starts before the wait is over", i, n)
		}
		clock.move(time.Millisecond)
		b.until("it starts again", func() bool { return b.recorder.count("start web") == i+2 })
		settle(time.Second, 1)
		if got, _ := r.server.instance("web"); got.Restarts != i+1 {
			t.Errorf("%d restarts reported, want %d", got.Restarts, i+1)
		}
	}
	clock.move(61 * time.Second) // a good minute
	b.machine.Kill(b.id("web"), 1)
	b.until("the wait is the first again", func() bool {
		got, _ := r.server.instance("web")
		return got.Reason == "Exited" && got.Message == "exited with code 1" && got.NextTry == onpath.Duration(100*time.Millisecond)
	})
	if !slices.Contains(r.server.reasons(), "Exited") || slices.Contains(r.server.reasons(), "BackOff") {
		t.Errorf("events are %v; each death is told once", r.server.reasons())
	}
}

// TestNoConnectionIsLeft: what the kernel still holds of a program's connections is gone
// when the program starts again.
func TestNoConnectionIsLeft(t *testing.T) {
	if err := sockets.Possible(); err != nil {
		t.Skipf("the kernel cannot end connections (internal/sockets says whether it should): %v", err)
	}
	b := newFixture(t)
	r := b.run()
	r.plan(planOf(1, routed("web", 16)))
	r.untilState("web", onpath.InstanceReady)
	var l net.Listener
	var left net.Conn
	must(t, netnsrun.Do(b.nsOf("web"), func() (err error) {
		if l, err = net.Listen("tcp", "127.0.0.1:0"); err == nil {
			left, err = net.DialTimeout("tcp", l.Addr().String(), time.Minute)
		}
		return err
	}))
	defer l.Close()
	defer left.Close()
	b.machine.Kill(b.id("web"), 9)
	b.until("it runs again", func() bool { return b.recorder.count("start web") == 2 })
	_ = left.SetReadDeadline(time.Now().Add(time.Minute))
	if _, err := left.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNABORTED) && !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("a connection of before gives %v", err)
	}
}

func TestClosedBeforeRestart(t *testing.T) {
	b := newFixture(t)
	r := b.run()
	r.plan(planOf(1, routed("web", 16)))
	r.untilState("web", onpath.InstanceReady)
	device := b.index("op000010")
	b.machine.Kill(b.id("web"), 9)
	b.until("it runs again", func() bool { return b.recorder.count("start web") == 2 })
	r.untilState("web", onpath.InstanceReady)
	lines := b.recorder.all()
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

func (b *fixture) index(name string) int {
	b.t.Helper()
	for _, l := range b.links() {
		if l.Attrs().Name == name {
			return l.Attrs().Index
		}
	}
	b.t.Fatalf("no device %s", name)
	return 0
}

// A configuration that the data path refuses leaves the old one, in which what
// happens here still counts.
func TestApplyError(t *testing.T) {
	b := newFixture(t)
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
	b.until("closed in the old plan", func() bool { return b.recorder.count("apply 1 [16:closed]") >= 2 })
	if b.recorder.count("start new") != 0 {
		t.Error("an instance whose vport is not in force was started")
	}
	b.path.set(func() { b.path.fail = nil })
	b.until("plan 2 is acknowledged", func() bool { return r.server.last().Plan == 2 && r.server.last().PlanError == "" })
	r.untilState("new", onpath.InstanceReady)
}

func TestImageMissing(t *testing.T) {
	b := newFixture(t)
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
	b := newFixture(t)
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
	if b.recorder.count("start web") != 1 {
		t.Error("a draining instance was started again")
	}
}

func TestResize(t *testing.T) {
	b := newFixture(t)
	r := b.run()
	in := routed("web", 16)
	in.Spec.Resources = onpath.Resources{CPU: 100, Memory: 64 << 20}
	r.plan(planOf(1, in))
	r.untilState("web", onpath.InstanceReady)
	in.Spec.Resources.CPU = 700
	r.plan(planOf(2, in))
	b.until("its limits are changed", func() bool { return b.machine.Resources(b.id("web")).CPU == 700 })
	if b.recorder.count("start web") != 1 {
		t.Error("a resize is no restart")
	}
}

func TestSameNameNewUID(t *testing.T) {
	b := newFixture(t)
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
	b := newFixture(t)
	b.edit = func(o *node.Options) { o.StopGrace = 300 * time.Millisecond }
	r := b.run()
	in := routed("web", 16)
	in.Spec.Container.Command = []string{"stubborn"}
	r.plan(planOf(1, in))
	r.untilState("web", onpath.InstanceReady)
	r.plan(planOf(2))
	b.until("it is being stopped", func() bool { return b.recorder.count("stop web") == 1 })
	r.plan(planOf(3, in))
	b.until("it runs anew", func() bool { return b.recorder.count("start web") == 2 })
	b.until("plan 3 is acknowledged", func() bool { return r.server.last().Plan == 3 })
}

func TestPlanIsChecked(t *testing.T) {
	b := newFixture(t)
	r := b.run()
	orphan := planOf(1, routed("web", 16))
	orphan.Instances = nil
	for name, p := range map[string]*onpath.NodePlan{
		"nobody's vport": orphan,
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
	b := newFixture(t)
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
