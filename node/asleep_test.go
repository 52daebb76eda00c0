package node_test

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/node"
	"github.com/onpath/onpath/runtime/fake"
)

// puntingPath is a path that hands packets to the agent, and remembers what it lets in.
type puntingPath struct {
	*path
	take func(onpath.Punted) // guarded by path.mu; nil: nobody reads
	in   []string
}

func (p *puntingPath) Punted(ctx context.Context, take func(onpath.Punted)) error {
	p.set(func() { p.take = take })
	<-ctx.Done()
	p.set(func() { p.take = nil })
	return ctx.Err()
}

// send hands over a packet for a vport, if somebody reads.
func (p *puntingPath) send(v onpath.VportID, text string) bool {
	p.mu.Lock()
	take := p.take
	p.mu.Unlock()
	if take != nil {
		take(onpath.Punted{Vport: v, Packet: []byte(text), Frame: []byte(text)})
	}
	return take != nil
}

func (p *puntingPath) Inlet(id onpath.VportID) (onpath.Inlet, error) { return puntingInlet{p}, nil }

type puntingInlet struct{ p *puntingPath }

func (i puntingInlet) Deliver(frame []byte) error {
	i.p.set(func() { i.p.in = append(i.p.in, string(bytes.Clone(frame))) })
	return nil
}

func (puntingInlet) Open() error  { return nil }
func (puntingInlet) Close() error { return nil }

// letIn is what the instances were given.
func (p *puntingPath) letIn() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.in)
}

// led is where a vport leads: "up", "up asleep", "closed"; "" if it is not in force.
func (p *puntingPath) led(id onpath.VportID) string {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.config == nil {
		return ""
	}
	for _, v := range p.config.Vports {
		if v.ID == id && v.Asleep {
			return string(v.State) + " asleep"
		} else if v.ID == id {
			return string(v.State)
		}
	}
	return ""
}

// sleepy is a machine whose one instance, web, starts on demand. It is ready when the test
// says so.
type sleepy struct {
	*fixture
	punts *puntingPath
	plan  onpath.InstancePlan
	ready atomic.Bool
	// secrets, if set, is asked for the instance's.
	secrets func() error
}

func newSleepy(t *testing.T, stopAfter time.Duration) *sleepy {
	b := newFixture(t)
	s := &sleepy{fixture: b, punts: &puntingPath{path: b.path}, plan: routed("web", 16, "10.9.0.5/24")}
	s.plan.OnDemand = &onpath.OnDemand{StopAfter: onpath.Duration(stopAfter), Hold: onpath.DefaultHold}
	s.plan.Spec.Health = onpath.Health{Exec: []string{"ask"}, Every: onpath.Duration(5 * time.Millisecond)}
	s.ready.Store(true)
	b.machine.Set(fake.Knobs{Exec: s.asked})
	b.edit = func(o *node.Options) {
		o.Datapath = s.punts
		o.Secrets = func(context.Context, string, string) (map[string][]byte, error) {
			return map[string][]byte{"key": []byte("k")}, s.secrets()
		}
	}
	return s
}

func (s *sleepy) asked(context.Context, string, onpath.ExecSpec) (int, error) {
	if s.ready.Load() {
		return 0, nil
	}
	return 1, nil
}

// begin runs an agent and gives it the plan.
func (s *sleepy) begin() *running {
	s.t.Helper()
	r := s.run()
	p := planOf(1, s.plan)
	p.Datapath.Vports[0].Hold = s.plan.OnDemand.Hold
	r.plan(p)
	return r
}

func (s *sleepy) led(want string) {
	s.t.Helper()
	s.until("vport 16 is "+want, func() bool { return s.punts.led(16) == want })
}

// TestQuietSinceReady: the time without packets begins when the program is ready. One that
// takes longer to start is not ended with its first packet.
func TestQuietSinceReady(t *testing.T) {
	const after = 200 * time.Millisecond
	s := newSleepy(t, after)
	s.ready.Store(false)
	s.begin()
	s.led("up asleep")
	var mu sync.Mutex
	var woke, ended time.Time
	s.recorder.stopping = func(context.Context, string) error {
		mu.Lock()
		defer mu.Unlock()
		ended = time.Now()
		return nil
	}
	s.until("the agent takes a packet", func() bool { return s.punts.send(16, "first") })
	s.until("it is started", func() bool { return s.recorder.count("start web") == 1 })
	time.Sleep(2 * after) // of its start: the quiet time is long over
	if spec, _ := s.machine.Spec(s.id("web")); !spec.Awaited {
		t.Error("its runtime is not told that packets wait")
	}
	mu.Lock()
	woke = time.Now()
	mu.Unlock()
	s.ready.Store(true)
	s.until("it sleeps again", func() bool { mu.Lock(); defer mu.Unlock(); return !ended.IsZero() })
	mu.Lock()
	defer mu.Unlock()
	if got := s.punts.letIn(); !slices.Equal(got, []string{"first"}) {
		t.Errorf("it was given %q", got)
	}
	if ran := ended.Sub(woke); ran < after {
		t.Errorf("it was ended %s after it became ready, must have %s", ran, after)
	}
}

// TestSecretsAway: a program that could not be started again, for the server does not give
// its secrets, goes on running.
func TestSecretsAway(t *testing.T) {
	const after = 100 * time.Millisecond
	s := newSleepy(t, after)
	var away atomic.Bool
	var asked atomic.Int32
	s.secrets = func() error {
		if away.Load() {
			asked.Add(1)
			return errors.New("connection refused")
		}
		return nil
	}
	s.plan.Spec.Container.Secrets = map[string]onpath.SecretKey{"key": "s/k"}
	r := s.begin()
	s.led("up asleep")
	s.until("the agent takes a packet", func() bool { return s.punts.send(16, "first") })
	s.led("up")
	away.Store(true)
	s.until("the server was asked again and again", func() bool { return asked.Load() >= 3 })
	if n := s.recorder.count("stop web"); n != 0 || s.punts.led(16) != "up" {
		t.Errorf("without its secrets it was stopped %d times, and vport 16 is %s", n, s.punts.led(16))
	}
	away.Store(false)
	s.led("up asleep")
	if slices.Contains(r.server.reasons(), "PrepareFailed") {
		t.Errorf("events %v", r.server.reasons())
	}
}

// TestSleepsUnprepared: an instance that sleeps and cannot be prepared is closed, so that its
// chain does as it says without it; and sleeps once it can.
func TestSleepsUnprepared(t *testing.T) {
	s := newSleepy(t, time.Hour)
	r := s.begin()
	s.led("up asleep")
	s.until("acknowledged", func() bool { return r.server.last().Plan == 1 })
	r.stop()
	var gone atomic.Bool
	gone.Store(true)
	s.machine.Set(fake.Knobs{Exec: s.asked, Prepare: func(context.Context, *onpath.FunctionSpec) error {
		if gone.Load() {
			return onpath.Errorf(onpath.CodeNotFound, "the image is gone")
		}
		return nil
	}})
	r = s.run()
	s.led("closed")
	if got := r.untilState("web", onpath.InstanceFailed); got.Reason != "ImageMissing" {
		t.Errorf("reported %+v", got)
	}
	gone.Store(false)
	s.led("up asleep")
	s.until("the agent takes a packet", func() bool { return s.punts.send(16, "late") })
	s.led("up")
	s.until("its CPU is counted as ever", func() bool {
		spec, ok := s.machine.Spec(s.id("web"))
		return ok && !spec.Awaited
	})
}

// TestAgentAwayWhileWaking: an instance that was waking when the agent ended goes on doing
// so: its vport is not closed, and what comes is kept from the first moment on.
func TestAgentAwayWhileWaking(t *testing.T) {
	s := newSleepy(t, time.Hour)
	s.ready.Store(false)
	r := s.begin()
	s.led("up asleep")
	s.until("acknowledged", func() bool { return r.server.last().Plan == 1 })
	s.until("the agent takes a packet", func() bool { return s.punts.send(16, "lost with the agent") })
	s.until("it is started", func() bool { return s.recorder.count("start web") == 1 })
	r.stop()
	before := len(s.recorder.all())
	r = s.run()
	if led := s.punts.led(16); led != "up asleep" {
		t.Errorf("the new agent's first configuration has vport 16 %s", led)
	}
	s.until("the agent takes a packet", func() bool { return s.punts.send(16, "kept") })
	if got := r.untilState("web", onpath.InstanceReady); got.Reason != "Waking" {
		t.Errorf("reported %+v", got)
	}
	s.ready.Store(true)
	s.led("up")
	if got := s.punts.letIn(); !slices.Equal(got, []string{"kept"}) {
		t.Errorf("it was given %q", got)
	}
	for _, l := range s.recorder.all()[before:] {
		if strings.Contains(l, "closed") || strings.HasPrefix(l, "start") {
			t.Errorf("the new agent did %q", l)
		}
	}
}
