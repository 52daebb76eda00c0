package scale

import (
	"maps"
	"slices"
	"time"

	"github.com/onpath/onpath"
)

// verdict is what values say of a trial.
type verdict int

const (
	unclear verdict = iota
	keep
	giveBack
)

// startTime is how long instances may take to be ready in a trial.
func (s *Scaler) startTime() time.Duration { return max(30*time.Second, 2*s.window()) }

// begin puts numbers on trial.
func (s *Scaler) begin(v *View, to map[string]int, before map[string]onpath.MetricStats) {
	st := &s.Status
	t := &onpath.ScalingTrial{From: map[string]int{}, To: to, Began: v.Now, Before: before}
	for name := range to {
		t.From[name] = st.Wanted[name]
	}
	st.Wanted = with(st.Wanted, to)
	st.Trial = t
	s.tell("ScalingTrial", false, "%s is tried: %s%s", numbersText(v, t.From, t.To), valueText(before[s.Name].Mean), evidenceText(v, to))
}

// with are numbers with some changed.
func with(numbers, changes map[string]int) map[string]int {
	m := maps.Clone(numbers)
	maps.Copy(m, changes)
	return m
}

// try goes on with the trial.
func (s *Scaler) try(v *View) {
	st := &s.Status
	t := st.Trial
	since := v.Now.Sub(t.Began)
	if s.began.After(t.Began) { // by another scaler, and nobody looked in between
		if s.began.Sub(t.Began) > s.startTime()+20*s.window() {
			s.end(v, t.From, false, onpath.MetricStats{}, gain{}, "the values before it are too old")
			return
		}
		since = v.Now.Sub(s.began)
	}
	for name := range t.To {
		e := v.element(name)
		switch {
		case e == nil:
			s.end(v, t.From, false, onpath.MetricStats{}, gain{}, "the element is gone")
			return
		case e.Ready == t.To[name]:
			continue
		case t.To[name] > t.From[name] && e.NoCapacity != "" && since > time.Second:
			s.end(v, t.From, false, onpath.MetricStats{}, gain{}, e.NoCapacity)
			return
		case since > s.startTime()+10*s.window():
			s.end(v, t.From, false, onpath.MetricStats{}, gain{}, "not all instances stayed ready")
			return
		case t.Ready.IsZero() && since > s.startTime():
			s.end(v, t.From, false, onpath.MetricStats{}, gain{}, "it did not become ready in "+onpath.Duration(s.startTime()).String())
			return
		}
		t.Ready, t.Look = time.Time{}, 0 // from the beginning, once it is
		return
	}
	if t.Ready.IsZero() {
		t.Ready = v.Now
	}
	counts := t.Ready.Add(s.settling())
	if t.Look >= Looks || v.Now.Before(counts.Add(time.Duration(looks[t.Look]*float64(s.window())))) {
		return
	}
	after := s.Series.Between(counts, v.Now)
	if after.N < 4 && t.Look < Looks-1 {
		return // too few to tell
	}
	t.Look++
	if looks[t.Look-1] < 1 && (s.unhurried() || s.reverses()) {
		return
	}
	got, g := s.compare(v, counts)
	switch {
	case got == keep && saysNothing(s, v, counts):
		t.Look-- // it is looked at again
	case got == keep:
		s.end(v, t.To, true, after, g, "")
	case got == giveBack:
		s.end(v, t.From, false, after, g, "")
	}
}

// compare compares the values of all chains that use the elements on trial.
func (s *Scaler) compare(v *View, counts time.Time) (verdict, gain) {
	t := s.Status.Trial
	up := grows(t)
	alpha := Error / Looks
	after := s.Series.Between(counts, v.Now)
	own := compare(t.Before[s.Name], after, s.Spec.Objective)
	all := own
	if x := s.Status.Session; x != nil && !up {
		all.change += x.Lost // many small losses are a large one
	}
	most := alpha
	if up && s.unlikely(v) {
		most /= 10 // who says that it has time on its hands must help beyond doubt
	}
	if up && len(t.To) > 1 {
		most /= 4 // so much is added only on good grounds
	}
	doubt := s.Status.Session != nil && s.Status.Session.Trimming // what was added on trust stays only if it is needed
	if !doubt && s.reverses() {
		most /= 10 // or noise would have it come and go
	}
	got := s.enough(up, t.Before[s.Name], after, decide(up, all, s.worth(t.Before[s.Name]), most, t.Look, doubt))
	for name := range t.To {
		for _, o := range v.element(name).Others {
			before, ok := t.Before[o.Name]
			now := o.Series.Between(counts, v.Now)
			if !ok || before.N < 4 || now.N < 4 {
				continue // it says nothing, which keeps nobody
			}
			theirs := decide(up, compare(before, now, o.Objective), o.Improve, alpha, t.Look, doubt)
			got = join(up, got, theirs)
		}
	}
	return got, own
}

// unhurried reports whether decisions can wait for a whole window, so that no burst passes
// for what a trial brought.
func (s *Scaler) unhurried() bool {
	x := s.Status.Session
	return x != nil && !x.Sudden && s.Status.Rests > 0
}

// reverses reports whether the trial would undo a decision that was taken for good while
// nothing has changed: after a change of load it is to be expected.
func (s *Scaler) reverses() bool {
	t := s.Status.Trial
	if x := s.Status.Session; x != nil && x.Sudden {
		return false
	}
	return slices.ContainsFunc(s.Status.Decisions, func(d onpath.ScalingDecision) bool {
		for name, n := range t.To {
			if from, ok := d.From[name]; d.Kept && ok && from == n && d.To[name] == t.From[name] {
				return true
			}
		}
		return false
	})
}

// worth is by how much the value must be better for an instance to stay: less than Improve
// where less is lacking to the target.
func (s *Scaler) worth(before onpath.MetricStats) float64 {
	improve := float64(s.Spec.Improve)
	if s.Spec.Target == nil || s.meets(before) {
		return improve
	}
	lacking := compare(before, onpath.MetricStats{N: 1, Mean: *s.Spec.Target}, s.Spec.Objective).change
	return min(improve, max(lacking, improve/5))
}

// enough corrects a verdict by the target: more instances with which the value is good
// enough stay, though what they gain is not certain; a value that was good enough must stay
// so with fewer.
func (s *Scaler) enough(up bool, before, after onpath.MetricStats, got verdict) verdict {
	if up && got == giveBack && s.Status.Trial.Look >= Looks && s.Spec.Target != nil && !s.meets(before) && s.meets(after) {
		return keep
	}
	if up || !s.meets(before) || s.meets(after) {
		return got
	}
	if s.misses(after) || s.Status.Trial.Look >= Looks-1 {
		return giveBack
	}
	if got == giveBack {
		return got
	}
	return unclear
}

// join is the verdict for two chains: an instance stays if one gains, and goes only if
// none loses.
func join(up bool, a, b verdict) verdict {
	decisive := keep // of growth: one is enough
	if !up {
		decisive = giveBack
	}
	switch {
	case a == decisive || b == decisive:
		return decisive
	case a == unclear || b == unclear:
		return unclear
	}
	return a
}

// decide by one chain's values at a look. At the last but one, what does not look
// promising is over; at the last, all is, and doubt says whether fewer are then kept.
func decide(up bool, g gain, improve, alpha float64, look int, doubt bool) verdict {
	early, last := look == Looks-1, look == Looks
	if up {
		switch {
		case g.below(improve) <= alpha, last && g.change >= improve && g.below(0) <= alpha:
			return keep
		case g.above(improve) <= alpha, last, early && g.change < improve:
			return giveBack
		}
		return unclear
	}
	switch {
	case g.below(-improve) <= alpha:
		return keep // the fewer
	case g.above(-improve) <= alpha, early && g.change < -improve/2 && !doubt:
		return giveBack
	case last && doubt && g.change > -improve:
		return keep
	case last:
		return giveBack
	}
	return unclear
}

func grows(t *onpath.ScalingTrial) bool {
	for name, n := range t.To {
		if n > t.From[name] {
			return true
		}
	}
	return false
}

// unlikely reports whether no element on trial seemed near its limits.
func (s *Scaler) unlikely(v *View) bool {
	for name := range s.Status.Trial.To {
		if e := v.element(name); !e.Evidence.Known || e.pressure()*float64(e.Now)/float64(max(s.Status.Trial.From[name], 1)) > 0.5 {
			return false
		}
	}
	return true
}

// end has numbers for good, and tells why.
func (s *Scaler) end(v *View, numbers map[string]int, kept bool, after onpath.MetricStats, g gain, why string) {
	st := &s.Status
	t := st.Trial
	st.Trial = nil
	st.Wanted, st.Settled = with(st.Wanted, numbers), v.Now
	if kept {
		st.Settled = t.Ready // what was measured since is of these numbers
	}
	d := onpath.ScalingDecision{
		Took: onpath.Duration(v.Now.Sub(t.Began).Round(time.Millisecond)), From: t.From, To: t.To, Kept: kept,
		Before: t.Before[s.Name].Mean, After: after.Mean, Change: g.change,
	}
	d.Text = s.trialText(v, t, kept, after, g, why)
	s.record(v, d)
	s.tell("Scaled", false, "%s", d.Text)
	if x := st.Session; x != nil {
		s.note(x, t, kept, g)
	}
}

// note has the session go on with what came of a trial.
func (s *Scaler) note(x *onpath.ScalingSession, t *onpath.ScalingTrial, kept bool, g gain) {
	x.Before = t.Before // the numbers are those again
	if kept {
		x.Before = nil
		x.Any++
		x.Vain, x.All = nil, false
		x.Trim = x.Trim || (len(t.To) > 1 || s.unhurried()) && s.Spec.Policy != onpath.ScaleAll
		if x.Down {
			x.Lost = min(x.Lost+g.change, 0)
		}
	}
	for name, n := range t.To {
		switch {
		case kept:
			x.Trim = x.Trim || n > t.From[name]+1 && s.Spec.Policy != onpath.ScaleAll
		case len(t.To) == 1:
			x.Vain = append(x.Vain, name)
			x.Next = slices.DeleteFunc(x.Next, func(s string) bool { return s == name })
		}
	}
}
