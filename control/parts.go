package control

import (
	"cmp"
	"context"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/control/pool"
	"github.com/onpath/onpath/plan"
	"github.com/onpath/onpath/plan/near"
)

// part works by itself until ctx ends, under a lock of its own. observe tells it how things
// stand; it writes to the store, and has no way back into the Controller.
type part interface{ Run(ctx context.Context) }

// observe tells the parts how things stand after a step. Callers hold mu.
func (c *Controller) observe(r *plan.Result) {
	now, grace := c.o.Clock(), c.core.settings.Grace
	if grace == 0 {
		grace = plan.DefaultGrace
	}
	var nodes []pool.Node
	cloudlets, use := map[string]pool.Cloudlet{}, newUseNotes(c.core.mirror.objects)
	for _, o := range c.core.mirror.objects {
		switch o := o.(type) {
		case *onpath.Cloudlet:
			cloudlets[o.Metadata.Name] = pool.Cloudlet{Share: o.Spec.OperatorShare, Location: o.Spec.Location, Prefixes: o.Spec.Prefixes}
		case *onpath.Node:
			nodes = append(nodes, observeNode(o, c.core.nodes[o.Metadata.Name], r.Taken[o.Metadata.Name], c.core.started, now, grace))
		case *onpath.Deployment:
			use.note(o.Metadata.Tenant, o.Metadata.Name, o.Spec.Reservation, o.Spec.Function, o.Spec.Drain)
		case *onpath.Chain:
			for _, e := range o.Spec.Through {
				use.note(o.Metadata.Tenant, onpath.ShortDeployment(o.Metadata.Name, e.Function), e.Reservation, e.Function,
					cmp.Or(e.Drain, onpath.DefaultDrain))
			}
		}
	}
	use.noteInstances()
	c.uses.by.Store(&use.uses)
	noteWords(c.core.nodes, r, nodes, now)
	noteRoundTrips(c.core.nodes, nodes, cloudlets)
	c.pool.Observe(nodes, cloudlets)
	gateways := connectedGateways(c.core.mirror, c.core.nodes)
	c.names.Note(c.core.mirror.objects, nearby(cloudlets), gateways)
	connected := connectedNodes(c.core.nodes)
	c.metering.Note(c.core.mirror.objects, connected)
	c.scaling.Note(c.core.mirror.objects, plansInForce(c.core.nodes), connected)
	c.limits.Note(c.core.mirror.objects)
	c.claims.Note(c.core.mirror.objects, leasesAt(c.core.nodes), gateways)
}

// connectedNodes are the nodes that have a session.
func connectedNodes(nodes map[string]*session) (names []string) {
	for name, st := range nodes {
		if st.connected {
			names = append(names, name)
		}
	}
	return names
}

// plansInForce are the plans that nodes have acknowledged.
func plansInForce(nodes map[string]*session) map[string]*onpath.NodePlan {
	plans := map[string]*onpath.NodePlan{}
	for name, st := range nodes {
		if st.state.Acked != nil {
			plans[name] = st.state.Acked
		}
	}
	return plans
}

// nearby are cloudlets as clients are near them.
func nearby(cloudlets map[string]pool.Cloudlet) near.Map {
	out := make(near.Map, len(cloudlets))
	for name, cl := range cloudlets {
		out[name] = near.Cloudlet{Location: cl.Location, Prefixes: cl.Prefixes, RTT: cl.RTT}
	}
	return out
}

// leasesAt are the tenants of which modules are at nodes, by the nodes' word.
func leasesAt(nodes map[string]*session) map[string][]string {
	at := map[string][]string{}
	for name, st := range nodes {
		if st.state.Report == nil {
			continue
		}
		for i := range st.state.Report.Leases {
			if l := &st.state.Report.Leases[i]; l.Known {
				at[name] = append(at[name], l.Publisher)
			}
		}
	}
	return at
}

// connectedGateways are the nodes with uplinks that are connected, by cloudlet.
func connectedGateways(m *mirror, sessions map[string]*session) map[string][]string {
	of := map[string][]string{}
	for name, st := range sessions {
		n, ok := m.objects[onpath.Key{Kind: onpath.KindNode, Name: name}].(*onpath.Node)
		if ok && st.connected && n.Accepted() && len(n.Spec.Uplinks) > 0 {
			of[n.Spec.Cloudlet] = append(of[n.Spec.Cloudlet], name)
		}
	}
	return of
}
