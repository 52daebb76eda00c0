package node

import (
	"context"
	"fmt"
	"time"

	"github.com/onpath/onpath"
)

// KindEBPF is the key of the runtime of ebpf functions in Options.Runtimes.
const KindEBPF = "ebpf"

// An ebpf function has no process to probe. What is asked instead: whether the
// data path runs it, and how long its packets take.
const (
	inlineEvery    = onpath.Duration(time.Second)
	inlineFailures = 3
	inlineStart    = onpath.Duration(time.Minute)
	// fewSamples are too few to judge by.
	fewSamples = 8
)

// healthFor is the health of a function's instances.
func healthFor(s *onpath.FunctionSpec) health {
	if s.EBPF == nil {
		return healthOf(s.Health)
	}
	budget := s.EBPF.Budget
	if budget == 0 {
		budget = onpath.DefaultBudget
	}
	return health{Every: inlineEvery, Failures: inlineFailures, Start: inlineStart, budget: time.Duration(budget)}
}

// stopwatch remembers what a function's run time was when last asked.
type stopwatch struct {
	samples, time uint64
	over          error // above the budget; nothing has been measured since
}

// probeInline asks the data path about an ebpf function.
func (in *instance) probeInline(ctx context.Context, h health, s *stopwatch) error {
	c, err := in.a.functionCounters(ctx)
	if err != nil {
		return onpath.Errorf(onpath.CodeUnavailable, "the data path cannot be asked: %w", err)
	}
	f, ok := c[in.current().Vport]
	switch {
	case f.Error != "":
		return fmt.Errorf("the data path cannot run it: %s", f.Error)
	case !ok || !f.Linked:
		return fmt.Errorf("it is not part of the data path yet")
	}
	return s.judge(f, h.budget)
}

// judge compares the mean of the samples taken since the last time with the
// budget. Without samples the last judgement stands: what is out of the path is
// not measured.
func (s *stopwatch) judge(f onpath.FunctionCounters, budget time.Duration) error {
	if f.Samples < s.samples { // begun anew
		*s = stopwatch{}
	}
	n := f.Samples - s.samples
	if n < fewSamples {
		return s.over
	}
	mean := time.Duration((f.Time - s.time) / n)
	s.samples, s.time, s.over = f.Samples, f.Time, nil
	if mean > budget {
		s.over = fmt.Errorf("a packet takes it %s in the mean of %d samples, and its budget is %s", mean, n, budget)
	}
	return s.over
}

// functionCounters reads the counters of this node's ebpf functions.
func (a *Agent) functionCounters(ctx context.Context) (map[onpath.VportID]onpath.FunctionCounters, error) {
	if r, ok := a.opt.Datapath.(onpath.FunctionReader); ok {
		return r.Functions(ctx)
	}
	c, err := a.opt.Datapath.Counters(ctx)
	if err != nil {
		return nil, err
	}
	return c.Functions, nil
}

// inlineOf is what the data path must link for the instance, if it is ready for
// that. Callers hold a.mu.
func (in *instance) inlineOf() (onpath.InlineFunction, bool) {
	p, ok := in.proc.(onpath.Inline)
	if !ok || ended(in.proc) {
		return onpath.InlineFunction{}, false
	}
	f := p.Inline()
	f.Vport = in.plan.Vport
	return f, true
}

// reconfigure hands a running function its changed configuration.
func (in *instance) reconfigure(ctx context.Context, w *watch, old onpath.InstancePlan) {
	p, ok := w.p.(onpath.Reconfigurable)
	if !ok || w.plan.Spec.EBPF == nil {
		return
	}
	if old.Spec.EBPF != nil && in.configured == hashOf(w.plan.Spec.EBPF) {
		in.tellOf(w.plan.Spec.EBPF, nil) // it may take back what was refused
		return
	}
	err := p.Reconfigure(ctx, &w.plan.Spec)
	if ctx.Err() != nil {
		return
	}
	in.tellOf(w.plan.Spec.EBPF, err)
	if err != nil {
		in.a.event(w.plan, true, "ConfigRefused", "it keeps its configuration: %v", err)
		return
	}
	if in.configured != "" {
		in.a.event(w.plan, false, "Configured", "runs by its new configuration")
	}
	in.configured = hashOf(w.plan.Spec.EBPF)
}

// tellOf has reports say what an ebpf function was told last, and whether it took
// that.
func (in *instance) tellOf(e *onpath.EBPFSpec, err error) {
	in.a.mu.Lock()
	defer in.a.mu.Unlock()
	told, refused := e.Told(), ""
	if err != nil {
		refused = err.Error()
	}
	if in.told != told || in.refused != refused {
		in.told, in.refused = told, refused
		kick(in.a.report)
	}
}
