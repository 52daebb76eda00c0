package scale_test

import (
	"encoding/json"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/plan/scale"
)

// troubled is a chain that needs three of a and two of b.
func troubled(t *testing.T, spec *onpath.Scaling) *machine {
	m := newMachine(t, 5, spec,
		&elementModel{name: "a", capacity: 40, most: 6, cost: 2, cpu: true, start: time.Second},
		&elementModel{name: "b", capacity: 60, most: 6, cost: 1, start: time.Second})
	m.demand = func(time.Duration) float64 { return 100 * (0.97 + 0.06*m.rng.Float64()) }
	return m
}

func (m *machine) decisions() string {
	var all []string
	for _, d := range m.scaler.Status.Decisions {
		all = append(all, d.Text)
	}
	return strings.Join(all, "\n")
}

// TestFindsTheBottlenecks: up when the load rises, in the paper's way, and down when it
// falls; the decisions says what each trial brought.
func TestFindsTheBottlenecks(t *testing.T) {
	m := troubled(t, &onpath.Scaling{})
	m.run(20 * time.Minute)
	if w := m.scaler.Status.Wanted; w["a"] != 3 || w["b"] != 2 {
		m.fail("%v", w)
	}
	m.demand = func(time.Duration) float64 { return 50 * (0.97 + 0.06*m.rng.Float64()) }
	m.run(30 * time.Minute)
	if w := m.scaler.Status.Wanted; w["a"] != 2 || w["b"] != 1 {
		m.fail("with half the load: %v", w)
	}
	for _, want := range []string{"a 1 → 2: +", "kept; costs 2 units/h", "a 3 → 2: ", "kept; saves 2 units/h"} {
		if !strings.Contains(m.decisions(), want) {
			t.Errorf("the story lacks %q:\n%s", want, m.decisions())
		}
	}
}

// TestBudget: nothing is tried that the budget does not pay for; lowered, it is kept to.
func TestBudget(t *testing.T) {
	m := troubled(t, &onpath.Scaling{Budget: 6})
	m.run(20 * time.Minute) // obey fails beyond it
	if w := m.scaler.Status.Wanted; w["a"]*2+w["b"] < 5 {
		m.fail("%v of a budget of 6", w)
	}
	if m.settled.IsZero() || m.scaler.Status.Session != nil {
		m.fail("it tries on what the budget does not pay for")
	}
	m.scaler.Spec.Budget = 3
	m.step(time.Second)
	if w := m.scaler.Status.Wanted; w["a"] != 1 || w["b"] != 1 {
		m.fail("%v of a budget of 3", w)
	}
}

// TestNoCapacity: what cannot be placed is taken back, with the reason.
func TestNoCapacity(t *testing.T) {
	m := troubled(t, &onpath.Scaling{})
	m.elements[0].noCapacity = 2
	m.run(20 * time.Minute)
	if w := m.scaler.Status.Wanted; w["a"] != 2 || !strings.Contains(m.decisions(), "no node has room, taken back") {
		m.fail("%v\n%s", w, m.decisions())
	}
}

// TestFlapping: instances that come and go hold everything within its bounds, and the
// last ready one is never taken away.
func TestFlapping(t *testing.T) {
	m := troubled(t, &onpath.Scaling{})
	m.flaps = true
	m.run(20 * time.Minute)
	m.demand = func(time.Duration) float64 { return 10 }
	for range 1200 {
		had := map[string]int{}
		for _, e := range m.elements {
			had[e.name] = e.ready
		}
		was := m.scaler.Status.Wanted
		m.step(time.Second)
		for name, n := range m.scaler.Status.Wanted {
			if n < was[name] && had[name] <= 1 && m.scaler.Status.Trial != nil {
				m.fail("%s %d → %d with %d ready", name, was[name], n, had[name])
			}
		}
	}
}

// TestStale: a metric that says nothing ends the trial, and nothing moves until it is back.
func TestStale(t *testing.T) {
	m := troubled(t, &onpath.Scaling{})
	for m.scaler.Status.Trial == nil {
		m.step(time.Second)
	}
	m.stale = "no value has come for 20s"
	m.step(time.Second)
	s := &m.scaler.Status
	if s.Trial != nil || s.Phase != onpath.ScalingStopped || s.Message != m.stale || s.Wanted["a"] != 1 || s.Wanted["b"] != 1 {
		m.fail("%+v", s)
	}
	m.run(10 * time.Minute)
	if s.Wanted["a"] != 1 || s.Wanted["b"] != 1 {
		m.fail("it moved: %v", s.Wanted)
	}
	m.stale = ""
	m.run(20 * time.Minute)
	if s.Wanted["a"] != 3 || s.Wanted["b"] != 2 {
		m.fail("the metric is back: %v", s.Wanted)
	}
}

// TestResume: another server that has the status alone goes on, again and again in the
// middle of trials, and comes to the same numbers.
func TestResume(t *testing.T) {
	m := troubled(t, &onpath.Scaling{})
	killed := 0
	for i := range 3600 {
		m.step(time.Second)
		if m.scaler.Status.Trial == nil || i%31 != 0 {
			continue
		}
		killed++
		text, err := json.Marshal(m.scaler.Status)
		if err != nil {
			t.Fatal(err)
		}
		var status onpath.ScalingStatus
		if err := json.Unmarshal(text, &status); err != nil {
			t.Fatal(err)
		}
		m.scaler = scale.New("web", m.scaler.Spec, &status)
	}
	if w := m.scaler.Status.Wanted; killed < 2 || w["a"] != 3 || w["b"] != 2 {
		m.fail("%d times another server: %v", killed, w)
	}
}

// TestShared: an instance of a shared deployment stays if the other chain alone gains, and
// does not go if the other chain loses.
func TestShared(t *testing.T) {
	for _, gains := range []bool{true, false} {
		m := troubled(t, &onpath.Scaling{})
		other := &scale.Series{}
		s := m.scaler
		s.Status.Wanted = map[string]int{"a": 1, "b": 3}
		m.elements[1].ready, m.elements[1].wanted = 3, 3
		m.elements[0].ready, m.elements[0].wanted, s.Status.Wanted["a"] = 3, 3, 3
		// The other chain is better with every instance of b that there is.
		for range 1200 {
			value := 10.0
			if gains {
				value = 10 * float64(m.elements[1].ready)
			}
			other.Add(scale.Sample{At: m.now, Value: value})
			m.others = []scale.Other{{Name: "other", Series: other, Objective: onpath.ObjectiveMax, Improve: 0.05}}
			m.step(time.Second)
		}
		if n := s.Status.Wanted["b"]; gains && n < 3 || !gains && n != 2 {
			m.fail("the other chain gains %v: %d instances", gains, n)
		}
	}
}

// TestLying: a metric that says of everything that it helps, or that nothing does, or that
// jumps about, leads to no number out of min, max and budget, which obey checks.
func TestLying(t *testing.T) {
	for name, lie := range map[string]func(m *machine, at time.Duration) float64{
		"everything helps": func(m *machine, at time.Duration) float64 {
			w := m.scaler.Status.Wanted
			return 100 * float64(1+w["a"]+w["b"]) * (0.99 + 0.02*m.rng.Float64())
		},
		"everything harms": func(m *machine, at time.Duration) float64 {
			w := m.scaler.Status.Wanted
			return 100 / float64(1+w["a"]+w["b"]) * (0.99 + 0.02*m.rng.Float64())
		},
		"it grows":  func(_ *machine, at time.Duration) float64 { return math.Exp(at.Minutes()) },
		"it jumps":  func(m *machine, _ time.Duration) float64 { return math.Pow(10, 10*m.rng.Float64()-5) },
		"it is 0":   func(*machine, time.Duration) float64 { return 0 },
		"its sign":  func(m *machine, at time.Duration) float64 { return 1e15 * math.Sin(at.Seconds()/40) },
		"it stands": func(*machine, time.Duration) float64 { return -7 },
	} {
		t.Run(name, func(t *testing.T) {
			m := troubled(t, &onpath.Scaling{Budget: 11})
			m.lie = lie
			m.run(time.Hour)
			for _, d := range m.scaler.Status.Decisions {
				if d.Text == "" {
					t.Error("a decision without a sentence")
				}
			}
		})
	}
}
