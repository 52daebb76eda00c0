package instance

import (
	"context"
	"time"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/node/base"
	"github.com/onpath/onpath/node/wiring"
)

// A sleeping instance has its devices and is made up to its program's beginning. The data path
// hands the agent what is for it, which is kept here; the first packet starts the program, and
// once that is ready the packets are let in, in the order in which they came.

var (
	asleep    = Cause{onpath.ReasonAsleep, "sleeps until its first packet"}
	lyingDown = Cause{"LyingDown", "no packet comes; its program ends, and the next one is made"}
	waking    = Cause{"Waking", "its first packet has come; it starts"}
)

// wake is how an instance woke: when its first packet came, its program began, it was ready.
type wake struct{ packet, program, ready time.Time }

// tell says how long what came first had to wait for each.
func (w wake) tell(in *instance) {
	if !w.packet.IsZero() {
		in.s.part.Log.Info("instance woke", "instance", in.id, "began", w.program.Sub(w.packet), "ready", w.ready.Sub(w.program),
			"let in", time.Since(w.ready))
	}
}

// sleep has the vports lead to the agent, and waits for the first packet. It reports false if
// something else is to be started, or nothing.
func (in *instance) sleep(ctx context.Context, plan *onpath.InstancePlan) bool {
	in.lieDown(ctx, plan.OnDemand.Hold)
	in.st.set(onpath.InstanceReady, asleep)
	for {
		select {
		case <-ctx.Done():
			return false
		case <-in.kept.Comes():
			in.st.set(onpath.InstanceReady, waking)
			words, at := in.kept.First()
			in.wake = wake{packet: at}
			in.s.part.TellInstance(*plan, false, "Woken", "the first packet came: %s", words)
			return true
		case <-in.changed:
			now := in.current()
			m := maker{in.self}
			if now.OnDemand == nil || now.Draining || base.Hash(m.runSpec(now)) != base.Hash(m.runSpec(*plan)) {
				return false
			}
			in.wireAgain(ctx, nil, func() {})
			in.lieDown(ctx, now.OnDemand.Hold)
		}
	}
}

// lieDown has what comes for the instance kept; it returns when that is in force.
func (in *instance) lieDown(ctx context.Context, hold onpath.Size) {
	in.kept.Begin(hold)
	in.s.punts.Keep(wiring.Of(in.id, in.current()).Vports(), in.kept)
	in.st.change(func(f *Fact) { f.Open, f.Asleep = true, true })
	if in.rec.Ready || !in.rec.Asleep {
		in.rec.Ready, in.rec.Asleep = false, true
		in.persist()
	}
	in.syncApply(ctx)
}

// fallAsleep ends a program that nobody needs. No packet is lost by it: what comes meanwhile
// is kept, and starts the program again.
func (w *supervision) fallAsleep(ctx context.Context, forget func()) {
	in := w.in
	in.lieDown(ctx, w.plan.OnDemand.Hold)
	forget()               // from now on the end of the program closes nothing
	in.s.rounds.Kick(true) // and what the kernel has closed until now opens again
	in.st.set(onpath.InstanceReady, lyingDown)
	logs{in.self}.keepLog(ctx)
	stop, cancel := context.WithTimeout(context.WithoutCancel(ctx), in.s.opt.StopGrace+startTimeout)
	defer cancel()
	if err := w.p.Stop(stop, in.s.opt.StopGrace); err != nil {
		in.s.part.Log.Error("cannot stop process", "instance", in.id, "err", err)
	}
	in.s.part.TellInstance(w.plan, false, onpath.ReasonAsleep, "no packet came for %s; it sleeps", w.plan.OnDemand.StopAfter)
}

// letIn lets in what was kept. In the moment when the vports lead to the instance again
// little is on its way here: it is let in as it comes.
func (in *instance) letIn() {
	reader, ok := in.s.part.Datapath.(onpath.PuntReader)
	if !ok {
		return
	}
	if err := in.kept.LetIn(reader.Inlet, wiring.Of(in.id, in.current()).Vports()); err != nil {
		in.s.part.Log.Warn("some of what came while an instance slept is lost", "instance", in.id, "err", err)
	}
}

// listen begins to wait for the time without packets after which the instance sleeps: from
// now on, for until it was ready its program could not answer any.
func (w *supervision) listen(ctx context.Context) {
	w.stopQuiet()
	w.quiet, w.stopQuiet = watcher{w.in.self}.watchQuiet(ctx)
}

// watchQuiet rings once no packet has been handed to the instance for as long as its plan
// says, if it could be started again, with the count of packets; nil: it never sleeps.
func (in watcher) watchQuiet(ctx context.Context) (<-chan uint64, func()) {
	plan := in.current()
	if _, ok := in.s.part.Datapath.(onpath.PuntReader); !ok || plan.OnDemand == nil || plan.Spec.Inline() || isLease(&plan) {
		return nil, func() {}
	}
	after := time.Duration(plan.OnDemand.StopAfter)
	return watch(ctx, func(ctx context.Context, ring func(uint64)) {
		last, since := uint64(0), in.s.part.Clock.Now()
		for in.s.part.Clock.Sleep(ctx, after/4) == nil {
			now, ok := in.handedOver(ctx, &plan)
			if at := in.s.part.Clock.Now(); !ok || now != last {
				last, since = now, at
			} else if at.Sub(since) >= after && (maker{in.self}).startable(ctx) {
				ring(last)
			}
		}
	})
}

// startable reports whether the server gives the secrets that the next start needs.
func (in maker) startable(ctx context.Context) bool {
	return in.readSecrets(ctx, &creation{spec: in.runSpec(in.current())}) == nil
}

// handedOver counts the packets that the data path handed to an instance.
func (in watcher) handedOver(ctx context.Context, plan *onpath.InstancePlan) (packets uint64, ok bool) {
	c, err := in.s.part.Datapath.Counters(ctx)
	if err != nil {
		return 0, false
	}
	for _, v := range wiring.Of(in.id, *plan).Vports() {
		packets += c.Vports[v].Out.Packets
	}
	return packets, true
}
