package instance

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/node/base"
	"github.com/onpath/onpath/node/meter"
)

// How long the data path may take to close or open a vport before the instance
// goes on without; the applier keeps trying.
const applyPatience = 5 * time.Second

// startTimeout bounds Runtime.Start, which does not wait for readiness.
const startTimeout = time.Minute

// live is the life of one instance: wire, start, supervise, start again; until
// it is dismissed, and then all of it goes, or the agent ends, and all stays. It reports
// whether all of it is gone.
func (in *instance) live(ctx context.Context) (gone bool) {
	if !in.awaitSweep() {
		return false
	}
	p := in.restore()
	if p != nil && in.rec.Asleep && ended(p) { // made, and never begun
		if err := in.clear(ctx, p); err == nil {
			p = nil
		}
	}
	if p == nil {
		in.createAhead(ctx)
	}
	in.keepWired(ctx, p)
	for ctx.Err() == nil {
		if p == nil {
			if _, lacks := in.st.wiring(); lacks != "" { // the alarm for that ended with the process before
				in.wireAgain(ctx, nil, func() {})
			}
			if p = in.obtain(ctx); p == nil {
				continue
			}
		}
		in.process(p)
		inside{in.self}.openNotify()
		in.wrongNamespace = in.wrongNamespace || in.launched != p && in.inWrongNamespace(p)
		assumed := in.launched != p && in.rec.Ready && !in.wrongNamespace && !ended(p)
		good, why := in.supervise(ctx, p, assumed)
		if ctx.Err() != nil {
			break
		}
		if ended(p) {
			inside{in.self}.endLeft()
		}
		if why != (Cause{}) {
			in.rest(ctx, good, why) // what it wrote stays readable meanwhile
		}
		if ctx.Err() != nil {
			break
		}
		in.process(nil)
		if err := in.clear(ctx, p); err != nil {
			in.s.part.Log.Warn("cannot clear away what ended", "instance", in.id, "err", err)
		}
		in.s.notifier.Shut(in.id) // the next process may have another namespace
		p = nil
	}
	maker{in.self}.discard(in.takeCreation())
	return in.s.part.Context().Err() == nil && in.teardown(in.s.part.Context())
}

func ended(p onpath.Process) bool {
	select {
	case <-p.Exited():
		return true
	default:
		return false
	}
}

// obtain makes the instance and starts its process; nil if that failed, after
// the wait before the next attempt.
func (in *instance) obtain(ctx context.Context) onpath.Process {
	plan := in.current()
	if plan.Draining {
		if in.rec.Asleep {
			in.close(ctx, onpath.InstanceFailed, Cause{"EndedDraining", "it sleeps, and is not started again"})
		}
		in.st.set(onpath.InstanceFailed, Cause{"EndedDraining", "ended while draining; it is not started again"})
		in.idle(ctx)
		return nil
	}
	rt, err := in.runtime()
	if err != nil {
		if onpath.CodeOf(err) == onpath.CodeUnavailable {
			why := becauseOf("RuntimeUnavailable", err)
			switch {
			case in.rec.Asleep: // nothing can wake it
				in.close(ctx, onpath.InstanceFailed, why)
			case !in.rec.Ready: // what was ready stays so: no agent, no change
				in.st.set(onpath.InstanceFailed, why)
			}
			in.idle(ctx)
			return in.takeAdopted()
		}
		in.restAfter(ctx, plan, becauseOf("RuntimeMissing", err))
		return nil
	}
	if p := in.takeAdopted(); p != nil {
		return p
	}
	if in.rec.Ready { // assumed, and wrong
		in.close(ctx, onpath.InstanceFailed, endedUnseen)
	}
	m := in.creationOf(ctx, rt, plan)
	<-m.done
	if m.unprepared != nil {
		if ctx.Err() == nil {
			reason := "PrepareFailed"
			if onpath.CodeOf(m.unprepared) == onpath.CodeNotFound {
				reason = onpath.ReasonImageMissing
			}
			in.restAfter(ctx, plan, becauseOf(reason, m.unprepared))
		}
		return nil
	}
	in.st.set(onpath.InstanceStarting, Cause{"AwaitingDatapath", "waiting for the data path"})
	if in.s.rounds.AwaitIn(ctx, in.rec.Vports) != nil {
		maker{in.self}.discard(m)
		return nil
	}
	if !in.named() { // so there was nothing to wait for, and it is about to be dismissed
		maker{in.self}.discard(m)
		in.idle(ctx)
		return nil
	}
	inside{in.self}.endLeft() // before it sleeps: it takes longer than the packets that wake it should wait
	inside{in.self}.openNotify()
	if plan.OnDemand != nil && !plan.Spec.Inline() && m.err == nil && !in.sleep(ctx, &plan) {
		maker{in.self}.discard(m)
		return nil
	}
	in.st.set(onpath.InstanceStarting, Cause{"Starting", "starting"})
	inside{in.self}.openNotify() // its namespace may have been replaced
	p, err := maker{in.self}.launch(ctx, rt, m)
	if err != nil {
		if ctx.Err() == nil {
			in.countRestart() // what follows is one
		}
		in.restAfter(ctx, plan, becauseOf("StartFailed", err))
		return nil
	}
	in.launched, in.wake.program = p, time.Now()
	if told := plan.Spec.Told(); told != "" {
		in.took(plan, told, lacks(p))
	}
	if plan.Spec.Inline() {
		in.process(p)
		in.s.rounds.Kick(false) // links it, closed
	}
	in.setStarted(true)
	in.s.part.TellInstance(plan, false, "Started", "function %s was started", plan.Function) // without a number: repeats are counted
	in.s.part.Log.Debug("instance started", "instance", in.id, "pid", p.Pid())
	return p
}

// named reports whether the wanted plan has the instance.
func (in self) named() bool {
	return !in.st.get().Leaving
}

// asProcess names the process; one that has ended already has no number.
func asProcess(p onpath.Process) string {
	if pid := p.Pid(); pid != 0 {
		return fmt.Sprintf(" as process %d", pid)
	}
	return ""
}

// idle waits until something about the instance changes.
func (in *instance) idle(ctx context.Context) {
	select {
	case <-ctx.Done():
	case <-in.changed:
	}
}

// rest is the wait before the next attempt, after the last one went well for
// the time good. A change of the plan does not shorten it.
func (in *instance) rest(ctx context.Context, good time.Duration, why Cause) {
	if in.current().Draining {
		return
	}
	d := in.backoff.After(good)
	in.st.setTrying(onpath.InstanceFailed, why, d) // why was told in an event
	_ = in.s.part.Clock.Sleep(ctx, d)
}

// restAfter tells of a failure, and is the wait that follows it. What cannot be started must
// not go on sleeping: nothing that comes for it would wake it.
func (in *instance) restAfter(ctx context.Context, plan onpath.InstancePlan, why Cause) {
	if in.rec.Asleep {
		in.close(ctx, onpath.InstanceFailed, why)
	}
	in.s.part.TellInstance(plan, true, why.Reason, "%s", why.Words)
	in.rest(ctx, 0, why)
}

// endedUnseen is why an instance has failed that no agent saw end.
var endedUnseen = Cause{"EndedUnseen", "ended while the agent was away"}

// countRestart counts and remembers one more restart.
func (in *instance) countRestart() {
	in.rec.Restarts++
	in.st.change(func(f *Fact) { f.Restarts = in.rec.Restarts })
	in.persist()
}

// close shuts the vports in the data path and only then tells the world.
func (in *instance) close(ctx context.Context, s onpath.InstanceState, why Cause) {
	in.kept.Empty()
	in.turn(ctx, false)
	in.st.set(s, why)
	if in.rec.Ready || in.rec.Asleep {
		in.rec.Ready, in.rec.Asleep = false, false
		in.persist()
	}
}

// openUp opens the vports and then tells the world.
func (in *instance) openUp(ctx context.Context) {
	in.wake.ready = time.Now()
	in.letIn()
	in.wake.tell(in)
	in.wake = wake{}
	in.turn(ctx, true)
	in.st.set(onpath.InstanceReady, Cause{})
	in.rec.Ready, in.rec.Asleep = true, false
	in.persist()
	in.s.part.TellInstance(in.current(), false, "Ready", "takes traffic")
}

// turn opens or closes the vports; it returns when that is in force.
func (in *instance) turn(ctx context.Context, open bool) {
	in.st.change(func(f *Fact) { f.Open, f.Asleep = open, false })
	if open {
		in.s.rounds.Kick(true) // the kernel may have closed by itself what the configuration has open
	}
	in.syncApply(ctx)
}

// shut closes the vports of a process that has ended, and tells the server while
// the data path is at it: its plan for other nodes is on its way meanwhile.
func (in *instance) shut(ctx context.Context) {
	in.kept.Empty()
	in.st.change(func(f *Fact) { f.Open, f.Asleep = false, false })
	in.s.rounds.Kick(false)
	in.st.set(onpath.InstanceFailed, Cause{onpath.ReasonProcessEnded, "its process has ended"})
	in.syncApply(ctx)
}

func (in self) syncApply(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, applyPatience)
	defer cancel()
	if err := in.s.rounds.Sync(ctx); err != nil && !errors.Is(err, context.Canceled) {
		in.s.part.Log.Error("the data path does not take the instance's new state", "instance", in.id, "err", err)
	}
}

// exitWords says how a process ended.
func exitWords(code int) string {
	if code < 0 { // its shim was killed with it, say, or the machine has restarted since
		return "ended with an unknown exit code"
	}
	if code > 128 && code < 128+65 {
		return fmt.Sprintf("killed by signal %d (%s)", code-128, unix.SignalName(unix.Signal(code-128)))
	}
	return fmt.Sprintf("exited with code %d", code)
}

// ranFor says how long a process ran, so roughly that events of one that ends again
// and again are counted as one.
func ranFor(d time.Duration) string {
	for _, most := range []time.Duration{time.Second, 10 * time.Second, time.Minute} {
		if d < most {
			return "within " + onpath.Duration(most).String()
		}
	}
	if d < time.Hour {
		return fmt.Sprintf("after %dm", int(d.Minutes()))
	}
	return fmt.Sprintf("after %dh", int(d.Hours()))
}

// clear deletes what is left of an ended process.
func (in *instance) clear(ctx context.Context, p onpath.Process) error {
	logs{in.self}.keepLog(ctx)
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), startTimeout)
	defer cancel()
	if err := p.Stop(ctx, 0); err != nil {
		return err
	}
	in.setStarted(false)
	return nil
}

// setStarted records whether the runtime has something of the instance.
func (in *instance) setStarted(yes bool) {
	in.rec.Started = yes
	in.st.mu.Lock()
	in.st.started = yes
	in.st.mu.Unlock()
	in.persist()
}

// teardown takes the instance away: rules first, then the process, then its
// devices and namespace, then the record. It reports whether all is gone.
func (in *instance) teardown(ctx context.Context) (gone bool) {
	in.st.set(in.st.get().State, Cause{"Stopping", "stopping"})
	if f := in.st.get(); !f.Lease() {
		in.s.meters.Read(ctx, meter.Readings{List: []meter.Instance{f.reading()}})
	}
	if in.s.rounds.AwaitOut(ctx, in.rec.Vports) != nil {
		return false
	}
	var b base.Backoff
	for {
		err := in.remove(ctx)
		if err == nil {
			break
		}
		in.st.set(onpath.InstanceFailed, Cause{"RemoveFailed", "cannot be removed yet: " + err.Error()})
		in.s.part.Log.Error("cannot remove instance", "instance", in.id, "err", err)
		if in.s.part.Clock.Sleep(ctx, b.After(0)) != nil {
			return false
		}
	}
	in.s.part.TellInstance(in.current(), false, "Stopped", "nothing of it is left on this node")
	return true
}

func (in *instance) remove(ctx context.Context) error {
	if _, err := in.runtime(); err != nil && onpath.CodeOf(err) == onpath.CodeUnavailable {
		return err // whether it runs cannot be known
	}
	if p := in.takeAdopted(); p != nil {
		in.process(p)
	}
	if p := in.st.get().Process; p != nil {
		stop, cancel := context.WithTimeout(context.WithoutCancel(ctx), in.s.opt.StopGrace+startTimeout)
		defer cancel()
		if err := p.Stop(stop, in.s.opt.StopGrace); err != nil {
			return fmt.Errorf("stop its process: %w", err)
		}
		in.process(nil)
	}
	in.s.notifier.Shut(in.id)
	if err := in.s.wirer.Unwire(in.id, in.rec.Vports); err != nil {
		return err
	}
	return removeRecord(in.s.part.Dir, in.id)
}
