package node

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/node/base"
	"github.com/onpath/onpath/node/wiring"
)

// applier puts the data path's configuration in force, when the parts ask for it.
type applier struct {
	a *Agent
	*base.Rounds

	lastHash  string // of the configuration in force
	hadConfig bool

	forwarding wiring.Forwarding

	failing base.Complaint // guarded by Agent.mu
}

func newApplier(a *Agent) *applier {
	return &applier{a: a, Rounds: base.NewRounds(), forwarding: wiring.Forwarding{Dir: a.part.Dir}}
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
		case <-p.Wake():
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
	asked, force := p.Begin()
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
	p.End(asked, force, ok || inForce)
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
	if p.hadConfig && hash == p.lastHash && !force {
		return nil
	}
	if p.takesAway(c) {
		p.a.readMeters(ctx) // what was counted at a vport goes with it
	}
	before := p.a.machine.Devices(c.Edge)
	begin := time.Now()
	err := p.a.opt.Datapath.Apply(ctx, c)
	p.a.applyTime.Observe(time.Since(begin).Seconds())
	if err != nil {
		return err
	}
	p.a.machine.Hold(plan, c, before)
	p.hadConfig, p.lastHash = true, hash
	p.Applied(c)
	return nil
}

// takesAway reports whether an instance's vport that is in force is not in c.
func (p *applier) takesAway(c *onpath.DatapathConfig) bool {
	for v := range p.InForce() {
		if !slices.ContainsFunc(c.Vports, func(o onpath.Vport) bool { return o.ID == v }) {
			return true
		}
	}
	return false
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

// config is the plan's data path as this machine can carry it now; missing are vports
// that it cannot.
func (a *Agent) config(plan *onpath.NodePlan) (c *onpath.DatapathConfig, missing []onpath.VportID) {
	m := a.machine.Current()
	a.mu.Lock()
	leased := a.leased.Leases
	a.mu.Unlock()
	l := onpath.LocalState{
		Vports: map[onpath.VportID]onpath.LocalVport{}, RefusedUplinks: map[string]bool{},
		Leases: leased,
		Peers:  a.peers.States(plan.Datapath.Peers), Exempt: a.exempt.Rules(plan.Datapath.Underlay, m),
	}
	all := a.instances.Facts()
	named := map[onpath.VportID]bool{}
	for _, f := range all {
		for _, v := range f.Vports() {
			named[v] = named[v] || !f.Leaving || f.Replaced
		}
	}
	for _, f := range all {
		for _, v := range f.Vports() {
			if f.Leaving && named[v] {
				continue // it is another one's, or named again: it must go with this one first
			}
			l.Vports[v] = onpath.LocalVport{Wired: f.Wired, Open: f.Open, Asleep: f.Asleep, Full: f.Full != ""}
		}
		if in, ok := f.Inline(); ok {
			l.Functions = append(l.Functions, in)
		}
	}
	for name, why := range m.Refused {
		l.RefusedUplinks[name] = why != ""
	}
	l.UplinkDevices = m.Renamed
	return onpath.Effective(plan, &l)
}

// applied acknowledges the plan once nothing of it is missing.
func (a *Agent) applied(plan *onpath.NodePlan, missing []onpath.VportID) {
	wrong := ""
	for _, f := range a.instances.Facts() {
		if f.WireErr != "" && slices.ContainsFunc(missing, func(v onpath.VportID) bool { return v == f.Plan.Vport || v == f.Plan.Back }) {
			wrong = "instance " + f.Name() + " cannot be connected: " + f.WireErr
		}
	}
	a.mu.Lock()
	if a.plan != plan { // a newer one came meanwhile
		a.mu.Unlock()
		return
	}
	a.appliedPlan = plan
	a.planErr = wrong
	a.apply.failing = base.Complaint{}
	ack := len(missing) == 0 && a.acked != plan.Generation
	save := ack && a.inForce != plan
	if len(missing) == 0 {
		a.inForce = plan
	}
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
	a.instances.SweepOnce()
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
	out := map[onpath.VportID]wiring.Wiring{}
	for _, f := range a.instances.Facts() {
		if w := wiring.Of(f.ID, f.Plan); f.Wired && w.Forwards() {
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
