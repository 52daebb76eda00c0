package node_test

import (
	"bytes"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/node"
)

// said is what an agent logs.
type said struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (s *said) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.buf.Write(p)
}

func (s *said) count(words string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return strings.Count(s.buf.String(), words)
}

// TestOneRetry: however often what fails is asked for meanwhile, it is tried again
// by one timer, and the same error is logged once, and again when it has lasted.
func TestOneRetry(t *testing.T) {
	b := newFixture(t)
	clock, log := newManualClock(), &said{}
	b.clock = clock
	b.edit = func(o *node.Options) { o.Log = slog.New(slog.NewTextHandler(log, nil)) }
	b.path.fail = func(*onpath.DatapathConfig) error { return errors.New("table 9 is missing") }
	r := b.run()
	before := -1
	b.until("all that sleeps sleeps", func() bool {
		was := before
		time.Sleep(100 * time.Millisecond)
		before = clock.sleepers()
		return before == was
	})
	const plans = 20
	for g := uint64(1); g <= plans; g++ {
		n := b.path.count()
		r.plan(planOf(g))
		b.until("it is tried", func() bool { return b.path.count() == n+1 })
	}
	b.until("one timer runs", func() bool { return clock.sleepers() == before+1 })
	time.Sleep(50 * time.Millisecond) // for others to appear
	if n := clock.sleepers() - before; n != 1 {
		t.Errorf("%d timers run, want one", n)
	}
	const words = "cannot be put in force"
	tell := log.count(words)
	if tell != plans {
		t.Errorf("%d plans failed, and %d were told", plans, tell)
	}
	// Asked for or not, the wait grows by its own attempts alone.
	for wait := 100 * time.Millisecond; wait < 20*time.Second; wait *= 2 {
		n := b.path.count()
		b.until("it waits for "+wait.String(), func() bool { return clock.awaited(wait) == 1 })
		clock.move(wait)
		b.until("it is tried again", func() bool { return b.path.count() == n+1 })
	}
	if n := log.count(words); n != tell {
		t.Errorf("the same error was told %d times more within half a minute", n-tell)
	}
	n := b.path.count()
	b.until("it waits again", func() bool { return clock.awaited(25600*time.Millisecond) == 1 })
	clock.move(time.Minute)
	b.until("it is tried again", func() bool { return b.path.count() == n+1 })
	b.until("and told again", func() bool { return log.count(words) == tell+1 })
}

// TestVportNamedAgain: an instance that is named again, or another one at its vport, before the data
// path knew that it went, is started once that one is gone.
func TestVportNamedAgain(t *testing.T) {
	for _, next := range []string{"a", "b"} {
		b := newFixture(t)
		r := b.run()
		a := routed("a", 16, "10.64.0.2/30")
		r.plan(planOf(1, a))
		r.untilState("a", onpath.InstanceReady)
		busy, goOn := make(chan struct{}), make(chan struct{})
		b.path.set(func() {
			b.path.fail = func(c *onpath.DatapathConfig) error {
				if c.Generation == 2 {
					close(busy)
					<-goOn
				}
				return nil
			}
		})
		r.plan(planOf(2, a))
		<-busy
		r.plan(planOf(3))
		r.plan(planOf(4, routed(next, 16, "10.64.0.2/30")))
		close(goOn)
		b.until(next+" is ready once a has stopped", func() bool {
			got, _ := r.server.instance(next)
			all := b.recorder.all()
			stop := slices.Index(all, "stop a")
			return got.State == onpath.InstanceReady && stop > 0 && slices.Contains(all[stop:], "start "+next)
		})
		r.stop()
	}
}
