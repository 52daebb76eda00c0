package instance

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/onpath/onpath"
)

// timed is a function's run time as probes see it.
type timed struct {
	watch         stopwatch
	samples, time uint64
	now           time.Time
}

// step adds samples, each of which took each, and asks a while later.
func (m *timed) step(samples uint64, each, after time.Duration) error {
	m.samples += samples
	m.time += samples * uint64(each)
	m.now = m.now.Add(after)
	return m.watch.check(onpath.FunctionCounters{Samples: m.samples, Time: m.time}, 2*time.Microsecond, m.now)
}

func newTimed(t *testing.T) *timed {
	m := &timed{samples: 5000, time: 5000 * 9000, now: time.Unix(1000, 0)} // long before this agent began
	if err := m.step(0, 0, 0); err != nil {
		t.Fatalf("it is judged by what was before: %v", err)
	}
	return m
}

// TestBudgetOfSlowFunction: one that is above its budget all the time is found out
// after slowGroups seconds, is not checked while it is not measured, and may come back.
func TestBudgetOfSlowFunction(t *testing.T) {
	m := newTimed(t)
	for i := 1; i <= slowGroups; i++ {
		if err := m.step(20, 5*time.Microsecond, time.Second); (err != nil) != (i == slowGroups) {
			t.Fatalf("after %d seconds: %v", i, err)
		}
	}
	for range 50 {
		if m.step(0, 0, time.Second) == nil {
			t.Fatal("out of the path, and the judgement is forgotten")
		}
	}
	if err := m.step(20, time.Microsecond, time.Second); err != nil {
		t.Errorf("within its budget again: %v", err)
	}
	if err := m.step(20, 5*time.Microsecond, time.Second); err != nil {
		t.Errorf("one slow second after a good one: %v", err)
	}
	m.samples, m.time = 0, 0
	if err := m.step(20, 9*time.Microsecond, time.Second); err != nil {
		t.Errorf("counted anew: %v", err)
	}
}

// TestBudgetOnBusyMachine: an honest function stays, however busy the machine.
func TestBudgetOnBusyMachine(t *testing.T) {
	m := newTimed(t)
	for i := range 600 {
		// Its CPU is taken away in the middle of packets, in most seconds.
		each := 60 * time.Microsecond
		if i%10 == 0 {
			each = 700 * time.Nanosecond
		}
		if err := m.step(20, each, time.Second); err != nil {
			t.Fatalf("second %d: %v", i, err)
		}
	}
	m = newTimed(t)
	for i := range 3600 {
		// Some hundred packets/s, each of them by a cold cache.
		if err := m.step(uint64(i%2), 2637*time.Nanosecond, time.Second); err != nil {
			t.Fatalf("with few packets, second %d: %v", i, err)
		}
	}
}

// TestWaitsFor: what the data path cannot run does not wait for a probe.
func TestWaitsFor(t *testing.T) {
	if got := waitsFor(&unlinked{"no room"}); got.Words != "the data path cannot run it: no room" {
		t.Error(got)
	}
	if got := waitsFor(errors.New("refused")); !strings.Contains(got.Words, "probe") || !strings.Contains(got.Words, "refused") {
		t.Error(got)
	}
}
