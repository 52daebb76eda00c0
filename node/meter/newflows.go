package meter

import (
	"context"
	"fmt"
	"time"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/node/base"
)

// Events about tenants that begin too many flows.
const (
	ReasonNewFlowsOver   = "NewFlowsOverLimit"
	ReasonNewFlowsWithin = "NewFlowsWithinLimit"
)

// What tenants were refused is read every refusedEvery. A flood is over when nothing
// was refused for refusedCalm: so floods that come and go tell little.
const (
	refusedEvery = 2 * time.Second
	refusedCalm  = 30 * time.Second
)

// WatchNewFlows tells of tenants that begin more flows than they may.
func WatchNewFlows(ctx context.Context, p *base.Part) {
	tenants := map[string]*refusals{}
	for p.Clock.Sleep(ctx, refusedEvery) == nil {
		counts, err := refusedPackets(ctx, p.Datapath)
		if err != nil {
			if ctx.Err() == nil {
				p.Log.Debug("cannot read what tenants were refused", "err", err)
			}
			continue
		}
		now := p.Clock.Now()
		for name, n := range counts {
			r := tenants[name]
			if r == nil {
				tenants[name] = &refusals{count: n}
				continue
			}
			if e, ok := r.note(n, now); ok {
				e.About = onpath.Key{Kind: onpath.KindTenant, Name: name}.String()
				p.Tell(e)
			}
		}
	}
}

// refusedPackets reads how many packets tenants were refused.
func refusedPackets(ctx context.Context, d onpath.Datapath) (map[string]uint64, error) {
	if r, ok := d.(onpath.RefusalReader); ok {
		return r.Refused(ctx)
	}
	c, err := d.Counters(ctx)
	if err != nil {
		return nil, err
	}
	counts := map[string]uint64{}
	for name, t := range c.Tenants {
		counts[name] = t.Refused
	}
	return counts, nil
}

// refusals is what one tenant was refused.
type refusals struct {
	count  uint64 // packets
	over   bool
	before uint64    // the count when that began
	last   time.Time // a packet was refused
}

// note takes the count that was read, and gives the event that it makes, if one.
func (r *refusals) note(count uint64, now time.Time) (onpath.NodeEvent, bool) {
	was := r.count
	r.count = count
	switch {
	case count < was: // the data path is another
		r.before = min(r.before, count)
	case count > was:
		r.last = now
		if !r.over {
			r.over, r.before = true, was
			return onpath.NodeEvent{
				Reason: ReasonNewFlowsOver, Warning: true,
				Message: "begins more flows a second than spec.maxNewFlows allows; packets that would begin more are dropped here (new-flows), known flows lose nothing",
			}, true
		}
	case r.over && now.Sub(r.last) >= refusedCalm:
		r.over = false
		return onpath.NodeEvent{
			Reason:  ReasonNewFlowsWithin,
			Message: fmt.Sprintf("begins no more flows than it may; %d packets that would have begun some were dropped", count-r.before),
		}, true
	}
	return onpath.NodeEvent{}, false
}
