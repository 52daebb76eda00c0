package instance

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"time"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/node/base"
	"github.com/onpath/onpath/node/wiring"
)

// supervision is what supervise knows about one run of a process.
type supervision struct {
	in         *instance
	p          onpath.Process
	plan       onpath.InstancePlan
	resources  onpath.Resources // in force
	awaited    bool             // it was started as RunSpec.Awaited, and not resized since
	health     health
	began      time.Time // of the run, as far as this agent knows
	ready      bool
	everReady  bool
	settled    bool         // has run long enough to be ready without a probe
	badSince   time.Time    // not ready since
	failures   int          // probes in a row
	unasked    int          // probes in a row that could not be run
	probes     <-chan error // results; nil: nothing is probed
	stopProbes func()
	eager      chan bool       // to the prober: probe often (starting) or as told
	stopped    bool            // its first process is (SIGSTOP)
	rewiring   <-chan struct{} // rings when wiring that failed is due again; nil: it did not
	endWait    func()
	rewait     base.Backoff
	quiet      <-chan uint64 // rings when no packet has come for long; nil: it never sleeps
	stopQuiet  func()
}

// supervise watches a running process until it ends, must be ended, or ctx
// ends. good is how long it ran; without a Cause it is to start again at once.
func (in *instance) supervise(ctx context.Context, p onpath.Process, assumed bool) (good time.Duration, why Cause) {
	now := in.s.part.Clock.Now()
	w := &supervision{in: in, p: p, plan: in.current(), began: now, badSince: now, ready: assumed, everReady: assumed}
	w.health, w.endWait, w.stopQuiet = healthFor(&w.plan), func() {}, func() {}
	defer func() { w.endWait() }()
	forget := watcher{in.self}.closeAtEnd(p)
	defer func() { forget() }()
	w.startProbes(ctx)
	defer func() { w.stopProbes() }()
	halts, stopLooking := watcher{in.self}.watchHalts(ctx, p)
	defer stopLooking()
	fills, stopFilling := watcher{in.self}.watchFull(ctx, p)
	defer stopFilling()
	defer logs{in.self}.watchLog(ctx, p)()
	settled, stopSettling := in.settle(ctx)
	defer stopSettling()
	defer func() { w.stopQuiet() }()
	if in.launched == p { // just started with them
		w.resources, w.awaited = w.plan.Spec.Resources, maker{in.self}.runSpec(w.plan).Awaited
	} else if !ended(p) {
		w.resize(ctx, true)
	}
	if in.launched != p {
		base.Kick(in.changed) // whatever changed while no agent looked
	}
	if _, lacks := in.st.wiring(); lacks != "" {
		w.rewiring, w.endWait = base.Alarm(ctx, in.s.part.Clock, w.rewait.After(0))
	}
	switch {
	case assumed:
		w.listen(ctx)
		in.s.part.TellInstance(w.plan, false, "Adopted", "it ran on while the agent was away%s", asProcess(p))
	case !w.health.probed():
		in.st.set(onpath.InstanceStarting, Cause{"Settling", "seeing whether it keeps running"})
	default:
		in.st.set(onpath.InstanceStarting, Cause{awaitingProbe, "waiting for the first probe to succeed"})
	}
	for {
		if in.wrongNamespace {
			w.kill(ctx, namespaceReplaced.Words)
			return 0, Cause{}
		}
		select {
		case <-ctx.Done():
			return 0, Cause{}
		case <-p.Exited():
			return w.exited(ctx)
		case <-settled:
			settled, w.settled = nil, true
			if !w.health.probed() && !w.ready && !w.stopped && !ended(p) {
				w.becomeReady(ctx)
			}
		case w.stopped = <-halts:
			w.halted(ctx)
		case err := <-w.probes:
			if why := w.probed(ctx, err); why != "" {
				return in.s.part.Clock.Now().Sub(w.began), w.kill(ctx, why)
			}
		case full := <-fills:
			watcher{in.self}.fill(full)
		case <-w.rewiring:
			w.rewire(ctx)
		case last := <-w.quiet:
			now, ok := watcher{in.self}.handedOver(ctx, &w.plan)
			if ok && now == last && w.ready && !w.plan.Draining && !ended(p) {
				w.fallAsleep(ctx, forget)
				forget = func() {}
				return 0, Cause{}
			}
		case <-in.changed:
			before := w.plan.OnDemand
			if w.planChanged(ctx) {
				return 0, Cause{}
			}
			if !reflect.DeepEqual(before, w.plan.OnDemand) {
				w.listen(ctx)
			}
		}
	}
}

// planChanged takes up the plan as it is now; it reports whether that needed another
// process, and ended this one.
func (w *supervision) planChanged(ctx context.Context) (replaced bool) {
	in, old := w.in, w.plan
	w.plan = in.current()
	if shape := w.p.Labels()[LabelShape]; shape != "" && shape != shapeOf(w.plan.Spec) {
		in.s.part.TellInstance(w.plan, false, "Replaced", "its function changed; it is started anew")
		w.kill(ctx, "its function changed")
		return true
	}
	w.rewire(ctx)
	w.resize(ctx, false)
	w.reconfigure(ctx)
	if idleOf(&old) != idleOf(&w.plan) || in.launched != w.p {
		inside{in.self}.tellIdle(w.p, w.plan)
	}
	if !old.Pair.Equal(w.plan.Pair) || in.launched != w.p {
		inside{in.self}.tellPair(w.p, w.plan)
	}
	if w.plan.Draining && !old.Draining {
		in.s.part.TellInstance(w.plan, false, "Draining", "keeps its flows and gets no new ones")
	}
	if h := healthFor(&w.plan); !reflect.DeepEqual(h, w.health) {
		w.health = h
		w.stopProbes()
		w.startProbes(ctx)
		if !h.probed() && !w.ready && !w.stopped && w.settled {
			w.becomeReady(ctx)
		}
	}
	return false
}

// closeAtEnd has the kernel close the instance's vports when its process ends,
// until the returned function is called. What cannot be done so is done when the
// agent sees the end.
func (in watcher) closeAtEnd(p onpath.Process) (forget func()) {
	c, ok := in.s.part.Datapath.(onpath.ExitCloser)
	pid := p.Pid()
	if !ok || pid == 0 || ended(p) {
		return func() {}
	}
	forget, err := c.CloseAtExit(pid, wiring.Of(in.id, in.current()).Vports())
	switch {
	case err == nil:
		return forget
	case onpath.CodeOf(err) != onpath.CodeUnsupported && !ended(p): // else the data path has said so
		in.s.part.Log.Warn("an instance's vports close only when the agent sees its end", "instance", in.id, "err", err)
	}
	return func() {}
}

// A process without a probe must run this long before it counts as ready, so
// that one which ends at once activates no chain; longer if the last run was
// short.
const (
	settleFirst      = 100 * time.Millisecond
	settleAfterCrash = time.Second
)

// settle begins the wait; the returned function ends it.
func (in *instance) settle(ctx context.Context) (<-chan struct{}, func()) {
	d := settleFirst
	if in.endedSoon {
		d = settleAfterCrash
	} else if p := in.current(); isLease(&p) {
		d = 0 // its engine has taken its modules before it counts as started
	}
	return base.Alarm(ctx, in.s.part.Clock, d)
}

// tellIdle tells a running container new idle times.
func (in inside) tellIdle(p onpath.Process, plan onpath.InstancePlan) {
	if !plan.Spec.Traits().Informed {
		return
	}
	if err := inform(p.Pid(), in.s.part.Dir.NetNS(in.id), idleOf(&plan)); err != nil && !ended(p) {
		in.s.part.Log.Warn("an instance does not learn how long flows may rest", "instance", in.id, "err", err)
	}
}

func (w *supervision) becomeReady(ctx context.Context) {
	in := w.in
	w.ready, w.everReady, w.failures = true, true, 0
	in.openUp(ctx)
	w.listen(ctx)
	if w.awaited {
		w.resize(ctx, true)
	}
}

// exited closes the vports of an ended process before anything else.
func (w *supervision) exited(ctx context.Context) (good time.Duration, why Cause) {
	in := w.in
	good = in.s.part.Clock.Now().Sub(w.began)
	in.shut(ctx) // before asking how it ended, which takes its time
	code, _ := w.p.Exit()
	why = Cause{onpath.ReasonExited, exitWords(code)}
	if j, ok := w.p.(onpath.Judged); ok && j.EndedFor() != "" {
		why.Words = "ended by the node: " + j.EndedFor()
	}
	in.endedSoon = good < base.ShortRun
	hint := ""
	if words := (logs{in.self}).lastWords(ctx); words != "" && code != 0 {
		in.st.change(func(f *Fact) { f.Printed = words })
		hint = "; onpath logs --previous shows what it printed"
	}
	in.s.part.TellInstance(w.plan, true, why.Reason, "%s %s%s", why.Words, ranFor(good), hint)
	in.close(ctx, onpath.InstanceFailed, why)
	if !w.plan.Draining {
		in.countRestart()
	}
	if !w.everReady {
		return 0, why
	}
	return good, why
}

// probed takes the result of one probe; why is not empty if the process must be
// ended.
func (w *supervision) probed(ctx context.Context, err error) (why string) {
	in := w.in
	if onpath.CodeOf(err) == onpath.CodeUnavailable {
		w.notAsked(ctx, err)
		return ""
	}
	w.askedAgain()
	now := in.s.part.Clock.Now()
	if err == nil && w.stopped {
		err = errHalted // the kernel answers for a program that does not run
	}
	if err == nil {
		w.failures = 0
		if !w.ready {
			w.becomeReady(ctx)
			w.setEager(false)
		}
		return ""
	}
	w.failures++
	if e := (*probeEnded)(nil); errors.As(err, &e) && e.printed != "" {
		in.st.change(func(f *Fact) { f.Printed = e.printed })
	}
	switch {
	case w.ready && w.failures >= w.health.Failures:
		w.ready, w.badSince = false, now
		in.close(ctx, onpath.InstanceUnready, Cause{"ProbeFailed", fmt.Sprintf("its probe fails: %v", err)})
		in.s.part.TellInstance(w.plan, true, "ProbeFailed", "%d probes in a row failed: %v", w.failures, err)
		w.setEager(true)
	case !w.ready && now.Sub(w.badSince) >= time.Duration(w.health.Start):
		state := "not ready"
		if w.everReady {
			state = "unready"
		}
		return fmt.Sprintf("%s for %s: %v", state, w.health.Start, err)
	case !w.ready && !w.everReady:
		in.st.set(onpath.InstanceStarting, waitsFor(err))
	}
	return ""
}

// waitsFor says why an instance is not ready yet.
func waitsFor(probe error) Cause {
	if u := (*unlinked)(nil); errors.As(probe, &u) {
		return becauseOf("NotLinked", u)
	}
	return Cause{awaitingProbe, fmt.Sprintf("waiting for the first probe to succeed: %v", probe)}
}

// awaitingProbe is the reason of an instance whose probe has not succeeded yet.
const awaitingProbe = "AwaitingProbe"

func (w *supervision) setEager(on bool) {
	select {
	case <-w.eager:
	default:
	}
	w.eager <- on
}

// kill ends a process that runs but must not; it gives that as a Cause.
func (w *supervision) kill(ctx context.Context, words string) Cause {
	in := w.in
	why := Cause{"Killed", words}
	in.wrongNamespace = false
	in.close(ctx, onpath.InstanceFailed, why)
	logs{in.self}.keepLog(ctx)
	stop, cancel := context.WithTimeout(context.WithoutCancel(ctx), in.s.opt.StopGrace+startTimeout)
	defer cancel()
	if err := w.p.Stop(stop, in.s.opt.StopGrace); err != nil {
		in.s.part.Log.Error("cannot stop process", "instance", in.id, "err", err)
	}
	in.s.part.TellInstance(w.plan, true, why.Reason, "%s; it is started anew", why.Words)
	in.countRestart()
	return why
}

// resize sets the limits that the plan says; always after adoption, since what
// is in force is then unknown.
func (w *supervision) resize(ctx context.Context, always bool) {
	in := w.in
	want := w.plan.Spec.Resources
	if !always && w.resources == want {
		return
	}
	w.awaited = false
	if err := w.p.Resize(ctx, want); err != nil {
		if ctx.Err() == nil {
			in.s.part.TellInstance(w.plan, true, "ResizeFailed", "its limits cannot be changed: %v", err)
		}
		return
	}
	if !always {
		network := ""
		if want.Network != 0 {
			network = fmt.Sprintf(", network %s/s", want.Network)
		}
		in.s.part.TellInstance(w.plan, false, "Resized", "has %s CPU and %s memory%s now", want.CPU, want.Memory, network)
	}
	w.resources = want
}
