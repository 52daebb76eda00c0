package meter

import (
	"context"
	"sync"
	"time"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/node/base"
)

// Flows are how many flows the draining instances and the ended paths have, by the last
// count.
type Flows struct {
	part *base.Part

	mu    sync.Mutex
	paths map[onpath.PathID]*pathCount
	left  map[uint64]drained // by number of instance
}

// NewFlows makes what counts flows.
func NewFlows(p *base.Part) *Flows { return &Flows{part: p} }

// drained is what a draining instance had.
type drained struct{ drains, flows uint64 }

// Draining is an instance that drains by what is in force.
type Draining struct {
	Number uint64 // no two instances have one
	Drains uint64 // another one each time that an instance begins to drain
	Vports []onpath.VportID
}

// Count counts the flow entries of draining instances, and of the paths of a plan that have
// ended. It reports whether anything is other than before.
func (f *Flows) Count(ctx context.Context, inForce *onpath.NodePlan, list []Draining) (changed bool) {
	c := toCount(inForce, list)
	if len(c.vports) > 0 || len(c.paths) > 0 {
		if err := f.part.Datapath.Flows(ctx, c.filter(), c.add); err != nil {
			if ctx.Err() == nil {
				f.part.Log.Warn("cannot count flows", "err", err)
			}
			return false
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	changed = len(f.paths) != len(c.paths)
	for id, now := range c.paths {
		was, ok := f.paths[id]
		changed = changed || !ok || *was != *now
	}
	left := map[uint64]drained{}
	for _, d := range list {
		now := drained{d.Drains, max(c.to[d.Number], c.from[d.Number])}
		was, ok := f.left[d.Number]
		changed = changed || !ok || was != now
		left[d.Number] = now
	}
	f.paths, f.left = c.paths, left
	return changed
}

// Of is how many flows a draining instance has; one, for all that is known, until a count
// has ended that began when it drained already: without flows it may go.
func (f *Flows) Of(number, drains uint64) uint64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	if d, ok := f.left[number]; ok && d.drains == drains {
		return d.flows
	}
	return 1
}

// OfPaths are the counts of the paths that have ended by the plan in force, and had by the
// plan by which they were counted.
func (f *Flows) OfPaths(inForce *onpath.NodePlan) map[onpath.PathID]uint64 {
	if inForce == nil {
		return nil
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	var out map[onpath.PathID]uint64
	for _, p := range inForce.Datapath.Paths {
		c := f.paths[p.ID]
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

// flowCount counts the entries that lead to an instance, and those that come
// from it: where flows enter on another node, the entries that lead to the
// instance are kept there, and only those that come from it here.
type flowCount struct {
	vports   map[onpath.VportID]uint64 // numbers of instances
	to, from map[uint64]uint64         // by number of instance
	paths    map[onpath.PathID]*pathCount
}

func toCount(inForce *onpath.NodePlan, list []Draining) flowCount {
	c := flowCount{vports: map[onpath.VportID]uint64{}, paths: map[onpath.PathID]*pathCount{},
		to: map[uint64]uint64{}, from: map[uint64]uint64{}}
	for _, d := range list {
		for _, v := range d.Vports {
			c.vports[v] = d.Number
		}
	}
	if inForce != nil {
		for _, p := range inForce.Datapath.Paths {
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
	if in, ok := c.vports[e.Next]; ok && e.Kind == onpath.NextVport {
		c.to[in]++
	}
	if in, ok := c.vports[e.Vport]; ok {
		c.from[in]++
	}
	for _, f := range e.Functions {
		if in, ok := c.vports[f]; ok {
			c.to[in]++
		}
	}
	if p := c.paths[e.Path]; p != nil {
		p.flows++
	}
	return true
}
