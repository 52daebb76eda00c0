package node_test

import (
	"context"
	"io"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/runtime/fake"
)

// prober answers every instance's probe.
type prober struct {
	answer atomic.Pointer[error]  // nil: the probe succeeds
	prints atomic.Pointer[string] // not nil: the probe prints this, and ends with code 1
	asked  atomic.Int64
}

func (p *prober) exec(_ context.Context, _ string, e onpath.ExecSpec) (int, error) {
	p.asked.Add(1)
	if text := p.prints.Load(); text != nil {
		_, err := io.WriteString(e.Stdout, *text)
		return 1, err
	}
	if e := p.answer.Load(); e != nil {
		return 0, *e
	}
	return 0, nil
}

func (p *prober) say(err error) {
	if err == nil {
		p.answer.Store(nil)
		return
	}
	p.answer.Store(&err)
}

// awaitAsked waits for n probes from now on.
func (p *prober) awaitAsked(b *fixture, n int64) {
	b.t.Helper()
	begin := p.asked.Load()
	b.until("it is probed", func() bool { return p.asked.Load() >= begin+n })
}

func (b *fixture) prober() *prober {
	p := &prober{}
	b.machine.Set(fake.Knobs{Exec: p.exec})
	return p
}

func probedInstance() onpath.InstancePlan {
	in := routed("web", 16)
	in.Spec.Health = onpath.Health{
		Exec: []string{"check"}, Every: onpath.Duration(10 * time.Millisecond), Failures: 2, Start: onpath.Duration(50 * time.Millisecond),
	}
	return in
}

var errNoRuntime = onpath.Errorf(onpath.CodeUnavailable, "cannot run check: no space left on device")

// TestProbeNotRun: a probe that the runtime cannot run is no word about a program
// that runs; once it can be, its answer counts.
func TestProbeNotRun(t *testing.T) {
	b := newFixture(t)
	r := b.run()
	p := b.prober()
	r.plan(planOf(1, probedInstance()))
	r.untilState("web", onpath.InstanceReady)

	p.say(errNoRuntime)
	b.until("the message says so", func() bool {
		got, _ := r.server.instance("web")
		return strings.Contains(got.Message, "no space left on device")
	})
	p.awaitAsked(b, 20)
	if got, _ := r.server.instance("web"); got.State != onpath.InstanceReady || b.path.state(16) != onpath.VportUp {
		t.Fatalf("%s (%s), its vport %s: it runs, and nobody was told that it fails", got.State, got.Message, b.path.state(16))
	}
	told := 0
	for _, reason := range r.server.reasons() {
		if reason == "ProbeNotRun" {
			told++
		}
	}
	if told != 1 {
		t.Errorf("ProbeNotRun was told %d times; once is enough", told)
	}

	p.say(nil)
	b.until("the message is gone", func() bool {
		got, _ := r.server.instance("web")
		return got.State == onpath.InstanceReady && got.Message == ""
	})
	p.say(errNoRuntime)
	p.awaitAsked(b, 5)
	b.machine.Kill(b.id("web"), 3) // and its end still shows
	b.until("it is not ready after its end", func() bool {
		got, _ := r.server.instance("web")
		return got.State != onpath.InstanceReady && b.path.state(16) == onpath.VportClosed
	})
}

// TestProbeNotRunYet: what no probe has found ready does not become so, and is not
// killed for it either.
func TestProbeNotRunYet(t *testing.T) {
	b := newFixture(t)
	r := b.run()
	p := b.prober()
	p.say(errNoRuntime)
	r.plan(planOf(1, probedInstance()))
	b.until("the message says so", func() bool {
		got, _ := r.server.instance("web")
		return got.State == onpath.InstanceStarting && strings.Contains(got.Message, "no space left on device")
	})
	p.awaitAsked(b, 20) // ten times its time to start
	if got, _ := r.server.instance("web"); got.State != onpath.InstanceStarting || got.Restarts != 0 || b.path.state(16) == onpath.VportUp {
		t.Errorf("%s, %d restarts, its vport %s", got.State, got.Restarts, b.path.state(16))
	}
	if slices.Contains(r.server.reasons(), "Killed") {
		t.Error("killed, though nobody could ask it")
	}
	p.say(nil)
	r.untilState("web", onpath.InstanceReady)
}

// TestProbeMissing: a probe whose program is missing has failed.
func TestProbeMissing(t *testing.T) {
	b := newFixture(t)
	r := b.run()
	p := b.prober()
	r.plan(planOf(1, probedInstance()))
	r.untilState("web", onpath.InstanceReady)
	p.say(onpath.Errorf(onpath.CodeInvalid, "cannot run check: executable file not found in $PATH"))
	b.until("it is out of the path", func() bool { return b.path.state(16) == onpath.VportClosed })
	// What a probe prints is told apart from why the instance is bad.
	text := "no such table\n"
	p.prints.Store(&text)
	b.until("what it printed is reported", func() bool {
		got, _ := r.server.instance("web")
		return got.Printed == "no such table" && !strings.Contains(got.Message, got.Printed)
	})
}
