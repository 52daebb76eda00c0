package node_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/internal/netnsrun"
	"github.com/onpath/onpath/node"
)

// A new agent finds everything as it was and touches nothing.
func TestAdoption(t *testing.T) {
	b := newFixture(t)
	r := b.run()
	probed := routed("web", 16, "10.9.0.5/24")
	probed.Spec.Health = onpath.Health{Exec: []string{"true"}, Every: onpath.Duration(20 * time.Millisecond)}
	r.plan(planOf(3, probed, routed("ids", 17)))
	r.untilState("web", onpath.InstanceReady)
	r.untilState("ids", onpath.InstanceReady)
	b.until("plan 3 is acknowledged", func() bool { return r.server.last().Plan == 3 })
	device, id := b.index("op000010"), b.id("web")
	r.stop()
	before := len(b.recorder.all())

	r = b.run()
	if h := r.Hello(); h.Plan == nil || h.Plan.Generation != 3 || h.Report.Plan != 3 {
		t.Errorf("after a restart hello says plan %+v, report %d; want 3 and 3", h.Plan, h.Report.Plan)
	}
	r.untilState("web", onpath.InstanceReady)
	b.machine.Kill(b.id("ids"), 1) // it is watched again
	b.until("ids runs again", func() bool { return b.recorder.count("start ids") == 2 })
	for _, l := range b.recorder.all()[before:] {
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
	b := newFixture(t)
	r := b.run()
	r.plan(planOf(1, routed("web", 16)))
	r.untilState("web", onpath.InstanceReady)
	r.stop()
	b.machine.Kill(b.id("web"), 1)
	before := len(b.recorder.all())
	r = b.run()
	r.untilState("web", onpath.InstanceReady)
	after := b.recorder.all()[before:]
	if after[0] != "apply 1 [16:closed]" {
		t.Errorf("the first configuration of the new agent must close it; got\n%s", strings.Join(after, "\n"))
	}
}

// A runtime that does not answer changes nothing.
func TestRuntimeAwayAtStart(t *testing.T) {
	b := newFixture(t)
	r := b.run()
	r.plan(planOf(1, routed("web", 16)))
	r.untilState("web", onpath.InstanceReady)
	r.stop()
	before := len(b.recorder.all())
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
	for _, l := range b.recorder.all()[before:] {
		if strings.Contains(l, "closed") || strings.HasPrefix(l, "start") {
			t.Errorf("the new agent did %q", l)
		}
	}
}

// What a runtime could take over is supervised while it is asked again for the rest,
// and is not taken over twice.
func TestRuntimePartlyAwayAtStart(t *testing.T) {
	b := newFixture(t)
	r := b.run()
	r.plan(planOf(1, routed("web", 16)))
	r.untilState("web", onpath.InstanceReady)
	b.until("acknowledged", func() bool { return r.server.last().Plan == 1 })
	r.stop()
	asked := make(chan struct{}, 100)
	b.runtime.partly, b.runtime.adopt = true, func() error {
		asked <- struct{}{}
		if len(asked) < 3 {
			return errors.New("another one cannot be read")
		}
		return nil
	}
	r = b.run()
	b.until("the one that could be taken over is", func() bool { return slices.Contains(r.server.reasons(), "Adopted") })
	if b.path.state(16) != onpath.VportUp {
		t.Errorf("vport %s, events %v", b.path.state(16), r.server.reasons())
	}
	b.until("the runtime was asked again", func() bool { return len(asked) == 3 })
	b.machine.Kill(b.id("web"), 1)
	b.until("it runs again", func() bool { return b.recorder.count("start web") == 2 })
	r.untilState("web", onpath.InstanceReady)
	exits := slices.DeleteFunc(r.server.reasons(), func(reason string) bool { return reason != "Exited" })
	if len(exits) != 1 {
		t.Errorf("what ended once is told to have ended %d times", len(exits))
	}
}

// Leftovers of a crash that no plan names go, after the rules.
func TestSweep(t *testing.T) {
	b := newFixture(t)
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
	lines := b.recorder.all()
	if rules, stop := slices.Index(lines, "apply 2 [16:up]"), slices.Index(lines, "stop old"); rules < 0 || stop < rules {
		t.Errorf("rules go first; got\n%s", strings.Join(lines, "\n"))
	}
	r.untilState("web", onpath.InstanceReady)
}

// TestOffParts: Off names the devices that only the data path joined, and none that are in
// one bridge of the kernel.
func TestOffParts(t *testing.T) {
	for _, bridged := range []bool{false, true} {
		b := newFixture(t)
		b.station("l", "left", nil, nil)
		b.station("r", "right", nil, nil)
		h := b.netlink(b.host)
		defer h.Close()
		if bridged {
			attrs := netlink.NewLinkAttrs()
			attrs.Name = "br0"
			bridge := &netlink.Bridge{LinkAttrs: attrs}
			must(t, h.LinkAdd(bridge))
			for _, device := range []string{"left", "right"} {
				l, err := h.LinkByName(device)
				must(t, err)
				must(t, h.LinkSetMaster(l, bridge))
			}
		}
		p := uplinkPlan(1, false, "left", "right")
		for i, side := range []onpath.Side{onpath.SideAccess, onpath.SideCore} {
			p.Datapath.Edge.Uplinks[i].Attach, p.Datapath.Edge.Uplinks[i].Side = onpath.AttachBridge, side
		}
		r := b.run()
		r.plan(p)
		b.until("the plan is acknowledged", func() bool { return r.server.last().Plan == 1 })
		r.stop()
		var said bytes.Buffer
		_, err := node.Off(t.Context(), node.OffOptions{StateDir: b.dir, NetNS: b.host, Log: slog.New(slog.NewTextHandler(&said, nil))})
		must(t, err)
		if told := strings.Contains(said.String(), "left, right"); told == bridged {
			t.Errorf("in a bridge of the kernel: %v; it says:\n%s", bridged, &said)
		}
	}
}

func TestOff(t *testing.T) {
	b := newFixture(t)
	r := b.run()
	r.plan(planOf(1, routed("web", 16), routed("ids", 17)))
	r.untilState("web", onpath.InstanceReady)
	r.untilState("ids", onpath.InstanceReady)
	o := node.OffOptions{StateDir: b.dir, NetNS: b.host, Parts: []node.OffPart{
		{What: "the data path", Found: true, Remove: b.path.Remove}, {What: "instances", Remove: b.runtime.Remove}}}
	if _, err := node.Off(t.Context(), o); onpath.CodeOf(err) != onpath.CodeConflict || b.path.removed {
		t.Fatalf("Off beside a living agent: got %v, want CodeConflict and nothing removed", err)
	}
	r.stop()
	for round := range 2 {
		if round == 0 { // what an agent with peers leaves, and one that was killed while it wrote
			for _, f := range []string{"lost.json", ".plan.json.new-1", "instances/.web.json.new-2"} {
				if err := os.WriteFile(filepath.Join(b.dir, f), []byte("{}"), 0o600); err != nil {
					t.Fatal(err)
				}
			}
		}
		removed, err := node.Off(context.Background(), o)
		if err != nil {
			t.Fatalf("round %d: %v", round, err)
		}
		if round == 0 && len(removed) < 4 {
			t.Errorf("removed only %v", removed)
		}
		if slices.Contains(removed, "instances") || round == 1 && slices.ContainsFunc(removed, func(w string) bool { return w != "the data path" }) {
			t.Errorf("round %d says that it removed what was not there: %v", round, removed)
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
	lines := b.recorder.all()
	if slices.Index(lines, "remove path") > slices.Index(lines, "remove instances") {
		t.Errorf("the data path goes first; got\n%s", strings.Join(lines, "\n"))
	}
}

func mustJSON(t *testing.T, v any) string {
	t.Helper()
	data, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// After a reboot the files are there, and nothing that they speak of.
func TestReboot(t *testing.T) {
	b := newFixture(t)
	r := b.run()
	r.plan(planOf(1, routed("web", 16, "10.9.0.5/24")))
	r.untilState("web", onpath.InstanceReady)
	b.until("acknowledged", func() bool { return r.server.last().Plan == 1 })
	r.stop()
	ns := b.nsOf("web")
	must(t, b.runtime.Runtime.Remove(t.Context()))
	h := b.netlink(b.host)
	defer h.Close()
	l, err := h.LinkByName("op000010")
	must(t, err)
	must(t, h.LinkDel(l))
	must(t, netnsrun.Remove(ns))
	must(t, os.WriteFile(ns, nil, 0o444))

	r = b.run()
	r.untilState("web", onpath.InstanceReady)
	if !netnsrun.Is(ns) || b.path.state(16) != onpath.VportUp {
		t.Error("namespace or vport is missing")
	}
	b.until("acknowledged again", func() bool { return r.server.last().Plan == 1 })
}

// With the saved plan unreadable nothing is touched until a server says what is
// wanted, and then what runs is adopted.
func TestSavedPlanUnreadable(t *testing.T) {
	b := newFixture(t)
	r := b.run()
	p := planOf(1, routed("web", 16))
	r.plan(p)
	r.untilState("web", onpath.InstanceReady)
	r.stop()
	must(t, os.WriteFile(filepath.Join(b.dir, "plan.json"), []byte(`{"node":"n1","wan`), 0o600))
	before := len(b.recorder.all())
	r = b.run()
	if h := r.Hello(); h.Plan != nil || h.Report.Plan != 0 {
		t.Errorf("hello says plan %+v, which nobody knows", h.Plan)
	}
	r.plan(p)
	r.untilState("web", onpath.InstanceReady)
	b.until("acknowledged", func() bool { return r.server.last().Plan == 1 })
	for _, l := range b.recorder.all()[before:] {
		if l == "start web" || l == "stop web" || strings.Contains(l, "closed") {
			t.Errorf("the new agent did %q", l)
		}
	}
}

func TestOneAgentPerFolder(t *testing.T) {
	b := newFixture(t)
	r := b.run()
	r.plan(planOf(1))
	second, err := node.New(b.options())
	must(t, err)
	if err := second.Run(t.Context()); onpath.CodeOf(err) != onpath.CodeConflict {
		t.Errorf("a second agent: got %v, want CodeConflict", err)
	}
	r.stop()
	b.edit = func(o *node.Options) { o.Name = "n2" }
	renamed, err := node.New(b.options())
	must(t, err)
	if err := renamed.Run(t.Context()); onpath.CodeOf(err) != onpath.CodeConflict {
		t.Errorf("another node's folder: got %v, want CodeConflict", err)
	}
}

// Many at once come, are adopted and go, and nothing of any is left.
func TestManyInstances(t *testing.T) {
	b := newFixture(t)
	r := b.run()
	var all []onpath.InstancePlan
	for i := range 40 {
		all = append(all, routed(fmt.Sprintf("i%02d", i), onpath.VportID(100+i), fmt.Sprintf("10.9.0.%d/24", i+1)))
	}
	r.plan(planOf(1, all...))
	for _, in := range all {
		r.untilState(in.Name, onpath.InstanceReady)
	}
	b.until("acknowledged", func() bool { return r.server.last().Plan == 1 })
	r.stop()
	r = b.run()
	if got := r.Report(); got.Plan != 1 || len(got.Instances) != len(all) {
		t.Errorf("after a restart plan %d, %d instances", got.Plan, len(got.Instances))
	}
	r.plan(planOf(2, all[20:]...))
	b.until("the first twenty are gone", func() bool { return len(b.machine.Running()) == 20 && len(b.leftovers()) == 60 })
	r.plan(planOf(3))
	b.gone()
}

// A runtime that cannot be opened when the agent starts, or is not set up at
// all any more, is no reason to close what it runs.
func TestRuntimeOpensLater(t *testing.T) {
	b := newFixture(t)
	r := b.run()
	r.plan(planOf(1, routed("web", 16)))
	r.untilState("web", onpath.InstanceReady)
	b.until("acknowledged", func() bool { return r.server.last().Plan == 1 })
	r.stop()
	before := len(b.recorder.all())

	b.edit = func(o *node.Options) { o.Runtimes = nil }
	r = b.run()
	if got, _ := r.server.instance("web"); b.path.state(16) != onpath.VportUp || got.State == onpath.InstanceFailed {
		t.Errorf("without a runtime: vport %s, reported %s", b.path.state(16), got.State)
	}
	r.stop()

	tries := 0
	b.edit = func(o *node.Options) {
		o.Runtimes = nil
		o.Open = map[onpath.FunctionKind]func(context.Context) (onpath.Runtime, error){onpath.ContainerFunction: func(context.Context) (onpath.Runtime, error) {
			if tries++; tries == 1 {
				return nil, errors.New("no socket")
			}
			return b.runtime, nil
		}}
	}
	r = b.run()
	if c := r.condition(onpath.ConditionRuntime); c.Reason != "Unavailable" {
		t.Errorf("runtime condition is %+v, want Unavailable", c)
	}
	b.until("adopted", func() bool { return slices.Contains(r.server.reasons(), "Adopted") })
	for _, l := range b.recorder.all()[before:] {
		if strings.Contains(l, "closed") || strings.HasPrefix(l, "start") || strings.HasPrefix(l, "stop") {
			t.Errorf("the new agent did %q", l)
		}
	}
	r.plan(planOf(2))
	b.gone()
}
