package node

import (
	"cmp"
	"context"
	"time"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/node/base"
	"github.com/onpath/onpath/node/wiring"
)

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
		if a.countFlows(ctx) {
			base.Kick(a.part.ReportDue)
		}
		now := a.part.Clock.Now()
		rested = now.Add(now.Sub(began))
	}
}

// countFlows counts the flow entries of draining instances and of ended paths; it
// reports whether anything is other than before.
func (a *Agent) countFlows(ctx context.Context) (changed bool) {
	c := a.toCount()
	if len(c.vports) > 0 || len(c.paths) > 0 {
		if err := a.opt.Datapath.Flows(ctx, c.filter(), c.add); err != nil {
			if ctx.Err() == nil {
				a.part.Log.Warn("cannot count flows", "err", err)
			}
			return false
		}
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	changed = len(a.paths) != len(c.paths)
	for id, now := range c.paths {
		was, ok := a.paths[id]
		changed = changed || !ok || *was != *now
	}
	a.paths = c.paths
	for in, drains := range c.drains {
		if in.drains != drains {
			continue // it began to drain anew meanwhile
		}
		flows := max(c.to[in], c.from[in])
		changed = changed || !in.counted || in.flows != flows
		in.flows, in.counted = flows, true
	}
	return changed
}

// flowsLeft is how many flows an instance has; one, for all that is known, until a
// count has ended that began when it drained already: without flows it may go. Called
// with Agent.mu held.
func (in *instance) flowsLeft() uint64 {
	switch {
	case !in.plan.Draining:
		return 0
	case !in.counted:
		return 1
	}
	return in.flows
}

// drainsFrom has earlier counts say nothing of an instance that begins to drain.
// Called with Agent.mu held.
func (in *instance) drainsFrom(p onpath.InstancePlan) {
	if p.Draining && !in.plan.Draining {
		in.drains++
		in.counted = false
	}
}

// countedPaths are the counts of the paths that have ended by the plan in force, and
// had by the one by which they were counted. Called with Agent.mu held.
func (a *Agent) countedPaths() map[onpath.PathID]uint64 {
	if a.inForce == nil {
		return nil
	}
	var out map[onpath.PathID]uint64
	for _, p := range a.inForce.Datapath.Paths {
		c := a.paths[p.ID]
		if c == nil || p.Ended.IsZero() || !p.Ended.Equal(c.ended) {
			continue
		}
		if out == nil {
			out = map[onpath.PathID]uint64{}
		}
		out[p.ID] = c.flows
	}
	return out
}

// pathCount is the count of a path that ended at a time.
type pathCount struct {
	ended time.Time
	flows uint64
}

// drainInForce are the ids of which the data path knows already that they drain.
// Callers hold mu.
func (a *Agent) drainInForce() map[string]bool {
	plan := cmp.Or(a.appliedPlan, a.inForce)
	if plan == nil {
		return nil
	}
	out := map[string]bool{}
	for _, p := range plan.Instances {
		if p.Draining {
			out[instanceID(a.opt.Name, p)] = true
		}
	}
	return out
}

// flowCount counts the entries that lead to an instance, and those that come
// from it: where flows enter on another node, the entries that lead to the
// instance are kept there, and only those that come from it here.
type flowCount struct {
	vports   map[onpath.VportID]*instance
	to, from map[*instance]uint64
	drains   map[*instance]uint64 // instance.drains as it began
	paths    map[onpath.PathID]*pathCount
}

// toCount is what drains by what is in force: to all else flows may still come.
func (a *Agent) toCount() flowCount {
	c := flowCount{
		vports: map[onpath.VportID]*instance{}, paths: map[onpath.PathID]*pathCount{},
		to: map[*instance]uint64{}, from: map[*instance]uint64{}, drains: map[*instance]uint64{},
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	inForce := a.drainInForce()
	for _, in := range a.instances {
		if !in.plan.Draining || !inForce[in.id] {
			continue
		}
		c.drains[in] = in.drains
		for _, v := range wiring.Of(in.id, in.plan).Vports() {
			c.vports[v] = in
		}
	}
	if a.inForce != nil {
		for _, p := range a.inForce.Datapath.Paths {
			if !p.Ended.IsZero() {
				c.paths[p.ID] = &pathCount{ended: p.Ended}
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
	if p := c.paths[e.Path]; p != nil {
		p.flows++
	}
	return true
}
