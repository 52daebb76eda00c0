package node

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/node/base"
	"github.com/onpath/onpath/node/wiring"
)

// applier puts the data path's configuration in force: one Apply at a time, and
// any number of changes meanwhile make one more.
type applier struct {
	a    *Agent
	wake chan struct{}

	mu        sync.Mutex
	asked     uint64 // changes so far
	turn      turn
	force     bool          // apply even an equal configuration (a device is new)
	roundDone chan struct{} // closed and replaced after each round
	lastHash  string
	hadConfig bool
	routes    bool // the configuration in force is at uplinks between which the kernel routes

	forwarding wiring.Forwarding

	failing base.Complaint // guarded by Agent.mu
}

func newApplier(a *Agent) *applier {
	return &applier{a: a, wake: make(chan struct{}, 1), roundDone: make(chan struct{}), forwarding: wiring.Forwarding{Dir: a.part.Dir}}
}

// kick asks for a round.
func (p *applier) kick(force bool) uint64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.asked++
	p.force = p.force || force
	base.Kick(p.wake)
	return p.asked
}

// sync returns when the state at the time of the call is in force.
func (p *applier) sync(ctx context.Context) error {
	n := p.kick(false)
	return p.await(ctx, func(t turn) bool { return t.done >= n })
}

// firstRound returns after the first attempt, good or bad.
func (p *applier) firstRound(ctx context.Context) {
	_ = p.await(ctx, func(t turn) bool { return t.tried })
}

// awaitIn returns when those of the vports that the plan names are in force.
func (p *applier) awaitIn(ctx context.Context, ids []onpath.VportID) error {
	return p.await(ctx, func(t turn) bool {
		return !slices.ContainsFunc(ids, func(v onpath.VportID) bool { return p.a.namesVport(v) && !t.vports[v] })
	})
}

// awaitOut returns when none of the vports is in force.
func (p *applier) awaitOut(ctx context.Context, ids []onpath.VportID) error {
	n := p.kick(false)
	return p.await(ctx, func(t turn) bool {
		return t.done >= n && !slices.ContainsFunc(ids, func(v onpath.VportID) bool { return t.vports[v] })
	})
}

// turn is how far the applier is.
type turn struct {
	done   uint64                  // changes that are in force
	tried  bool                    // a first round is over
	vports map[onpath.VportID]bool // instance vports in force; replaced, never written
}

func (p *applier) await(ctx context.Context, ok func(turn) bool) error {
	for {
		p.mu.Lock()
		now, roundDone := p.turn, p.roundDone
		p.mu.Unlock()
		if ok(now) { // takes Agent.mu, which comes before ours
			return nil
		}
		select {
		case <-roundDone:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// run applies when asked, and what failed again after a wait, which only further
// attempts of its own make longer: there is one such wait at a time.
func (p *applier) run(ctx context.Context) {
	var b base.Backoff
	wait := b.After(0)
	var retry <-chan struct{}
	stop := func() {}
	defer func() { stop() }()
	for {
		again := false
		select {
		case <-ctx.Done():
			return
		case <-p.wake:
		case <-retry:
			again = true
		}
		stop()
		retry, stop = nil, func() {}
		if p.round(ctx) {
			b = base.Backoff{}
			wait = b.After(0)
			continue
		}
		if again {
			wait = b.After(0)
		}
		retry, stop = base.Alarm(ctx, p.a.part.Clock, wait)
	}
}

// round applies once; it reports whether the wanted plan is in force as far as
// this machine has what it names.
func (p *applier) round(ctx context.Context) bool {
	p.mu.Lock()
	asked, force := p.asked, p.force
	p.force = false
	p.mu.Unlock()

	want, fallback := p.a.plans()
	ok, inForce := want == nil, false
	if want != nil {
		c, missing := p.a.config(want)
		err := p.try(ctx, want, c, force)
		ok, inForce = err == nil, err == nil
		switch {
		case err == nil:
			p.a.applied(want, missing)
		case ctx.Err() == nil:
			p.a.applyFailed(want, err)
			if fallback != nil { // what happened here since must hold in the old plan too
				c, _ := p.a.config(fallback)
				inForce = p.try(ctx, fallback, c, force) == nil
			}
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if ok || inForce {
		p.turn.done = max(p.turn.done, asked)
	} else {
		p.force = p.force || force
	}
	p.turn.tried = true
	close(p.roundDone)
	p.roundDone = make(chan struct{})
	return ok
}

// try applies c, which is plan's, unless it is in force already.
func (p *applier) try(ctx context.Context, plan *onpath.NodePlan, c *onpath.DatapathConfig, force bool) error {
	if err := p.forwarding.Apply(c, p.a.routedWirings(), true); err != nil {
		return err
	}
	if err := p.tryPath(ctx, plan, c, force); err != nil {
		return err
	}
	return p.forwarding.Apply(c, p.a.routedWirings(), false)
}

// tryPath is the data path's part of it.
func (p *applier) tryPath(ctx context.Context, plan *onpath.NodePlan, c *onpath.DatapathConfig, force bool) error {
	hash := base.Hash(c)
	p.mu.Lock()
	same := p.hadConfig && hash == p.lastHash && !force
	p.mu.Unlock()
	if same {
		return nil
	}
	if p.takesAway(c) {
		p.a.readMeters(ctx, nil) // what was counted at a vport goes with it
	}
	before := indexesOf(p.a.opt.NetNS, c.Edge)
	begin := time.Now()
	err := p.a.opt.Datapath.Apply(ctx, c)
	p.a.applyTime.Observe(time.Since(begin).Seconds())
	if err != nil {
		return err
	}
	p.hold(plan, c, before)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.hadConfig, p.lastHash = true, hash
	routed := p.routes
	p.routes = c.Edge != nil && slices.ContainsFunc(c.Edge.Uplinks, needsForwarding)
	if p.routes && !routed {
		base.Kick(p.a.machine.inspect)
	}
	p.turn.vports = map[onpath.VportID]bool{}
	for _, v := range c.Vports {
		if v.Kind != onpath.VportRemote {
			p.turn.vports[v.ID] = true
		}
	}
	return nil
}

// hold notes at which devices the plan is in force now, and has the guard know. A device
// that was made anew meanwhile counts as none: before are those from before Apply.
func (p *applier) hold(plan *onpath.NodePlan, c *onpath.DatapathConfig, before map[string]int) {
	now := indexesOf(p.a.opt.NetNS, c.Edge)
	for name, index := range now {
		if before[name] != index {
			now[name] = 0
		}
	}
	all, err := p.a.held.note(plan, c, now)
	if err != nil {
		p.a.part.Log.Error("cannot save at which uplinks chains are in force", "err", err)
	}
	if err := p.a.guard.set(guardRulesOf(c, plan.Datapath.Edge, all)); err != nil {
		p.a.part.Log.Error("what strict chains select cannot be dropped where no program sees it", "err", err)
		base.Kick(p.a.machine.inspect)
	}
}

// takesAway reports whether an instance's vport that is in force is not in c.
func (p *applier) takesAway(c *onpath.DatapathConfig) bool {
	for v := range p.inForce() {
		if !slices.ContainsFunc(c.Vports, func(o onpath.Vport) bool { return o.ID == v }) {
			return true
		}
	}
	return false
}

// mayForward reports whether what the kernel forwards is steered.
func (p *applier) mayForward() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.routes
}

// inForce gives the instance vports in force; callers must not write to it.
func (p *applier) inForce() map[onpath.VportID]bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.turn.vports
}

// plans gives the wanted plan, and what to fall back to while it cannot be
// applied: nothing, once it has been.
func (a *Agent) plans() (want, fallback *onpath.NodePlan) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.inForce != a.plan && a.appliedPlan != a.plan {
		fallback = a.inForce
	}
	return a.plan, fallback
}

// namesVport reports whether the wanted plan's data path has the instance vport.
func (a *Agent) namesVport(v onpath.VportID) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.plan != nil && slices.ContainsFunc(a.joined().Datapath.Vports, func(o onpath.Vport) bool {
		return o.ID == v && o.Kind != onpath.VportRemote
	})
}

// config is the plan's data path as this machine can carry it now; missing are vports
// that it cannot.
func (a *Agent) config(plan *onpath.NodePlan) (c *onpath.DatapathConfig, missing []onpath.VportID) {
	m := a.machine.current()
	a.mu.Lock()
	defer a.mu.Unlock()
	l := onpath.LocalState{
		Vports: map[onpath.VportID]onpath.LocalVport{}, RefusedUplinks: map[string]bool{},
		Leases: a.leases.held,
		Peers:  a.detector.peerStates(plan.Datapath.Peers), Exempt: exemptions(plan.Datapath.Underlay, m, a.control, a.connected),
	}
	named := map[onpath.VportID]bool{}
	for _, in := range a.instances {
		for _, v := range wiring.Of(in.id, in.plan).Vports() {
			named[v] = named[v] || !in.leaving || in.successor != nil
		}
	}
	for _, in := range a.instances {
		for _, v := range wiring.Of(in.id, in.plan).Vports() {
			if in.leaving && named[v] {
				continue // it is another one's, or named again: it must go with this one first
			}
			l.Vports[v] = onpath.LocalVport{Wired: in.wired, Open: in.open, Asleep: in.asleep, Full: in.full != ""}
		}
		if f, ok := in.inlineOf(); ok {
			l.Functions = append(l.Functions, f)
		}
	}
	for name, why := range m.refused {
		l.RefusedUplinks[name] = why != ""
	}
	l.UplinkDevices = m.renamed
	return onpath.Effective(plan, &l)
}

// applied acknowledges the plan once nothing of it is missing.
func (a *Agent) applied(plan *onpath.NodePlan, missing []onpath.VportID) {
	a.mu.Lock()
	if a.plan != plan { // a newer one came meanwhile
		a.mu.Unlock()
		return
	}
	a.appliedPlan = plan
	a.planErr = ""
	a.apply.failing = base.Complaint{}
	for _, in := range a.instances {
		if in.wireErr != "" && slices.ContainsFunc(missing, func(v onpath.VportID) bool { return v == in.plan.Vport || v == in.plan.Back }) {
			a.planErr = "instance " + in.plan.Tenant + "/" + in.plan.Name + " cannot be connected: " + in.wireErr
		}
	}
	ack := len(missing) == 0 && a.acked != plan.Generation
	save := ack && a.inForce != plan
	if len(missing) == 0 {
		a.inForce = plan
	}
	sweep := !a.swept
	a.swept = true
	a.mu.Unlock()

	if save {
		if err := savePlan(a.part.Dir, savedPlan{Node: a.opt.Name, Wanted: plan, Acked: true}); err != nil {
			a.part.Log.Error("the plan is in force, but that cannot be saved", "err", err)
		}
	}
	if ack {
		a.mu.Lock()
		a.acked = plan.Generation
		a.mu.Unlock()
		a.part.Log.Info("plan is in force", "generation", plan.Generation)
	}
	base.Kick(a.part.ReportDue)
	if sweep {
		a.part.Go(a.sweep)
	}
}

func (a *Agent) applyFailed(plan *onpath.NodePlan, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.plan != plan {
		return
	}
	a.planErr = err.Error()
	if a.apply.failing.Due(fmt.Sprint(plan.Generation, ": ", err), a.part.Clock.Now()) {
		a.part.Log.Error("the plan cannot be put in force; the one before stays", "generation", plan.Generation, "err", err)
	}
	base.Kick(a.part.ReportDue)
}

// routedWirings are those of the instances whose kernels may forward, by vport.
func (a *Agent) routedWirings() map[onpath.VportID]wiring.Wiring {
	a.mu.Lock()
	defer a.mu.Unlock()
	out := make(map[onpath.VportID]wiring.Wiring, len(a.instances))
	for _, in := range a.instances {
		if w := wiring.Of(in.id, in.plan); in.wired && w.Forwards() {
			out[w.Vport] = w
		}
	}
	return out
}

func newApplyTime() prometheus.Histogram {
	return prometheus.NewHistogram(prometheus.HistogramOpts{
		Name: "onpath_node_apply_seconds", Help: "Time to put a data path configuration in force.",
		Buckets: []float64{.0005, .001, .002, .005, .01, .02, .05, .1, .2, .5, 1, 2, 5},
	})
}
