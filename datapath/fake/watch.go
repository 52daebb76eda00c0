package fake

import (
	"context"
	"maps"
	"time"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/internal/packet"
)

// watched is what a watched tuple's packets have counted.
type watched struct {
	until  time.Time
	vports map[onpath.VportID]onpath.VportCounters
}

// Watch implements onpath.Datapath.
func (n *Node) Watch(ctx context.Context, s onpath.WatchSpec) ([]onpath.FlowCounters, error) {
	n.net.mu.Lock()
	defer n.net.mu.Unlock()
	now := n.now()
	maps.DeleteFunc(n.watches, func(_ onpath.Tuple, w *watched) bool { return !now.Before(w.until) })
	if n.watches == nil {
		n.watches = map[onpath.Tuple]*watched{}
	}
	var out []onpath.FlowCounters
	for _, t := range s.Tuples {
		w := n.watches[t]
		if w == nil {
			if len(n.watches) == onpath.MaxWatches {
				return nil, onpath.Errorf(onpath.CodeConflict, "%d flows are watched on this node already", onpath.MaxWatches)
			}
			w = &watched{vports: map[onpath.VportID]onpath.VportCounters{}}
			n.watches[t] = w
		}
		if until := now.Add(s.Lease()); until.After(w.until) {
			w.until = until
		}
		f := onpath.FlowCounters{Tuple: t, Vports: map[onpath.VportID]onpath.VportCounters{}}
		for id, v := range w.vports {
			v.Dropped = maps.Clone(v.Dropped)
			f.Vports[id] = v
		}
		out = append(out, f)
	}
	return out, ctx.Err()
}

// about notes of which flow the packets are that are counted from now on, until
// the returned function is called. ICMP errors are of none.
func (n *Node) about(h *packet.Header) (restore func()) {
	was := n.current
	n.current = onpath.Tuple{}
	if h.Verdict == packet.Fine && !h.IsError {
		n.current = h.Tuple
	}
	return func() { n.current = was }
}

// watched counts for those who watch the packet's flow.
func (n *Node) watched(id onpath.VportID, count func(*onpath.VportCounters)) {
	for t, w := range n.watches {
		c := n.current
		if t.SrcPort == 0 {
			c.SrcPort = 0
		}
		if t.DstPort == 0 {
			c.DstPort = 0
		}
		if c == t {
			v := w.vports[id]
			count(&v)
			w.vports[id] = v
		}
	}
}
