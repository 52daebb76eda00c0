package scale_test

import (
	"maps"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/onpath/onpath"
)

// stillChain is a random chain, whose value stands still from the returned time on.
func stillChain(t *testing.T, seed uint64) (m *machine, stands time.Duration) {
	rng := rand.New(rand.NewPCG(seed, 9))
	mean := 100 + 300*rng.Float64()
	var list []*elementModel
	for i := range 1 + rng.IntN(3) {
		n := 2 + rng.IntN(4)
		list = append(list, &elementModel{
			name: string(rune('a' + i)), capacity: mean * (0.5 + rng.Float64()), most: 8, cost: 1, start: time.Second,
			cpu: rng.IntN(2) > 0, ready: n, wanted: n,
		})
	}
	m = newMachine(t, seed, &onpath.Scaling{Objective: onpath.ObjectiveMax}, list...)
	m.silent = rng.IntN(2) > 0
	m.demand = noisy(rng, mean)
	stands = time.Duration(rng.IntN(1200)) * time.Second
	var value float64
	m.lie = func(m *machine, at time.Duration) float64 {
		if at <= stands || value == 0 {
			value = m.value(m.demandMean()) * (0.98 + 0.04*m.rng.Float64())
		}
		return value
	}
	return m, stands
}

// TestValueThatStandsStill: a value that is the same all the time while the traffic changes,
// or is not known, takes no instance away; the reason is told. When it moves, scaling goes on.
func TestValueThatStandsStill(t *testing.T) {
	first, n := seeds(t)
	for k := range n {
		seed := first + uint64(k)
		m, stands := stillChain(t, seed)
		m.unknown = k%3 == 0
		m.run(stands + time.Second)
		before := maps.Clone(m.scaler.Status.Wanted)
		if x := m.scaler.Status.Trial; x != nil { // values from before may decide it, one way or the other
			for name, n := range x.From {
				before[name] = min(n, x.To[name])
			}
		}
		for range 900 {
			m.step(time.Second)
			for name, n := range m.scaler.Status.Wanted {
				if n < before[name] && m.scaler.Status.Trial == nil {
					m.fail("seed %d: the value stands since %s; %s %d → %d", seed, stands, name, before[name], n)
				}
			}
		}
		s := &m.scaler.Status
		if s.Trial == nil && s.Session == nil && (s.Phase != onpath.ScalingHeld || !strings.HasPrefix(s.Message, "the value is exactly ")) {
			m.fail("seed %d: %s %q", seed, s.Phase, s.Message)
		}
		if told := strings.Count(strings.Join(m.events, "\n"), "ScalingHeld: the value is exactly "); told != 1 || s.Doubt == "" {
			m.fail("seed %d: told %d times", seed, told)
		}
		m.lie, m.metric = nil, "latency"
		m.step(time.Second)
		if s.Doubt != "" {
			m.fail("seed %d: the value moves again, and %s", seed, s.Doubt)
		}
	}
}

// TestIdleChainShrinks: where traffic stands still as the value does, there is nothing to do
// for all the instances.
func TestIdleChainShrinks(t *testing.T) {
	first, n := seeds(t)
	for k := range n {
		seed := first + uint64(k)
		m, stands := stillChain(t, seed)
		m.silent, m.metric, m.lie = false, "served", nil
		m.run(stands + 3*time.Minute)
		for m.scaler.Status.Session != nil {
			m.step(time.Second)
		}
		few := m.rng.IntN(2) > 0
		m.demand = func(time.Duration) float64 {
			if few && m.rng.IntN(10) == 0 {
				return 0.3
			}
			return 0
		}
		m.lie = func(*machine, time.Duration) float64 { return 0 }
		m.run(20 * time.Minute)
		for name, n := range m.scaler.Status.Wanted {
			if n != 1 {
				m.fail("seed %d: idle since %s, %d of %s (%s %s)", seed, stands, n, name, m.scaler.Status.Phase, m.scaler.Status.Message)
			}
		}
	}
}

// TestValueAtItsBest: a share of requests that is 1 while all are served does not hold a
// chain that once served fewer, and whose instances tell of their load.
func TestValueAtItsBest(t *testing.T) {
	target := 0.97
	m := newMachine(t, 1, &onpath.Scaling{Objective: onpath.ObjectiveMax, Target: &target},
		&elementModel{name: "a", capacity: 40, most: 8, cost: 1, cpu: true, start: time.Second, ready: 4, wanted: 4})
	m.metric = "fraction"
	load := 90.0
	m.demand = func(time.Duration) float64 { return load * (0.9 + 0.2*m.rng.Float64()) }
	m.run(10 * time.Minute)
	if s := m.scaler.Status; s.Phase != onpath.ScalingHeld {
		m.fail("it was 1 all the time: %s", s.Phase)
	}
	load = 200
	m.run(10 * time.Minute)
	if n := m.scaler.Status.Wanted["a"]; n < 5 {
		m.fail("%d for 5", n)
	}
	load = 90
	m.run(40 * time.Minute)
	if n := m.scaler.Status.Wanted["a"]; n != 3 {
		m.fail("%d for 3", n)
	}
}
