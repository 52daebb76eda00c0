package plan

import (
	"cmp"
	"slices"

	"github.com/onpath/onpath"
)

func (t *tracer) edgeHop(n *node, kind onpath.HopKind, e *onpath.FlowEntry) onpath.TraceHop {
	h := onpath.TraceHop{Kind: kind, Node: n.name, Vport: n.obj.Status.Edge, Name: "uplinks", Live: e != nil || t.out.Live}
	h.Counters = t.counters(n, h.Vport)
	if e != nil {
		h.Flow, h.Tuple = tally(*e), &e.Tuple
	}
	return h
}

func tally(e onpath.FlowEntry) *onpath.Tally {
	return &onpath.Tally{Packets: e.Packets, Bytes: e.Bytes}
}

func (t *tracer) counters(n *node, v onpath.VportID) *onpath.VportCounters {
	if c := t.in.Counters[n.name]; c != nil {
		if vc, ok := c.At(v); ok {
			return &vc
		}
	}
	return nil
}

// instanceHop describes the instance behind a vport, as an element of the path
// of entry e; behind is the entry by which the flow goes on.
func (t *tracer) instanceHop(v onpath.VportID, e onpath.FlowEntry, behind *onpath.FlowEntry, mode onpath.Mode) onpath.TraceHop {
	h := onpath.TraceHop{Kind: onpath.HopElement, Vport: v, Mode: mode, Live: true}
	i := t.w.byVport[v]
	if i == nil || i.node == nil {
		h.Message = "this vport is no instance's any more"
		return h
	}
	h.Node, h.Name = i.node.name, i.key.String()
	h.State = string(i.obj.Status.State)
	if i.report != nil {
		h.State = string(i.report.State)
	}
	if i.draining() {
		h.State = "draining"
	}
	if i.node.away {
		h.State = "away"
	}
	path := e.Path
	if behind != nil {
		h.Flow = tally(*behind)
		if !behind.Tuple.IsZero() {
			h.Tuple = &behind.Tuple
		}
		path = cmp.Or(e.Path, behind.Path)
	}
	h.Chain, h.Element = t.element(i, path)
	h.Counters = t.counters(i.node, v)
	return h
}

// element finds which element of which chain an instance is: of the path that
// the entry names, else (between two tiers the entry may name the other) of any.
func (t *tracer) element(i *instance, id onpath.PathID) (string, int) {
	x := t.gateway.acked
	if p := x.path(id); p != nil {
		if k := slices.Index(p.Elements, i.dep.String()); k >= 0 {
			return p.Chain, k
		}
	}
	for _, p := range x.plan.Datapath.Paths {
		if k := slices.Index(p.Elements, i.dep.String()); k >= 0 && p.Ended.IsZero() {
			return p.Chain, k
		}
	}
	return "", 0
}

func (t *tracer) tunnel(from, to *node, hops *[]onpath.TraceHop, live bool) {
	if from != to {
		*hops = append(*hops, onpath.TraceHop{Kind: onpath.HopTunnel, Node: from.name, Name: "to " + to.name, Live: live})
	}
}
