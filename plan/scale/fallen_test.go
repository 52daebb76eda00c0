package scale_test

import (
	"testing"
	"time"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/plan/scale"
)

// TestFallSoonAfterSettling: a load that falls soon after a session has ended has an instance
// taken away on trial, also where the scaler was kept from looking while the load fell.
func TestFallSoonAfterSettling(t *testing.T) {
	const every = time.Second / 2 // a value
	for fall := range 10 {
		for kept := range 30 {
			many, few := 200.0, 80.0
			spec := &onpath.Scaling{Objective: onpath.ObjectiveMax, Target: &many, Cooldown: 1}
			m := newMachine(t, 1, spec, &elementModel{name: "a", capacity: 100, most: 3})
			m.silent, m.unknown = true, true
			demand, samples := 1000.0, 0
			m.demand = func(time.Duration) float64 { return demand }
			m.lie = func(m *machine, _ time.Duration) float64 {
				samples++ // a value that stands still is not believed
				return m.value(demand) * (1 + 0.001*float64(samples%3))
			}
			look := func(values time.Duration) {
				for k := range values - 1 {
					m.scaler.Series.Add(scale.Sample{At: m.now.Add((k + 1) * every), Value: m.lie(m, 0)})
				}
				m.step(values * every)
			}
			for m.settled.IsZero() {
				look(3)
			}
			for range fall {
				look(3)
			}
			demand, spec.Target = few, &few
			for range 9 {
				look(3)
			}
			look(3 + time.Duration(kept))
			for end := m.now.Add(8 * time.Duration(spec.Window)); m.scaler.Status.Wanted["a"] != 1; look(3) {
				if m.now.After(end) {
					m.fail("the load fell %d looks after the session had ended, the scaler missed %d values: still %d instances",
						fall, kept, m.scaler.Status.Wanted["a"])
				}
			}
		}
	}
}
