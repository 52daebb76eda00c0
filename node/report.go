package node

import (
	"cmp"
	"context"
	"encoding/json"
	"slices"
	"strings"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/node/base"
	"github.com/onpath/onpath/node/wiring"
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
	inForce, m, leases := a.apply.InForce(), a.machine.Current(), a.leases.Reports()
	a.mu.Lock()
	defer a.mu.Unlock()
	r := onpath.NodeReport{
		Node: a.opt.Name, Plan: a.acked, PlanError: a.planProblem(),
		Version: a.opt.Version, Kernel: m.Kernel, Started: a.started,
		Capacity: m.Capacity, UnderlayMTU: m.UnderlayMTU, UnderlayDevice: m.UnderlayDevice, NoHostImage: !a.opt.HostImage,
		Blocks: a.opt.Blocks, Knows: onpath.Abilities(),
		Addresses: m.Addresses, Conditions: slices.Clone(m.Conditions), Paths: a.countedPaths(),
		Unreachable: a.peers.Unreachable(), Distances: a.peers.Distances(),
		Leases: leases,
	}
	named := map[string]bool{}
	for _, in := range a.instances {
		name := in.plan.Tenant + "/" + in.plan.Name
		if isLease(&in.plan) {
			continue
		}
		if in.leaving && a.plannedName(in.plan) {
			continue // a successor of the same name speaks for it
		}
		named[name] = true
		r.Instances = append(r.Instances, in.report(inForce))
	}
	now := a.part.Clock.Now()
	a.stopped = slices.DeleteFunc(a.stopped, func(s stoppedReport) bool { return !now.Before(s.until) })
	for _, s := range a.stopped {
		if !named[s.report.Tenant+"/"+s.report.Name] {
			r.Instances = append(r.Instances, s.report)
		}
	}
	slices.SortFunc(r.Instances, func(x, y onpath.InstanceReport) int {
		return cmp.Or(cmp.Compare(x.Tenant, y.Tenant), cmp.Compare(x.Name, y.Name))
	})
	return r
}

// plannedName reports whether the plan names an instance of p's name. Callers
// hold mu.
func (a *Agent) plannedName(p onpath.InstancePlan) bool {
	return a.plan != nil && slices.ContainsFunc(a.plan.Instances, func(o onpath.InstancePlan) bool {
		return o.Tenant == p.Tenant && o.Name == p.Name
	})
}

// report is called with Agent.mu held.
func (in *instance) report(inForce map[onpath.VportID]bool) onpath.InstanceReport {
	wired := true
	for _, v := range wiring.Of(in.id, in.plan).Vports() {
		wired = wired && inForce[v]
	}
	r := onpath.InstanceReport{
		Name: in.plan.Name, Tenant: in.plan.Tenant, State: in.state, NextTry: in.nextTry,
		Restarts: in.restarts, Since: in.since, Wired: wired, Flows: in.flowsLeft(), Config: in.told, Refused: in.refused,
		Full: in.full != "",
	}
	if in.state != onpath.InstanceReady {
		r.Printed = in.printed
	}
	why := in.why
	if m, ok := in.proc.(onpath.Modular); ok && in.state != onpath.InstanceStopped {
		r.Modules = m.Modules()
	}
	if l, ok := in.proc.(interface{ Lists() []onpath.Condition }); ok && in.state != onpath.InstanceStopped {
		r.Lists = l.Lists()
	}
	out := outOfService(r.Modules)
	switch {
	case why.words != "":
	case r.Refused != "":
		why = cause{"ConfigRefused", "keeps its configuration from before, for it refused the new one: " + r.Refused}
	case in.wireErr != "":
		why = cause{"WiringFailed", "its network is not as it should be: " + in.wireErr}
	case in.full != "":
		why = cause{ReasonRelayFull, fullWords[in.full]}
	case out != "":
		why = cause{"ModuleOut", out}
	case in.sends.over:
		why = cause{onpath.ReasonSpoofed, spoofs(in.plan.Spec.Packets)}
	case in.leftOut != "":
		why = cause{"LogLeftOut", in.leftOut}
	}
	r.Reason, r.Message = why.reason, why.words
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
	a.mu.Lock()
	defer a.mu.Unlock()
	h := onpath.NodeHello{Node: a.opt.Name, Spec: a.opt.Spec, Report: r}
	if a.inForce != nil {
		h.Plan = clonePlan(a.inForce)
	}
	return h
}

// clonePlan copies deeply, so that no one changes what another holds.
func clonePlan(p *onpath.NodePlan) *onpath.NodePlan {
	data, err := json.Marshal(p)
	if err != nil {
		panic("node: copy plan: " + err.Error()) // plans are plain data
	}
	var out onpath.NodePlan
	if err := json.Unmarshal(data, &out); err != nil {
		panic("node: copy plan: " + err.Error())
	}
	return &out
}
