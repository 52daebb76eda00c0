package scale

import (
	"cmp"
	"slices"
	"time"

	"github.com/onpath/onpath"
)

// watch waits for a sustained significant change, and for what else is a reason to try.
func (s *Scaler) watch(v *View) {
	st := &s.Status
	w := s.window()
	from := st.Settled
	if s.heard.After(from) {
		from = s.heard
	}
	from = from.Add(s.settling())
	if v.Now.Before(from.Add(w)) {
		return
	}
	now := s.Series.Between(v.Now.Add(-w), v.Now)
	if now.N < 4 {
		return
	}
	changed := s.sustained(&s.noticed, v.Now, s.differs(v, now))
	s.refer(v, from)
	pressed := s.sustained(&s.pressed, v.Now, s.pressedNow(v))
	unmet := s.sustained(&s.short, v.Now, s.misses(now))
	// While something changes, the values before are of another load.
	slack := s.sustained(&s.eased, v.Now, s.slack(v)) && s.noticed.IsZero()
	if v.Now.Before(st.Resting) {
		return
	}
	if changed && s.noticed.After(st.Settled) {
		st.Settled = s.noticed // what was before says nothing of now
	}
	if changed {
		st.Rests = 0
	}
	if changed || unmet && v.Now.Sub(st.Resting) > 10*time.Duration(s.Spec.Cooldown) {
		st.Futile, st.Needed = false, false
	}
	switch {
	case unmet && !st.Futile, s.Spec.Target == nil && (changed || !st.Futile) && pressed:
		s.start(v, false, changed)
	case changed && s.Spec.Target == nil && !allKnown(v):
		s.start(v, false, true)
	case !unmet && (changed || slack) && st.Doubt == "":
		s.start(v, true, changed)
	}
}

// refer has the values since all is settled as the reference, for up to ten windows, as
// long as nothing has changed. The last window is left out: with it a change would become a
// part of what it is compared with before it shows. A look that comes late compares first, for the
// same reason.
func (s *Scaler) refer(v *View, from time.Time) {
	st, last := &s.Status, v.Now.Add(-s.window())
	if st.Reference.N > 0 && (s.inherited || !s.noticed.IsZero()) || last.After(from.Add(10*s.window())) {
		return
	}
	if m := s.Series.Between(from, last); m.N >= 4 && m.N > st.Reference.N {
		st.Reference = m
	}
	if v.Demand == nil {
		return
	}
	if m := v.Demand.Between(from, last); m.N >= 4 && m.N > st.Demand.N {
		st.Demand = m
	}
}

// differs reports whether the last window is certainly and significantly other than the
// reference.
func (s *Scaler) differs(v *View, now onpath.MetricStats) bool {
	least := float64(s.Spec.Improve)
	if significant(s.Status.Reference, now, least) {
		return true
	}
	return v.Demand != nil && significant(s.Status.Demand, v.Demand.Between(v.Now.Add(-s.window()), v.Now), least)
}

// significant reports whether two sets of values, of four at least, differ by more than a
// part of the first, with an error of 0.001.
func significant(a, b onpath.MetricStats, least float64) bool {
	if a.N < 4 || b.N < 4 {
		return false
	}
	g := compare(a, b, onpath.ObjectiveMax)
	return min(g.below(least), g.above(-least)) <= 0.001
}

// sustained reports whether something has been so of all windows that ended in the last
// two: of a burst shorter than a window it is not.
func (s *Scaler) sustained(since *time.Time, now time.Time, is bool) bool {
	if !is {
		*since = time.Time{}
		return false
	}
	if since.IsZero() {
		*since = now
	}
	return now.Sub(*since) >= 2*s.window()
}

func (s *Scaler) pressedNow(v *View) bool {
	return slices.ContainsFunc(v.Elements, func(e Element) bool { return e.Evidence.Known && e.pressure() >= 0.9 })
}

func allKnown(v *View) bool {
	return !slices.ContainsFunc(v.Elements, func(e Element) bool { return !e.Evidence.Known })
}

// slack reports whether an element has an instance too many by its own word, and has not
// been found to need it since the value changed.
func (s *Scaler) slack(v *View) bool {
	return !s.Status.Needed && slices.ContainsFunc(v.Elements, func(e Element) bool { return e.slack() })
}

// meets reports whether the value is good enough.
func (s *Scaler) meets(m onpath.MetricStats) bool {
	switch {
	case s.Spec.Target == nil:
		return false
	case s.Spec.Objective == onpath.ObjectiveMin:
		return m.Mean <= *s.Spec.Target
	}
	return m.Mean >= *s.Spec.Target
}

// misses reports whether the value certainly is not good enough.
func (s *Scaler) misses(m onpath.MetricStats) bool {
	if s.Spec.Target == nil || s.meets(m) {
		return false
	}
	return compare(onpath.MetricStats{N: m.N, Mean: *s.Spec.Target, Rho: m.Rho}, m, s.Spec.Objective).above(0) <= 0.01
}

// start begins trials; sudden: because something has changed.
func (s *Scaler) start(v *View, down, sudden bool) {
	st := &s.Status
	st.Session = &onpath.ScalingSession{Down: down, Began: v.Now, Pass: 1, Sudden: sudden}
	st.Session.Next = s.order(v, down)
	st.Phase = onpath.ScalingTrying
	s.noticed, s.pressed, s.short, s.eased = time.Time{}, time.Time{}, time.Time{}, time.Time{}
	if len(st.Session.Next) == 0 {
		s.finish(v, false, onpath.MetricStats{})
		return
	}
	s.next(v)
}

// order is the order of trials: by evidence, then along the chain. To grow, the last element
// that drops packets comes first: it does so though those before it let less through, so it
// is the narrowest.
func (s *Scaler) order(v *View, down bool) (names []string) {
	list := slices.Clone(v.Elements)
	list = slices.DeleteFunc(list, func(e Element) bool {
		if down {
			return e.Now <= e.Min || e.Evidence.Known && e.pressure()*float64(e.Now) > 0.95*float64(e.Now-1)
		}
		return s.one(v, e.Name, false) == nil || s.Spec.Target == nil && e.idle()
	})
	narrow := func(e *Element) int {
		if !e.Evidence.Known || e.Evidence.Dropped <= seriousDrops {
			return -1
		}
		return slices.IndexFunc(v.Elements, func(x Element) bool { return x.Name == e.Name })
	}
	slices.SortStableFunc(list, func(a, b Element) int {
		if down {
			return cmp.Compare(a.pressure(), b.pressure())
		}
		return cmp.Or(cmp.Compare(narrow(&b), narrow(&a)), cmp.Compare(b.pressure(), a.pressure()))
	})
	for i := range list {
		names = append(names, list[i].Name)
	}
	return names
}

// next begins the next trial of the session, once it is known how the value is now.
func (s *Scaler) next(v *View) {
	x := s.Status.Session
	before, ok := s.before(v, x)
	if !ok {
		return
	}
	if !x.Down && s.meets(before[s.Name]) {
		if !x.Trim {
			s.finish(v, true, before[s.Name])
			return
		}
		s.trim(v, x)
	}
	if allKnown(v) { // what was the narrowest, or had time on its hands, may not be so any more
		if left := s.left(v, x); x.Down {
			x.Next = slices.DeleteFunc(x.Next, func(name string) bool { return !slices.Contains(left, name) })
		} else {
			x.Next = left
		}
	}
	if s.Spec.Policy == onpath.ScaleAll {
		if to := s.all(v, x.Down); to != nil && !x.All {
			x.All = true
			s.begin(v, to, before)
			return
		}
		s.finish(v, false, before[s.Name])
		return
	}
	for len(x.Next) > 0 {
		if e := v.element(x.Next[0]); e != nil && !x.Down && s.Spec.Target == nil && e.idle() {
			x.Next = x.Next[1:]
			continue
		}
		if to := s.one(v, x.Next[0], x.Down); to != nil {
			s.begin(v, to, before)
			return
		}
		x.Next = x.Next[1:]
	}
	s.pass(v, before)
}

// before is how the values are with the numbers of now; ok: that is known well enough. After
// a trial in vain the values before it count on, for up to twenty windows, unless those since
// say otherwise.
func (s *Scaler) before(v *View, x *onpath.ScalingSession) (before map[string]onpath.MetricStats, ok bool) {
	w, from := s.window(), s.Status.Settled.Add(s.settling())
	if s.heard.After(from) {
		from = s.heard
	}
	if early := v.Now.Add(-4 * w); early.After(from) {
		from = early
	}
	if recent := v.Now.Add(-w); recent.After(from) && significant(s.Series.Between(from, recent), s.Series.Between(recent, v.Now), 0) {
		from = recent // the load has changed since
	}
	now := s.Series.Between(from, v.Now)
	if v.Now.Before(from.Add(w/4)) || now.N < 4 || !allKnown(v) && v.Now.Before(s.Status.Settled.Add(w)) {
		return nil, false
	}
	had := x.Before
	if v.Now.Sub(x.BeforeFrom) > 20*w || had[s.Name].N == 0 || differ(had[s.Name], now) {
		had = nil
	}
	if had == nil {
		if v.Now.Before(from.Add(w)) {
			return nil, false
		}
		x.BeforeFrom = from
	}
	before = map[string]onpath.MetricStats{s.Name: pooled(had[s.Name], now)}
	if v.Now.Sub(from) < 4*w && compare(before[s.Name], before[s.Name], s.Spec.Objective).se > float64(s.Spec.Improve)/2 {
		return nil, false // noise: the comparison can be no better than this
	}
	for i := range v.Elements {
		for _, o := range v.Elements[i].Others {
			before[o.Name] = pooled(had[o.Name], o.Series.Between(from, v.Now))
		}
	}
	return before, true
}

// differ reports whether two sets of values probably have other means.
func differ(a, b onpath.MetricStats) bool {
	g := compare(a, b, onpath.ObjectiveMax)
	return min(g.below(0), g.above(0)) <= Error/2
}

// left are the elements that have not been tried in vain since something was kept.
func (s *Scaler) left(v *View, x *onpath.ScalingSession) []string {
	return slices.DeleteFunc(s.order(v, x.Down), func(name string) bool { return slices.Contains(x.Vain, name) })
}

// pass ends a pass over the chain: another one follows with what has not been tried since
// something was kept; then comes a trial of all elements together, and a trim.
func (s *Scaler) pass(v *View, before map[string]onpath.MetricStats) {
	x := s.Status.Session
	next := s.left(v, x)
	if !x.Down && len(next) == 0 && !x.All && (!allKnown(v) || s.pressedNow(v) || s.Spec.Target != nil) {
		x.All = true
		if to := s.all(v, false); len(to) > 1 {
			s.begin(v, to, before)
			return
		}
	}
	switch {
	case len(next) > 0 && !x.Down:
		x.Pass, x.Next = x.Pass+1, next
	case x.Trim && !x.Down:
		s.trim(v, x)
	default:
		s.finish(v, false, before[s.Name])
	}
}

// trim goes on with taking away what more than one instance at a time has brought too much.
func (s *Scaler) trim(v *View, x *onpath.ScalingSession) {
	x.Down, x.Trim, x.Trimming, x.Vain = true, false, true, nil
	x.Lost, x.Next = 0, s.order(v, true)
}

// one is the trial of an element; nil: it can neither grow nor shrink.
func (s *Scaler) one(v *View, name string, down bool) map[string]int {
	e := v.element(name)
	if e == nil {
		return nil
	}
	if down {
		if n := s.Status.Wanted[name] - 1; n >= e.Min && e.Ready > 1 {
			return map[string]int{name: n}
		}
		return nil
	}
	for k := e.step(); k > 0; k-- {
		to := map[string]int{name: s.Status.Wanted[name] + k}
		if s.fits(v, with(s.Status.Wanted, to)) {
			return to
		}
	}
	return nil
}

// all is the trial of all elements together, but those that certainly have time on their
// hands; nil: there is none.
func (s *Scaler) all(v *View, down bool) map[string]int {
	to := map[string]int{}
	for i := range v.Elements {
		e := &v.Elements[i]
		if !down && s.Spec.Policy != onpath.ScaleAll && s.Spec.Target == nil && e.idle() {
			continue
		}
		n := s.Status.Wanted[e.Name] + 1
		if down {
			n -= 2
		}
		if n >= e.Min && n <= e.Max && (!down || e.Ready > 1) {
			to[e.Name] = n
		}
	}
	if len(to) == 0 || !s.fits(v, with(s.Status.Wanted, to)) {
		return nil
	}
	return to
}

// finish ends the session, and rests. All that is left has been tried in vain, but where
// the value is good enough. now is how the value is, as far as that is known: a change from
// it begins the next session.
func (s *Scaler) finish(v *View, enough bool, now onpath.MetricStats) {
	st, x := &s.Status, s.Status.Session
	st.Session = nil
	st.Resting = v.Now.Add(time.Duration(s.Spec.Cooldown) << min(st.Rests, 5))
	st.Rests++
	s.forget()
	st.Reference = now
	if x.Down {
		st.Needed = true
		// What went without a loss would not help if it came again.
		st.Futile = st.Futile || x.Any > 0 && !x.Trimming && s.Spec.Target == nil
	}
	if !x.Down || x.Trimming {
		st.Futile = !enough
	}
	if !x.Down {
		st.Needed = false
	}
	st.Phase = onpath.ScalingWatching
	s.tell("ScalingSettled", false, "%s: %s; nothing is tried before %s have passed", s.standing(v), costText(v.cost(st.Wanted)),
		onpath.Duration(st.Resting.Sub(v.Now)))
}
