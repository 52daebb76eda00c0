package node

import (
	"cmp"
	"context"
	"encoding/json"
	"maps"
	"slices"
	"time"

	"github.com/onpath/onpath"
)

// reportLoop reports every change at once, and as a sign of life every
// onpath.ReportEvery.
func (a *Agent) reportLoop(ctx context.Context) {
	tick := make(chan struct{}, 1)
	a.goDo(func(ctx context.Context) {
		for a.clock.Sleep(ctx, onpath.ReportEvery) == nil {
			kick(tick)
		}
	})
	for {
		select {
		case <-ctx.Done():
			return
		case <-a.report:
		case <-tick:
			a.countFlows(ctx)
		}
		a.mu.Lock()
		s := a.session
		a.mu.Unlock()
		if s != nil {
			s.Report(a.Report())
		}
	}
}

// Report is the state of everything now.
func (a *Agent) Report() onpath.NodeReport {
	inForce := a.apply.inForce()
	a.mu.Lock()
	defer a.mu.Unlock()
	r := onpath.NodeReport{
		Node: a.opt.Name, Plan: a.acked, PlanError: a.whyNot(),
		Version: a.opt.Version, Kernel: a.machine.kernel, Started: a.started,
		Capacity: a.machine.capacity, UnderlayMTU: a.machine.underlayMTU, NoHostImage: !a.opt.HostImage,
		Addresses: a.machine.addresses, Conditions: slices.Clone(a.machine.conditions), Paths: maps.Clone(a.paths),
		Unreachable: a.unreachable(),
	}
	named := map[string]bool{}
	for _, in := range a.instances {
		name := in.plan.Tenant + "/" + in.plan.Name
		if in.leaving && a.plannedName(in.plan) {
			continue // a successor of the same name speaks for it
		}
		named[name] = true
		r.Instances = append(r.Instances, in.report(inForce))
	}
	now := a.clock.Now()
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
	for _, v := range wiringOf(in.id, in.plan).vports() {
		wired = wired && inForce[v]
	}
	r := onpath.InstanceReport{
		Name: in.plan.Name, Tenant: in.plan.Tenant, State: in.state, Message: in.message,
		Restarts: in.restarts, Since: in.since, Wired: wired, Flows: in.flows, Config: in.told, Refused: in.refused,
	}
	switch {
	case r.Message != "":
	case r.Refused != "":
		r.Message = "keeps its configuration from before, for it refused the new one: " + r.Refused
	case in.wireErr != "":
		r.Message = "its network is not as it should be: " + in.wireErr
	default:
		r.Message = in.leftOut
	}
	return r
}

// countFlows counts the flow entries of draining instances and of ended paths.
func (a *Agent) countFlows(ctx context.Context) {
	c := a.toCount()
	if len(c.vports) == 0 && len(c.paths) == 0 {
		a.mu.Lock()
		a.paths = nil
		a.mu.Unlock()
		return
	}
	if err := a.opt.Datapath.Flows(ctx, c.filter(), c.add); err != nil {
		a.log.Warn("cannot count flows", "err", err)
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.paths = c.paths
	for _, in := range c.vports {
		in.flows = max(c.to[in], c.from[in])
	}
}

// flowCount counts the entries that lead to an instance, and those that come
// from it: where flows enter on another node, the entries that lead to the
// instance are kept there, and only those that come from it here.
type flowCount struct {
	vports   map[onpath.VportID]*instance
	to, from map[*instance]uint64
	paths    map[onpath.PathID]uint64
}

func (a *Agent) toCount() flowCount {
	c := flowCount{
		vports: map[onpath.VportID]*instance{}, paths: map[onpath.PathID]uint64{},
		to: map[*instance]uint64{}, from: map[*instance]uint64{},
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, in := range a.instances {
		if !in.plan.Draining {
			in.flows = 0
			continue
		}
		for _, v := range wiringOf(in.id, in.plan).vports() {
			c.vports[v] = in
		}
	}
	if a.inForce != nil {
		for _, p := range a.inForce.Datapath.Paths {
			if !p.Ended.IsZero() {
				c.paths[p.ID] = 0
			}
		}
	}
	return c
}

// filter narrows the walk where one vport or path is all that is asked for.
func (c flowCount) filter() (f onpath.FlowFilter) {
	f.Bare = true
	switch {
	case len(c.vports) == 1 && len(c.paths) == 0:
		for f.Vport = range c.vports {
		}
	case len(c.vports) == 0 && len(c.paths) == 1:
		for f.Path = range c.paths {
		}
	}
	return f
}

func (c flowCount) add(e onpath.FlowEntry) bool {
	if in := c.vports[e.Next]; in != nil && e.Kind == onpath.NextVport {
		c.to[in]++
	}
	if in := c.vports[e.Vport]; in != nil {
		c.from[in]++
	}
	for _, f := range e.Functions {
		if in := c.vports[f]; in != nil {
			c.to[in]++
		}
	}
	if _, ok := c.paths[e.Path]; ok {
		c.paths[e.Path]++
	}
	return true
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

// keepSince carries the times of unchanged conditions over to the new ones.
func keepSince(old, now []onpath.Condition, at time.Time) []onpath.Condition {
	for i := range now {
		now[i].Since = at
		for _, o := range old {
			if o.Type == now[i].Type && o.Status == now[i].Status {
				now[i].Since = o.Since
			}
		}
	}
	return now
}
