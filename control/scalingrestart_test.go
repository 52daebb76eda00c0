package control_test

import (
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/onpath/onpath"
)

// application is what uses a chain, and reports that it serves 100 by each instance that
// takes new flows.
type application struct {
	s     *site
	mu    sync.Mutex
	quiet bool
	most  float64
}

func (a *application) be(quiet bool, most float64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.quiet, a.most = quiet, most
}

func (a *application) run(ctx context.Context) {
	for n := 0; ctx.Err() == nil; time.Sleep(10 * time.Millisecond) {
		n++ // a value that stands still is not believed
		a.mu.Lock()
		quiet, most := a.quiet, a.most
		a.mu.Unlock()
		if c := a.s.chain("web"); !quiet && c != nil && len(c.Status.Elements) > 0 {
			a.s.mu.Lock()
			server := a.s.c
			a.s.mu.Unlock()
			_ = server.PushMetric(ctx, onpath.KeyOf(c), min(most, 100*float64(c.Status.Elements[0].Ready))*(1+0.001*float64(n%3)), time.Time{})
		}
	}
}

// TestRestartInTrial: a server that is replaced while an instance is on trial, and while one
// drains on trial, goes on with both trials; until values come, nothing is decided.
func TestRestartInTrial(t *testing.T) {
	t.Parallel()
	s := threeNodes(t)
	chain := web(1)
	target := 200.0
	chain.Spec.Scaling = &onpath.Scaling{
		Window: onpath.MinOwnWindow, Cooldown: onpath.Duration(time.Millisecond), Target: &target,
		Elements: map[string]onpath.ElementScaling{"fw": {Max: 3}},
	}
	s.apply(chain)
	s.until("active", s.active)
	a := &application{s: s, most: 1000}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() { defer close(ended); a.run(ctx) }()
	defer func() { cancel(); <-ended }()

	scaling := func() onpath.ScalingStatus {
		if c := s.chain("web"); c.Status.Scaling != nil {
			return *c.Status.Scaling
		}
		return onpath.ScalingStatus{}
	}
	for _, c := range []struct {
		down bool
		most float64
		want string
	}{{false, 1000, "fw 1 → 2: +100 %"}, {true, 80, "fw 2 → 1: "}} {
		if target = 80; c.down { // the load has fallen, and so has what is good enough
			chain = onpath.Clone(s.chain("web"))
			chain.Spec.Scaling.Target = &target
			s.apply(chain)
		}
		s.until("all is settled", func() bool { return scaling().Session == nil && (scaling().Reference.N > 0) == c.down })
		a.be(false, c.most)
		s.until("a trial", func() bool {
			x := scaling().Trial
			return x != nil && (x.To["fw"] < x.From["fw"]) == c.down
		})
		before := scaling()
		a.be(true, c.most)
		s.stop()
		s.start()
		for _, n := range s.nodes {
			n.connect()
		}
		time.Sleep(400 * time.Millisecond)
		if now := scaling(); now.Trial == nil || !now.Trial.Began.Equal(before.Trial.Began) || now.Session == nil || now.Phase != onpath.ScalingTrying {
			t.Fatalf("another server, and no value yet: %+v", now)
		}
		a.be(false, c.most)
		s.until("the trial is decided", func() bool { return scaling().Trial == nil })
		if d := scaling().Decisions; !strings.HasPrefix(d[len(d)-1].Text, c.want) || !d[len(d)-1].Kept {
			t.Fatalf("%+v", d)
		}
	}
}
