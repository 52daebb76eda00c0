// Package scale decides how many instances the elements of a chain have, by what the
// application says of itself (Stratos §4.1.1): it adds one instance of one element, and
// keeps it only if the application's value improves; it takes one away, and puts it back
// if the value suffers.
//
// Values before and during a trial are compared by a sequential test: at a quarter, a
// half, one, two, four and eight windows, with Student's t (Welch) for values that depend on
// their neighbours. At each look an error of Error/Looks may be made, so an instance that
// helps by nothing is kept with a chance of at most Error, and one whose loss costs
// Improve or more is given up with a chance of at most Error.
package scale

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"time"

	"github.com/onpath/onpath"
)

// Error is the chance of a wrong decision in a trial; Looks is how often values are
// compared in one.
const (
	Error = 0.05
	Looks = 6
)

// looks are the lengths of a trial, in windows, after which values are compared.
var looks = [Looks]float64{0.25, 0.5, 1, 2, 4, 8}

// Scaler is the scaling of one chain. What must outlive it is in Status.
type Scaler struct {
	Name   string // of the chain
	Spec   *onpath.Scaling
	Status onpath.ScalingStatus
	Series *Series

	noticed   time.Time // since when the value is other than Reference
	pressed   time.Time // since when an element is at its limits
	short     time.Time // since when the value is not good enough
	eased     time.Time // since when an element has an instance too many by its own word
	heard     time.Time // the first value heard of by this scaler
	began     time.Time // the first step of this scaler
	inherited bool      // Reference is of the scaler before, and stays as it is
	doubted   time.Time // when Status.Doubt came up
	atBest    time.Time // since when the value stands at its best, as it did before
	events    []Event
}

// Event is something to tell.
type Event struct {
	Reason, Message string
	Warning         bool
}

// New makes a scaler that goes on from a status. A trial that was under way begins its
// comparison again, with what was before as it was.
func New(name string, spec *onpath.Scaling, status *onpath.ScalingStatus) *Scaler {
	s := &Scaler{Name: name, Spec: spec, Series: &Series{}}
	if status != nil {
		s.Status = *status
		s.Status.Wanted = maps.Clone(status.Wanted)
		s.inherited = status.Reference.N > 0
	}
	if s.Status.Trial != nil {
		t := *s.Status.Trial
		t.Ready, t.Look = time.Time{}, 0
		s.Status.Trial = &t
	}
	if s.Status.Session != nil {
		x := *s.Status.Session
		x.Next, x.Vain = slices.Clone(x.Next), slices.Clone(x.Vain)
		s.Status.Session = &x
	}
	return s
}

func (s *Scaler) window() time.Duration { return time.Duration(s.Spec.Window) }

// settling is how long after a change values still are of before.
func (s *Scaler) settling() time.Duration { return s.window() / 4 }

// Step decides. The numbers of instances are in Status.Wanted.
func (s *Scaler) Step(v *View) []Event {
	s.events = nil
	st := &s.Status
	if s.began.IsZero() {
		s.began = v.Now
	}
	if st.Wanted == nil || st.Settled.IsZero() {
		st.Wanted, st.Settled = v.numbers(), v.Now
	}
	if s.heard.IsZero() {
		if _, ok := s.Series.Last(); ok {
			s.heard = v.Now
		}
	}
	s.bound(v)
	switch {
	case v.Awaited:
		if st.Phase == "" {
			st.Phase, st.Message = onpath.ScalingHeld, "the first value is awaited"
		}
		return s.events
	case v.Stale != "":
		s.stop(v)
		return s.events
	}
	if st.Phase == onpath.ScalingStopped {
		st.Settled = v.Now // what was meanwhile says nothing
	}
	doubt(s, v)
	switch {
	case st.Trial != nil:
		st.Phase, st.Message = onpath.ScalingTrying, ""
		s.try(v)
	case v.Held != "":
		st.Phase, st.Message = onpath.ScalingHeld, v.Held
	case s.Spec.Policy == onpath.ScaleCPU:
		s.byCPU(v)
	case st.Session != nil:
		st.Phase, st.Message = onpath.ScalingTrying, ""
		s.next(v)
	default:
		st.Phase, st.Message = onpath.ScalingWatching, ""
		if st.Doubt != "" {
			st.Phase, st.Message = onpath.ScalingHeld, st.Doubt
		}
		s.watch(v)
	}
	return s.events
}

// Largest is the largest value of the last twenty windows, whatever its sign, of how many;
// those that only a scaler before heard of count by their mean.
func (s *Scaler) Largest(now time.Time) (most float64, n int) {
	most, n = s.Series.Largest(now.Add(-20 * s.window()))
	known := []onpath.MetricStats{s.Status.Reference}
	if t := s.Status.Trial; t != nil {
		known = append(known, t.Before[s.Name])
	}
	if x := s.Status.Session; x != nil {
		known = append(known, x.Before[s.Name])
	}
	for _, m := range known {
		most, n = max(most, math.Abs(m.Mean)), n+m.N
	}
	return most, n
}

func (s *Scaler) tell(reason string, warning bool, format string, args ...any) {
	s.events = append(s.events, Event{reason, fmt.Sprintf(format, args...), warning})
}

// bound brings numbers within min, max and budget, which may have been changed.
func (s *Scaler) bound(v *View) {
	st := &s.Status
	if t := st.Trial; t != nil {
		if s.fits(v, t.To) && s.fits(v, t.From) {
			return
		}
		s.end(v, t.From, false, onpath.MetricStats{}, gain{}, "the bounds were changed")
	}
	to := map[string]int{}
	for i := range v.Elements {
		e := &v.Elements[i]
		n, ok := st.Wanted[e.Name]
		if !ok {
			n = e.Now
		}
		to[e.Name] = min(max(n, e.Min), e.Max)
	}
	for s.Spec.Budget > 0 && v.cost(to) > s.Spec.Budget {
		dearest := ""
		for i := range v.Elements {
			if e := &v.Elements[i]; to[e.Name] > e.Min && (dearest == "" || e.Cost*to[e.Name] > v.element(dearest).Cost*to[dearest]) {
				dearest = e.Name
			}
		}
		if dearest == "" {
			break // min costs more, which validation refuses where the chain is in one cloudlet
		}
		to[dearest]--
	}
	if maps.Equal(to, st.Wanted) {
		return
	}
	st.Session = nil
	s.change(v, st.Wanted, to, "to fit min, max and budget")
}

// fits reports whether numbers are within min, max and budget.
func (s *Scaler) fits(v *View, numbers map[string]int) bool {
	for i := range v.Elements {
		e := &v.Elements[i]
		if n, ok := numbers[e.Name]; ok && (n < e.Min || n > e.Max) {
			return false
		}
	}
	return s.Spec.Budget == 0 || v.cost(numbers) <= s.Spec.Budget
}

// change has other numbers without a trial.
func (s *Scaler) change(v *View, from, to map[string]int, why string) {
	st := &s.Status
	changedFrom, changedTo := map[string]int{}, map[string]int{}
	for name, n := range to {
		if had, ok := from[name]; !ok || had != n {
			changedFrom[name], changedTo[name] = had, n
		}
	}
	st.Wanted, st.Settled = to, v.Now
	text := fmt.Sprintf("%s: %s", numbersText(v, changedFrom, changedTo), why)
	s.record(v, onpath.ScalingDecision{From: changedFrom, To: changedTo, Kept: true, Text: text})
	s.tell("Scaled", false, "%s", text)
}

// stop gives up a trial: nobody knows whether it helps.
func (s *Scaler) stop(v *View) {
	st := &s.Status
	if t := st.Trial; t != nil {
		s.end(v, t.From, false, onpath.MetricStats{}, gain{}, v.Stale)
	}
	st.Session = nil
	if st.Phase != onpath.ScalingStopped || st.Message != v.Stale {
		s.tell("ScalingStopped", true, "%s; the numbers of instances stay as they are until the metric is back", v.Stale)
	}
	st.Phase, st.Message = onpath.ScalingStopped, v.Stale
	s.forget()
}

// forget has the values from now on as the reference.
func (s *Scaler) forget() {
	s.Status.Reference, s.Status.Demand, s.inherited = onpath.MetricStats{}, onpath.MetricStats{}, false
	s.noticed, s.pressed, s.short, s.eased = time.Time{}, time.Time{}, time.Time{}, time.Time{}
}

// record adds to the decisions taken.
func (s *Scaler) record(v *View, d onpath.ScalingDecision) {
	d.Time, d.Cost = v.Now, v.cost(s.Status.Wanted)
	decisions := append(slices.Clone(s.Status.Decisions), d)
	s.Status.Decisions = decisions[max(0, len(decisions)-onpath.MaxScalingDecisions):]
}

// byCPU adds and removes by processor time alone.
func (s *Scaler) byCPU(v *View) {
	st := &s.Status
	st.Phase, st.Message = onpath.ScalingWatching, ""
	if v.Now.Sub(st.Settled) < s.window() || v.Now.Before(st.Resting) {
		return
	}
	for i := range v.Elements {
		e := &v.Elements[i]
		if !e.Evidence.Known {
			continue
		}
		to := maps.Clone(st.Wanted)
		switch cpu := max(e.Evidence.CPU, min(1, e.Evidence.Throttled*2)); {
		case cpu > 0.8:
			to[e.Name]++
		case cpu*float64(e.Now) < 0.6*float64(e.Now-1):
			to[e.Name]--
		}
		if !maps.Equal(to, st.Wanted) && s.fits(v, to) {
			s.change(v, st.Wanted, to, fmt.Sprintf("its instances use %.0f %% of their CPU", 100*e.Evidence.CPU))
			return
		}
	}
}
