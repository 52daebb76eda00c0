package control

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/control/questions"
)

// Trace finds the way of a packet and of its answer.
func (c *Controller) Trace(ctx context.Context, r onpath.TraceRequest) (*onpath.Trace, error) {
	return c.questions.Trace(ctx, c.world(), r)
}

// WatchFlow has all nodes count the packets of a flow, and reads what each hop has counted.
func (c *Controller) WatchFlow(ctx context.Context, r onpath.WatchRequest) (*onpath.FlowWatch, error) {
	return c.questions.WatchFlow(ctx, c.world(), r)
}

// Counters are what a node has counted.
func (c *Controller) Counters(ctx context.Context, node string) (*onpath.Counters, error) {
	return c.questions.Counters(ctx, node)
}

// Verify proves or refutes on the newest plans of all nodes, or on those that they have
// acknowledged, what chains promise.
func (c *Controller) Verify(ctx context.Context, r onpath.VerifyRequest) (*onpath.Verification, error) {
	stale := c.relist(ctx, verified())
	p, err := questions.Verify(ctx, c.world(), r)
	if stale != nil && p != nil {
		p.Notes = append(p.Notes, fmt.Sprintf("the store cannot be read just now (%v): what changed last may be missing here", stale))
	}
	return p, err
}

// VerifyChange proves what would follow from changes once every node has done its part.
func (c *Controller) VerifyChange(ctx context.Context, changes []onpath.Change) error {
	if !questions.Steers(changes) {
		return nil
	}
	before := c.world().Snapshot
	return questions.VerifyChange(ctx, c.log, before, changedSnapshot(before, changes))
}

// verified are the kinds that a proof rests on. A chain says of itself that it steers
// once all else is so: read first, it is never ahead of what that rests on, and never
// behind what it was seen to say before.
func verified() []onpath.Kind {
	kinds := slices.DeleteFunc(onpath.Kinds(), func(k onpath.Kind) bool { return k == onpath.KindChain || k == onpath.KindEvent })
	return append([]onpath.Kind{onpath.KindChain}, kinds...)
}

// world is a snapshot that stays as it is, and which nodes have no session.
func (c *Controller) world() questions.World {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.core.snapshot()
	s.Objects = maps.Clone(s.Objects)
	for n, st := range s.States {
		copied := *st
		s.States[n] = &copied
	}
	silent := map[string]string{}
	for k := range s.Objects {
		if k.Kind != onpath.KindNode {
			continue
		}
		if st := c.core.nodes[k.Name]; st == nil || !st.connected {
			silent[k.Name] = "it is not connected"
		}
	}
	return questions.World{Snapshot: s, Silent: silent}
}
