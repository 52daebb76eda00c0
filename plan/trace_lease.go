package plan

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/onpath/onpath"
)

// leasesOf are the leases that ok says.
func (t *tracer) leasesOf(ok func(l *onpath.LeaseSpec) bool) (out []*onpath.Lease) {
	for _, l := range objects[*onpath.Lease](t.w.Snapshot) {
		if n := t.w.nodes[l.Spec.Node]; n != nil && n.c == t.cl && l.Spec.Vport != 0 && ok(&l.Spec) {
			out = append(out, l)
		}
	}
	return out
}

// leased is the planned way of a packet that no chain selects: by the engine of the
// publisher who has a lease for it, if one has, or to it, if a module serves there.
func (t *tracer) leased(planned []onpath.TraceHop) []onpath.TraceHop {
	if len(planned) != 1 || planned[0].Kind != onpath.HopKernel {
		return planned
	}
	tu := t.in.Request.Tuple
	hops := []onpath.TraceHop{t.edgeHop(t.gateway, onpath.HopEdge, nil)}
	if list := t.leasesOf(func(l *onpath.LeaseSpec) bool { return servesAt(l, tu) }); len(list) > 0 {
		t.tunnel(t.gateway, t.w.nodes[list[0].Spec.Node], &hops, false)
		hop := leaseHop(list)
		hop.Ends = true
		return append(hops, hop)
	}
	list := t.leasesOf(func(l *onpath.LeaseSpec) bool { return l.Node == t.gateway.name && takes(l, tu) })
	if len(list) == 0 {
		return planned
	}
	first := slices.MinFunc(list, func(a, b *onpath.Lease) int { return a.Spec.Since.Compare(b.Spec.Since) })
	list = slices.DeleteFunc(list, func(l *onpath.Lease) bool { return l.Spec.Vport != first.Spec.Vport })
	return append(hops, leaseHop(list), t.edgeHop(t.gateway, onpath.HopExit, nil))
}

// servesAt reports whether a lease's module serves where packets of a tuple go.
func servesAt(l *onpath.LeaseSpec, tu onpath.Tuple) bool {
	return slices.ContainsFunc(l.Served(), func(m onpath.Match) bool { return fits(m, tu) })
}

// takes reports whether packets of a tuple are for a lease's module.
func takes(l *onpath.LeaseSpec, tu onpath.Tuple) bool {
	return !l.ServesOnly && (fits(l.Forward(), tu) || fits(l.Reversed(), tu))
}

// leaseHop is a publisher's engine, with those modules that a packet meets there.
func leaseHop(list []*onpath.Lease) onpath.TraceHop {
	l := list[0]
	var modules []string
	for _, l := range list {
		modules = append(modules, fmt.Sprintf("%s until %s", l.Spec.Module, l.Spec.Until.UTC().Format(time.RFC3339)))
	}
	slices.Sort(modules)
	return onpath.TraceHop{
		Kind: onpath.HopElement, Mode: onpath.ModeInline, Node: l.Spec.Node, Vport: l.Spec.Vport,
		Name: l.Spec.Publisher + "/" + onpath.LeaseInstance, State: string(l.Status.State),
		Message: "by lease: " + strings.Join(modules, ", "),
	}
}

// throughLease goes on behind a publisher's engine that an entry leads to; ok says whether
// it is known where.
func (t *tracer) throughLease(n *node, e onpath.FlowEntry, hops *[]onpath.TraceHop) (next onpath.FlowEntry, ok bool) {
	at := t.leasesOf(func(l *onpath.LeaseSpec) bool { return l.Vport == e.Next })
	if len(at) == 0 {
		*hops = append(*hops, onpath.TraceHop{Kind: onpath.HopDrop, Node: n.name, Vport: e.Next, Live: true,
			Message: fmt.Sprintf("the flow entry leads to vport %d, which is no instance's any more", e.Next)})
		return e, false
	}
	t.tunnel(n, t.w.nodes[at[0].Spec.Node], hops, true)
	others := func(l *onpath.Lease) bool { return !servesAt(&l.Spec, e.Tuple) }
	if served := slices.DeleteFunc(slices.Clone(at), others); len(served) > 0 {
		hop := leaseHop(served)
		hop.Live, hop.Ends = true, true
		*hops = append(*hops, hop)
		return e, false
	}
	if met := slices.DeleteFunc(slices.Clone(at), func(l *onpath.Lease) bool { return !takes(&l.Spec, e.Tuple) }); len(met) > 0 {
		at = met
	}
	hop := leaseHop(at)
	hop.Live = true
	next, ok = t.at(n, e.Next, e.Tuple)
	if ok = ok && carries(next); !ok {
		hop.Unsure = true
		hop.Message = joinNotes(hop.Message, "whether the flow goes on behind it, perhaps under other addresses, cannot be told")
	}
	*hops = append(*hops, hop)
	return next, ok
}
