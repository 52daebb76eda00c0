package scale

import (
	"fmt"
	"time"

	"github.com/onpath/onpath"
)

// stillTime is how long a value must have been the same before it is not believed.
func stillTime(s *Scaler) time.Duration { return 2*s.window() + s.settling() }

// doubt looks whether a value that stands still is to be believed: not if the chain's traffic
// changes, or is not known. A reporter that has died looks like that; with it, each instance
// taken away would seem to do no harm. The doubt lasts until the value moves. Instances are
// still added on trial: at its limit a chain may serve exactly the same all the time.
func doubt(s *Scaler, v *View) {
	st, was := &s.Status, s.Status.Doubt
	since, value, n := s.Series.still()
	moved := was != "" && n > 0 && n < len(s.Series.list) && since.After(s.doubted)
	switch {
	case s.Spec.Policy == onpath.ScaleCPU || !reported(s) || moved:
		st.Doubt = ""
	case was == "" && n >= 4 && v.Now.Sub(since) >= stillTime(s):
		if why := trafficMoves(s, v, v.Now.Add(-2*s.window())); why != "" && !saturated(s, v) {
			s.doubted = v.Now
			st.Doubt = fmt.Sprintf("the value is exactly %s all the time, %s: no instance is taken away until the value changes",
				valueText(value), why)
			s.tell("ScalingHeld", true, "%s", st.Doubt)
		}
	}
	if st.Doubt == "" {
		return
	}
	if t := st.Trial; t != nil && !grows(t) {
		s.end(v, t.From, false, onpath.MetricStats{}, gain{}, "the value says nothing")
	}
	if x := st.Session; x != nil && x.Down {
		st.Session = nil
	}
}

// reported: the value comes from the application, or from a server that asks it. What nodes
// count themselves is believed.
func reported(s *Scaler) bool {
	switch s.Spec.Metric.Source {
	case onpath.MetricPackets, onpath.MetricBytes, onpath.MetricNewFlows, onpath.MetricDropped:
		return false
	}
	return true
}

// leastTraffic is how many packets in a second more or less are no change: a chain at rest
// has a few packets.
const leastTraffic = 1

// trafficMoves says, in words, that the chain's traffic changed after from, or that nobody knows;
// "": it did not.
func trafficMoves(s *Scaler, v *View, from time.Time) string {
	const unknown = "and the chain's traffic is not known"
	if v.Demand == nil {
		return unknown
	}
	least, most, n := v.Demand.extremes(from)
	largest, _ := v.Demand.Largest(v.Now.Add(-20 * s.window()))
	switch {
	case n < 4:
		return unknown
	case most-least >= max(leastTraffic, float64(s.Spec.Improve)*largest):
		return "though the chain's traffic changes"
	}
	return ""
}

// saturated reports whether the value stands at the best that it has been, has left that and
// come back to it, and all elements tell of their load. A share of requests served is 1 most
// of the time, and a number of errors 0.
func saturated(s *Scaler, v *View) bool {
	if !allKnown(v) {
		return false
	}
	since, best, n := s.Series.still()
	if since.Equal(s.atBest) {
		return true
	}
	before, returns := s.Series.list[:len(s.Series.list)-n], false
	for i := len(before) - 1; i >= 0; i-- {
		x := before[i].Value
		if x != best && (s.Spec.Objective == onpath.ObjectiveMin) == (x < best) {
			return false
		}
		returns = returns || x == best
	}
	if returns {
		s.atBest = since
	}
	return returns
}

// saysNothing reports whether the value says nothing of a trial that takes instances away: it has
// stood still since from, and the chain's traffic has not.
func saysNothing(s *Scaler, v *View, from time.Time) bool {
	since, _, n := s.Series.still()
	return !grows(s.Status.Trial) && n > 1 && !since.After(from) && reported(s) && trafficMoves(s, v, from) != "" && !saturated(s, v)
}
