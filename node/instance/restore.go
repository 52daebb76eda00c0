package instance

import (
	"context"
	"fmt"
	"slices"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/internal/netnsrun"
	"github.com/onpath/onpath/node/base"
	"github.com/onpath/onpath/node/wiring"
)

// restore gives what an earlier agent left: the record, and the process if it runs.
// One that was ready is taken to be so until a probe says otherwise, and also
// while its runtime does not answer: no agent, no change. Only a start of the
// machine ends all, whatever the record says.
func (in *instance) restore() onpath.Process {
	all, err := Records(in.s.part.Dir)
	if err != nil {
		in.s.part.Log.Error("cannot read records", "err", err)
	}
	old, known := all[in.id]
	plan := in.current()
	if known {
		restarted := in.restarted(old)
		in.rec.Wiring, in.rec.Started, in.rec.Restarts = old.Wiring, old.Started, old.Restarts
		in.rec.Ready, in.rec.Asleep = old.Ready && !restarted, old.Asleep && !restarted && plan.OnDemand != nil
		in.st.mu.Lock()
		in.st.started = old.Started
		in.st.mu.Unlock()
	}
	in.rec.Vports = wiring.Of(in.id, plan).Vports()
	for _, v := range old.Vports { // never forget a device that was made
		if !slices.Contains(in.rec.Vports, v) {
			in.rec.Vports = append(in.rec.Vports, v)
		}
	}
	in.persist()
	if in.rec.Asleep { // before the first configuration, which leads its vports here
		in.kept.Begin(plan.OnDemand.Hold)
		in.s.punts.Keep(in.rec.Vports, in.kept)
	}
	_, rtErr := in.runtime()
	p := in.takeAdopted()
	in.st.mu.Lock()
	defer in.st.mu.Unlock()
	in.st.fact.Restarts = in.rec.Restarts
	if p != nil && !ended(p) {
		in.st.fact.Process = p // the first configuration needs an ebpf function's
	}
	switch {
	case p != nil && !ended(p) && in.rec.Ready, p == nil && known && in.rec.Ready && rtErr != nil:
		in.st.fact.State, in.st.fact.Open = onpath.InstanceReady, true
	case in.rec.Asleep:
		in.st.fact.State, in.st.fact.Why, in.st.fact.Open, in.st.fact.Asleep = onpath.InstanceReady, asleep, true, true
		if p != nil && !ended(p) {
			in.st.fact.Why = waking
		}
	case p != nil && ended(p):
		in.st.fact.State, in.st.fact.Why = onpath.InstanceFailed, endedUnseen
	}
	return p
}

// takeAdopted gives the process of an earlier agent, once.
func (in self) takeAdopted() onpath.Process { return in.s.adopted.take(in.id) }

// restarted reports whether the machine has been started anew since a record was
// written. Records of earlier versions do not say: then it has not as long as the
// instance's namespace is there, which no start of the machine outlives.
func (in *instance) restarted(r Record) bool {
	if r.Boot == "" || in.rec.Boot == "" {
		return wiring.Of(in.id, in.current()).Attach != wiring.AttachInline && !netnsrun.Is(in.s.part.Dir.NetNS(in.id))
	}
	return r.Boot != in.rec.Boot
}

// keepWired wires the instance, again and again until it works, or until what served
// when this agent came serves on as it is: then supervise tries again. It closes looked
// after the first attempt.
func (in *instance) keepWired(ctx context.Context, p onpath.Process) {
	in.wireAgain(ctx, p, sync.OnceFunc(func() { close(in.looked) }))
}

// wireAgain is keepWired, with what is to be done after each attempt.
func (in *instance) wireAgain(ctx context.Context, p onpath.Process, tried func()) {
	var b base.Backoff
	for first := true; ; first = false {
		err := in.wire(ctx, p)
		tried()
		if wired, _ := in.st.wiring(); err == nil || ctx.Err() != nil || wired {
			return
		}
		in.st.set(onpath.InstanceFailed, becauseOf("WiringFailed", err))
		if first {
			in.s.part.TellInstance(in.current(), true, "WiringFailed", "%v", err)
		}
		if in.s.part.Clock.Sleep(ctx, b.After(0)) != nil {
			return
		}
	}
}

// rewire wires a running instance as the plan says now, and has it done again soon
// if that fails.
func (w *supervision) rewire(ctx context.Context) {
	in := w.in
	w.endWait()
	w.rewiring, w.endWait = nil, func() {}
	_, before := in.st.wiring()
	err := in.wire(ctx, w.p)
	if err == nil || ctx.Err() != nil {
		w.rewait = base.Backoff{}
		return
	}
	if err.Error() != before {
		in.s.part.TellInstance(w.plan, true, "WiringFailed", "%v", err)
	}
	w.rewiring, w.endWait = base.Alarm(ctx, in.s.part.Clock, w.rewait.After(0))
}

// wire makes namespace, devices, addresses and routes what the plan says.
func (in *instance) wire(ctx context.Context, p onpath.Process) error {
	plan := in.current()
	w := wiring.Of(in.id, plan)
	err := wiring.CheckSysctls(w.Sysctls)
	var made wiring.Made
	if err == nil && w.Attach != wiring.AttachInline {
		pid := 0
		if _, apart := p.(onpath.Attached); p != nil && !apart {
			pid = p.Pid()
		}
		made, err = in.s.wirer.Wire(ctx, w, in.rec.Wiring, pid)
	}
	if made.Namespace {
		in.namespaceReplacedFor(p)
	}
	done := ""
	if err == nil {
		done = base.Hash(w)
	}
	rewired := made.Device || made.Namespace || in.rec.Wiring != done
	if rewired {
		in.s.forwarding.Forget(w.Vport)
	}
	if in.rec.Wiring != done && (made.Device || ctx.Err() == nil) {
		in.rec.Wiring = done
		in.persist()
	}
	// What served goes on serving by devices that are as they were.
	keeps := err != nil && !made.Device && !made.Namespace && in.s.wirer.There(w)
	in.st.mu.Lock()
	was, wasErr := in.st.fact.Wired, in.st.fact.WireErr
	in.st.fact.Wired, in.st.fact.WireErr = err == nil || keeps && (was || in.st.fact.Open), ""
	if err != nil {
		in.st.fact.WireErr = err.Error()
	}
	changed, told := was != in.st.fact.Wired, wasErr == in.st.fact.WireErr
	in.st.mu.Unlock()
	if rewired || changed {
		in.s.rounds.Kick(made.Device)
	}
	if !told {
		base.Kick(in.s.part.ReportDue)
	}
	return err
}

// inWrongNamespace reports whether a process surely is not in the instance's network namespace:
// that was made anew while nobody could say where the process is.
func (in *instance) inWrongNamespace(p onpath.Process) bool {
	if p.Pid() == 0 || wiring.Of(in.id, in.current()).Attach == wiring.AttachInline {
		return false
	}
	if a, ok := p.(onpath.Attached); ok {
		return !a.AttachedTo(in.s.part.Dir.NetNS(in.id)) && !ended(p)
	}
	same, err := sameFile(unix.AT_FDCWD, fmt.Sprintf("/proc/%d/ns/net", p.Pid()), unix.AT_FDCWD, in.s.part.Dir.NetNS(in.id))
	return err == nil && !same && !ended(p)
}

// namespaceReplaced is why a process must begin anew that is not in its namespace.
var namespaceReplaced = Cause{"NamespaceReplaced", "its network namespace was made anew"}

// namespaceReplacedFor says that the instance's namespace is a new one: no process is in it,
// and packets would cross it as if there were no function.
func (in *instance) namespaceReplacedFor(p onpath.Process) {
	in.wrongNamespace = in.wrongNamespace || p != nil && !ended(p)
	in.st.mu.Lock()
	in.st.fact.Open, in.st.fact.Asleep = false, false
	if in.st.fact.State == onpath.InstanceReady {
		in.st.fact.State, in.st.fact.Why, in.st.fact.Since = onpath.InstanceStarting, namespaceReplaced, in.s.part.Clock.Now()
	}
	in.st.mu.Unlock()
	in.s.rounds.Kick(false)
	if in.rec.Ready {
		in.rec.Ready = false
		in.persist()
	}
}
