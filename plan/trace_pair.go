package plan

import (
	"github.com/onpath/onpath"
)

// What enters one half of a pair comes out of the other one. Entries say where it does; what
// the two send each other between is the function's.

// onStretch is what trace says of the way between two halves.
const onStretch = "the function's own: what it makes of packets here is not told"

// across is the partner to whom an instance hands what goes into it in a direction; nil: it
// is no half, or what goes in so is let out as it is.
func across(i *instance, reverse bool) *instance {
	if i == nil || i.partner == nil || i.partner.node == nil || (i.obj.Spec.Pair.Side == onpath.PairB) != reverse {
		return nil
	}
	return i.partner
}

func stretchHop(i, p *instance, live bool) onpath.TraceHop {
	return onpath.TraceHop{Kind: onpath.HopStretch, Node: i.node.name, Name: "to " + p.node.name, Live: live, Message: onStretch}
}

// followAcross follows a flow that entry e leads to an instance from its partner on. The
// rest of the way, and where answers come in, is in the partner's cloudlet.
func followAcross(t *tracer, i, p *instance, e onpath.FlowEntry, plan []onpath.TraceHop, hops *[]onpath.TraceHop) followed {
	*hops = append(*hops, t.instanceHop(e.Next, e, nil, onpath.ModeInline))
	next, known := t.at(p.node, p.obj.Spec.Vport, e.Tuple)
	if !known || !carries(next) {
		o := onward{note: "no packet of the flow has come out of its partner " + p.key.String()}
		if t.in.Silent[p.node.name] != "" {
			o = onward{unsure: true, note: "its partner's node cannot be asked what comes out there"}
		}
		t.lose(e.Next, o, plan, hops)
		return followed{last: e, at: i}
	}
	*hops = append(*hops, stretchHop(i, p, true), t.instanceHop(p.obj.Spec.Vport, next, &next, onpath.ModeInline))
	if p.node.c.gateway != nil {
		t.gateway, t.cl = p.node.c.gateway, p.node.c
	}
	return t.follow(p.node, next, plan, hops)
}

// plannedAcross adds the partner, and where packets leave behind it.
func plannedAcross(t *tracer, i *instance, path onpath.PathID, reverse bool, hops []onpath.TraceHop) []onpath.TraceHop {
	p := across(i, reverse)
	if p == nil {
		return hops
	}
	there := t.instanceHop(p.obj.Spec.Vport, onpath.FlowEntry{Path: path, Reverse: reverse}, nil, onpath.ModeInline)
	there.Live = false
	hops = append(hops, stretchHop(i, p, false), there)
	if g := p.node.c.gateway; g != nil {
		t.tunnel(p.node, g, &hops, false)
		hops = append(hops, t.edgeHop(g, onpath.HopExit, nil))
	}
	return hops
}
