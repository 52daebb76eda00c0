package instance

import (
	"context"
	"fmt"
	"time"

	"github.com/onpath/onpath"
)

// An ebpf function has no process to probe. What is asked instead: whether the
// data path runs it, and how long its packets take.
const (
	inlineEvery    = onpath.Duration(time.Second)
	inlineFailures = 3
	inlineStart    = onpath.Duration(time.Minute)

	// Run time is checked by groups of samples. One packet in 1,024 is a sample, so
	// a group that is full in time stands for some 6,500 packets/s: with fewer a
	// CPU's caches forget the function from one packet to the next, which is no
	// fault of it, and what it takes is next to nothing.
	groupSamples = 16
	groupTime    = 2500 * time.Millisecond
	// slowGroups in a row must be above the budget, each one of them: the quickest
	// one counts, which a busy machine that takes the CPU away does not slow down.
	slowGroups = 16
)

// healthFor is the health of an instance.
func healthFor(p *onpath.InstancePlan) health {
	budget := p.Spec.Traits().Budget
	if budget == 0 {
		h := healthOf(p.Spec.Health)
		h.wakes = p.OnDemand != nil
		return h
	}
	return health{Every: inlineEvery, Failures: inlineFailures, Start: inlineStart, budget: time.Duration(budget)}
}

// stopwatch remembers what a function's run time was when last asked.
type stopwatch struct {
	samples, time uint64 // at the beginning of the group
	begun         time.Time
	slow          int           // groups in a row above the budget
	taken         uint64        // samples of these
	quickest      time.Duration // mean of these
	over          error         // above the budget; nothing has been measured since
}

// unlinked is why the data path has no place for a function; waiting does not help.
type unlinked struct{ why string }

func (u *unlinked) Error() string { return "the data path cannot run it: " + u.why }

// probeInline asks the data path about an ebpf function.
func (in prober) probeInline(ctx context.Context, h health, s *stopwatch) error {
	c, err := functionCounters(ctx, in.s.part.Datapath)
	if err != nil {
		return onpath.Errorf(onpath.CodeUnavailable, "the data path cannot be asked: %w", err)
	}
	f, ok := c[in.current().Vport]
	switch {
	case f.Error != "":
		return &unlinked{f.Error}
	case !ok || !f.Linked:
		return fmt.Errorf("it is not part of the data path yet")
	}
	return s.check(f, h.budget, in.s.part.Clock.Now())
}

// check says whether a function is above its budget: by the quickest of slowGroups
// groups of samples in a row. Groups of too few packets a second are left out. Without
// samples the last answer stands: what is out of the path is not measured.
func (s *stopwatch) check(f onpath.FunctionCounters, budget time.Duration, now time.Time) error {
	if s.begun.IsZero() || f.Samples < s.samples { // the first time, or counted anew
		*s = stopwatch{}
		s.begin(f, now)
		return nil
	}
	n := f.Samples - s.samples
	took := now.Sub(s.begun)
	switch {
	case n < groupSamples && took < groupTime:
		return s.over
	case n*uint64(groupTime) < groupSamples*uint64(took):
		s.begin(f, now)
		return s.over
	}
	mean := time.Duration((f.Time - s.time) / n)
	s.begin(f, now)
	if mean <= budget {
		s.slow, s.taken, s.over = 0, 0, nil
		return nil
	}
	if s.slow == 0 || mean < s.quickest {
		s.quickest = mean
	}
	s.slow++
	s.taken += n
	if s.slow >= slowGroups {
		s.over = fmt.Errorf("a packet takes it %s and more in the mean of each of %d groups of samples in a row, %d samples in all, and its budget is %s", s.quickest, s.slow, s.taken, budget)
	}
	return s.over
}

// begin begins a group of samples.
func (s *stopwatch) begin(f onpath.FunctionCounters, now time.Time) {
	s.samples, s.time, s.begun = f.Samples, f.Time, now
}

// functionCounters reads the counters of this node's ebpf functions.
func functionCounters(ctx context.Context, d onpath.Datapath) (map[onpath.VportID]onpath.FunctionCounters, error) {
	if r, ok := d.(onpath.FunctionReader); ok {
		return r.Functions(ctx)
	}
	c, err := d.Counters(ctx)
	if err != nil {
		return nil, err
	}
	return c.Functions, nil
}

// refusedConfig stands for a configuration that was refused: a part of it may be in force, so
// that the one before has to be handed over again.
const refusedConfig = "refused"

// reconfigure hands a running function its changed configuration.
func (w *supervision) reconfigure(ctx context.Context) {
	in := w.in
	p, ok := w.p.(onpath.Reconfigurable)
	told := w.plan.Spec.Told()
	if !ok || told == "" {
		return
	}
	if in.configured == told {
		in.st.tellOf(told, nil) // it may take back what was refused
		return
	}
	err := p.Reconfigure(ctx, &w.plan.Spec)
	if ctx.Err() != nil {
		return
	}
	first := in.configured == ""
	if in.took(w.plan, told, err); err == nil && !first {
		in.s.part.TellInstance(w.plan, false, "Configured", "runs by its new configuration")
	}
}

// took notes what a function was told, and tells of what it refused of that.
func (in *instance) took(plan onpath.InstancePlan, told string, refused error) {
	in.st.tellOf(told, refused)
	in.configured = told
	if refused != nil {
		in.s.part.TellInstance(plan, true, "ConfigRefused",
			"it refuses its configuration or part of it, and keeps what it had: %v", refused)
		in.configured = refusedConfig
	}
}

// lacks is what a function does not do of what it was started with.
func lacks(p onpath.Process) error {
	if l, ok := p.(onpath.Lacking); ok {
		return l.Lacks()
	}
	return nil
}
