package node

import (
	"context"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/node/base"
	"github.com/onpath/onpath/node/instance"
	"github.com/onpath/onpath/node/machine"
	"github.com/onpath/onpath/node/meter"
	"github.com/onpath/onpath/node/peers"
	"github.com/onpath/onpath/node/wiring"
)

// applier puts the data path's configuration in force, when the parts ask for it.
type applier struct {
	part       *base.Part
	rounds     *base.Rounds
	plans      *plans
	instances  *instance.Set
	meters     *meter.Meters
	machine    *machine.Machine
	exempt     *machine.Exempt
	peers      *peers.Peers
	forwarding *wiring.Forwarding
	took       prometheus.Histogram

	lastHash  string // of the configuration in force
	hadConfig bool
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
		case <-p.rounds.Wake():
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
		retry, stop = base.Alarm(ctx, p.part.Clock, wait)
	}
}

// round applies once; it reports whether the wanted plan is in force as far as
// this machine has what it names.
func (p *applier) round(ctx context.Context) bool {
	asked, force := p.rounds.Begin()
	now := p.plans.get()
	want, fallback := now.wanted, now.fallback()
	ok, inForce := want == nil, false
	if want != nil {
		c, missing := p.config(want)
		err := p.try(ctx, want, c, force)
		ok, inForce = err == nil, err == nil
		switch {
		case err == nil:
			p.applied(want, missing)
		case ctx.Err() == nil:
			p.failed(want, err)
			if fallback != nil { // what happened here since must hold in the old plan too
				c, _ := p.config(fallback)
				inForce = p.try(ctx, fallback, c, force) == nil
			}
		}
	}
	p.rounds.End(asked, force, ok || inForce)
	return ok
}

// try applies c, which is plan's, unless it is in force already.
func (p *applier) try(ctx context.Context, plan *onpath.NodePlan, c *onpath.DatapathConfig, force bool) error {
	if err := p.forwarding.Apply(c, p.routedWirings(), true); err != nil {
		return err
	}
	if err := p.tryPath(ctx, plan, c, force); err != nil {
		return err
	}
	return p.forwarding.Apply(c, p.routedWirings(), false)
}

// tryPath is the data path's part of it.
func (p *applier) tryPath(ctx context.Context, plan *onpath.NodePlan, c *onpath.DatapathConfig, force bool) error {
	hash := base.Hash(c)
	if p.hadConfig && hash == p.lastHash && !force {
		return nil
	}
	if p.takesAway(c) {
		p.meters.Read(ctx, p.instances.Readings()) // what was counted at a vport goes with it
	}
	before := p.machine.Devices(c.Edge)
	begin := time.Now()
	err := p.part.Datapath.Apply(ctx, c)
	p.took.Observe(time.Since(begin).Seconds())
	if err != nil {
		return err
	}
	p.machine.Hold(plan, c, before)
	p.hadConfig, p.lastHash = true, hash
	p.rounds.Applied(c)
	return nil
}

// takesAway reports whether an instance's vport that is in force is not in c.
func (p *applier) takesAway(c *onpath.DatapathConfig) bool {
	for v := range p.rounds.InForce() {
		if !slices.ContainsFunc(c.Vports, func(o onpath.Vport) bool { return o.ID == v }) {
			return true
		}
	}
	return false
}

// config is the plan's data path as this machine can carry it now; missing are vports
// that it cannot.
func (p *applier) config(plan *onpath.NodePlan) (c *onpath.DatapathConfig, missing []onpath.VportID) {
	m := p.machine.Current()
	l := onpath.LocalState{
		Vports: map[onpath.VportID]onpath.LocalVport{}, RefusedUplinks: map[string]bool{},
		Leases: p.plans.get().leased.Leases,
		Peers:  p.peers.States(plan.Datapath.Peers), Exempt: p.exempt.Rules(plan.Datapath.Underlay, m),
	}
	all := p.instances.Facts()
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
func (p *applier) applied(plan *onpath.NodePlan, missing []onpath.VportID) {
	wrong := ""
	for _, f := range p.instances.Facts() {
		if f.WireErr != "" && slices.ContainsFunc(missing, func(v onpath.VportID) bool { return v == f.Plan.Vport || v == f.Plan.Back }) {
			wrong = "instance " + f.Name() + " cannot be connected: " + f.WireErr
		}
	}
	ack, save := p.plans.setApplied(plan, len(missing) == 0, wrong)
	if save {
		if err := savePlan(p.part.Dir, savedPlan{Node: p.part.Node, Wanted: plan, Acked: true}); err != nil {
			p.part.Log.Error("the plan is in force, but that cannot be saved", "err", err)
		}
	}
	if ack {
		p.plans.acknowledge(plan.Generation)
		p.part.Log.Info("plan is in force", "generation", plan.Generation)
	}
	base.Kick(p.part.ReportDue)
	p.instances.SweepOnce()
}

func (p *applier) failed(plan *onpath.NodePlan, err error) {
	if p.plans.setFailed(plan, err, p.part.Clock.Now()) {
		p.part.Log.Error("the plan cannot be put in force; the one before stays", "generation", plan.Generation, "err", err)
	}
	base.Kick(p.part.ReportDue)
}

// routedWirings are those of the instances whose kernels may forward, by vport.
func (p *applier) routedWirings() map[onpath.VportID]wiring.Wiring {
	out := map[onpath.VportID]wiring.Wiring{}
	for _, f := range p.instances.Facts() {
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
