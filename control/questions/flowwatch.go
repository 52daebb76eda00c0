package questions

import (
	"context"
	"encoding/json"
	"io"
	"sync"
	"time"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/plan"
)

// watchLease is how long nodes go on counting for a watch that nobody asks for
// any more.
const watchLease = 10 * time.Second

// WatchFlow has all nodes count the packets of a flow, and reads what each hop
// has counted since the first call. The watch ends by itself.
func (c *Questions) WatchFlow(ctx context.Context, world World, r onpath.WatchRequest) (*onpath.FlowWatch, error) {
	t, err := c.Trace(ctx, world, onpath.TraceRequest{Tuple: r.Tuple, Gateway: r.Gateway})
	if err != nil {
		return nil, err
	}
	spec := onpath.WatchSpec{Tuples: plan.WatchTuples(t, r.Tuple), For: onpath.Duration(watchLease)}
	counted, warnings := c.watches(ctx, world, spec)
	t.Warnings = append(t.Warnings, warnings...)
	w := plan.Watched(world.Snapshot, t, r.Tuple, counted)
	return w, ctx.Err()
}

// watches asks every connected node.
func (c *Questions) watches(ctx context.Context, world World, spec onpath.WatchSpec) (map[string][]onpath.FlowCounters, []onpath.Note) {
	ctx, cancel := context.WithTimeout(ctx, traceTimeout)
	defer cancel()
	out := map[string][]onpath.FlowCounters{}
	var warnings []onpath.Note
	var mu sync.Mutex
	var wg sync.WaitGroup
	for n := range world.States {
		if world.Silent[n] != "" {
			continue // the trace has said so
		}
		wg.Go(func() {
			f, err := c.flowCounters(ctx, n, spec)
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				warnings = append(warnings, onpath.Note{Text: "node " + n + " does not count for the watch: " + err.Error()})
				return
			}
			out[n] = f
		})
	}
	wg.Wait()
	return out, warnings
}

func (c *Questions) flowCounters(ctx context.Context, node string, spec onpath.WatchSpec) ([]onpath.FlowCounters, error) {
	s, err := c.hub.Call(ctx, node, onpath.OpWatch, spec)
	if err != nil {
		return nil, err
	}
	defer s.Close()
	var out []onpath.FlowCounters
	return out, json.NewDecoder(io.LimitReader(s, onpath.MaxNodeReply)).Decode(&out)
}
