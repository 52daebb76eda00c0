package node

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/node/base"
	"github.com/onpath/onpath/node/instance"
	"github.com/onpath/onpath/node/meter"
)

// reportLoop reports every change at once, and as a sign of life every
// onpath.ReportEvery.
func (a *Agent) reportLoop(ctx context.Context) {
	tick := make(chan struct{}, 1)
	a.part.Go(func(ctx context.Context) {
		for a.part.Clock.Sleep(ctx, onpath.ReportEvery) == nil {
			base.Kick(tick)
		}
	})
	for {
		select {
		case <-ctx.Done():
			return
		case <-a.part.ReportDue:
		case <-tick:
			base.Kick(a.count)
		}
		r := a.Report() // also leases wait for what it tells them
		if s := a.session.Load(); s != nil {
			(*s).Report(r)
		}
	}
}

// Report is the state of everything now.
func (a *Agent) Report() onpath.NodeReport {
	a.tellEngines()
	inForce, m, p := a.rounds.InForce(), a.machine.Current(), a.plans.get()
	r := onpath.NodeReport{
		Node: a.opt.Name, Plan: p.acked, PlanError: p.problem,
		Version: a.opt.Version, Kernel: m.Kernel, Started: a.started,
		Capacity: m.Capacity, UnderlayMTU: m.UnderlayMTU, UnderlayDevice: m.UnderlayDevice, NoHostImage: !a.opt.HostImage,
		Blocks: a.opt.Blocks, Knows: onpath.Abilities(),
		Addresses: m.Addresses, Conditions: slices.Clone(m.Conditions), Paths: a.flows.OfPaths(p.inForce),
		Unreachable: a.peers.Unreachable(), Distances: a.peers.Distances(), Indirect: a.peers.Indirect(),
		Leases: a.leases.Reports(),
	}
	a.tunnels.Report(&r)
	planned := map[string]bool{}
	if p.wanted != nil {
		for _, in := range p.wanted.Instances {
			planned[in.Tenant+"/"+in.Name] = true
		}
	}
	named := map[string]bool{}
	for _, f := range a.instances.Facts() {
		if f.Lease() || f.Leaving && planned[f.Name()] { // a successor of the same name speaks for it
			continue
		}
		named[f.Name()] = true
		r.Instances = append(r.Instances, a.reportOf(&f, inForce))
	}
	for _, gone := range a.instances.Gone() {
		if !named[gone.Tenant+"/"+gone.Name] {
			r.Instances = append(r.Instances, gone)
		}
	}
	slices.SortFunc(r.Instances, func(x, y onpath.InstanceReport) int {
		return cmp.Or(cmp.Compare(x.Tenant, y.Tenant), cmp.Compare(x.Name, y.Name))
	})
	return r
}

// reportOf is the report of an instance.
func (a *Agent) reportOf(f *instance.Fact, inForce map[onpath.VportID]bool) onpath.InstanceReport {
	wired := true
	for _, v := range f.Vports() {
		wired = wired && inForce[v]
	}
	r := onpath.InstanceReport{
		Name: f.Plan.Name, Tenant: f.Plan.Tenant, State: f.State, NextTry: f.NextTry,
		Restarts: f.Restarts, Since: f.Since, Wired: wired, Config: f.Told, Refused: f.Refused,
		Full: f.Full != "",
	}
	if f.Plan.Draining {
		r.Flows = a.flows.Of(f.Number, f.Drains)
	}
	if f.State != onpath.InstanceReady {
		r.Printed = f.Printed
	}
	why := f.Why
	if m, ok := f.Process.(onpath.Modular); ok && f.State != onpath.InstanceStopped {
		r.Modules = m.Modules()
	}
	if l, ok := f.Process.(interface{ Lists() []onpath.Condition }); ok && f.State != onpath.InstanceStopped {
		r.Lists = l.Lists()
	}
	out, spoofing := outOfService(r.Modules), a.meters.Spoofing(f.Number, &f.Plan)
	switch {
	case why.Words != "":
	case r.Refused != "":
		why = instance.Cause{Reason: "ConfigRefused",
			Words: "refuses its configuration or part of it, and keeps what it had: " + r.Refused}
	case f.WireErr != "":
		why = instance.Cause{Reason: "WiringFailed", Words: "its network is not as it should be: " + f.WireErr}
	case f.Full != "":
		why = f.FullCause()
	case out != "":
		why = instance.Cause{Reason: "ModuleOut", Words: out}
	case spoofing != "":
		why = instance.Cause{Reason: onpath.ReasonSpoofed, Words: spoofing}
	case f.LeftOut != "":
		why = instance.Cause{Reason: "LogLeftOut", Words: f.LeftOut}
	}
	r.Reason, r.Message = why.Reason, why.Words
	return r
}

// outOfService says which modules are not on the path, and why.
func outOfService(list []onpath.ModuleState) string {
	var words []string
	for _, m := range list {
		if m.Out != "" {
			words = append(words, "module "+m.Name+" is out of service: "+m.Out)
		}
	}
	return strings.Join(words, "; ")
}

// Hello is the first thing to say at every connection: who, what is in force,
// and how everything stands.
func (a *Agent) Hello() onpath.NodeHello {
	r := a.Report()
	h := onpath.NodeHello{Node: a.opt.Name, Spec: a.opt.Spec, Report: r}
	if p := a.plans.get().inForce; p != nil {
		h.Plan = clonePlan(p)
	}
	return h
}

// clonePlan copies deeply, so that no one changes what another holds.
func clonePlan(p *onpath.NodePlan) *onpath.NodePlan {
	compact, _ := p.Compact()
	data, err := json.Marshal(compact)
	if err != nil {
		panic("node: copy plan: " + err.Error()) // plans are plain data
	}
	var out onpath.NodePlan
	if err := errors.Join(json.Unmarshal(data, &out), out.Expand()); err != nil {
		panic("node: copy plan: " + err.Error())
	}
	return &out
}

// meterEvery is how often what instances have used is read and kept.
const meterEvery = 15 * time.Second

func (a *Agent) meterLoop(ctx context.Context) {
	for a.part.Clock.Sleep(ctx, meterEvery) == nil {
		a.readMeters(ctx)
	}
}

func (a *Agent) readMeters(ctx context.Context) { a.meters.Read(ctx, a.instances.Readings()) }

// Meters are what instances have used, by UID. Those that are billed and gone are forgotten.
func (a *Agent) Meters(ctx context.Context, r onpath.MeterRequest) ([]onpath.Meter, error) {
	a.meters.ForgetBilled(r.Billed)
	a.readMeters(ctx)
	return a.meters.List()
}

// countLoop counts flows when a report is due, but never for longer than it rests
// in between: a walk over millions of entries takes longer than the time between
// two reports, and these are signs of life.
func (a *Agent) countLoop(ctx context.Context) {
	var rested time.Time
	for {
		select {
		case <-ctx.Done():
			return
		case <-a.count:
		}
		began := a.part.Clock.Now()
		if began.Before(rested) {
			continue
		}
		inForce, list := a.draining()
		if a.flows.Count(ctx, inForce, list) {
			base.Kick(a.part.ReportDue)
		}
		now := a.part.Clock.Now()
		rested = now.Add(now.Sub(began))
	}
}

// draining are the instances of which the data path knows already that they drain: to all
// others flows may still come. inForce is the plan that was acknowledged last.
func (a *Agent) draining() (inForce *onpath.NodePlan, list []meter.Draining) {
	now := a.plans.get()
	plan := cmp.Or(now.applied, now.inForce)
	if plan == nil {
		return nil, nil
	}
	drains := map[string]bool{}
	for _, p := range plan.Instances {
		if p.Draining {
			drains[instance.ID(a.opt.Name, p)] = true
		}
	}
	for _, f := range a.instances.Facts() {
		if f.Plan.Draining && drains[f.ID] {
			list = append(list, meter.Draining{Number: f.Number, Drains: f.Drains, Vports: f.Vports()})
		}
	}
	return now.inForce, list
}
