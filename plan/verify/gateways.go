package verify

import (
	"slices"

	"github.com/onpath/onpath"
)

// partner is the other gateway of a pair in use, or nil. Packets of a flow may come
// in at either, and its answers at the other one.
func (c *checker) partner(edge onpath.VportID) *site {
	if edge == 0 {
		return nil
	}
	for _, a := range c.areas {
		if len(a.used) != 2 || len(a.hosts) > 0 {
			continue
		}
		for i, g := range a.used {
			if x := c.sites[g]; x != nil && x.edge == edge {
				return c.sites[a.used[1-i]]
			}
		}
	}
	return nil
}

// connectGateways says what the two gateways of a cloudlet lack to work as a pair. A flow
// that both are told of is not harmed by it; so it is a note and no refutation.
func (c *checker) connectGateways(a *place) {
	if len(a.used) != 2 || len(a.hosts) > 0 {
		return
	}
	x, y := c.sites[a.used[0]], c.sites[a.used[1]]
	if x == nil || y == nil || x.edge == 0 || y.edge == 0 {
		return
	}
	for _, two := range [][2]*site{{x, y}, {y, x}} {
		v := two[0].vports[two[1].edge]
		switch {
		case v == nil || v.Kind != onpath.VportRemote || v.Peer != two[1].node || v.Backup != two[0].edge:
			c.note("gateway %s does not know gateway %s as its partner: flows that it cannot work out are not told to it",
				two[0].node, two[1].node)
		case v.State == onpath.VportClosed:
			c.note("gateway %s finds gateway %s gone", two[0].node, two[1].node)
		}
	}
	for id, g := range x.groups {
		if o := y.groups[id]; o != nil && !alike(g, o) {
			c.note("gateways %s and %s choose differently just now: new flows whose first packets come in at both before one has told the other may meet two instances", x.node, y.node)
			return
		}
	}
}

// tells notes where the other gateway of a pair cannot take over what it is told of
// the flows of a class: they go to an instance, at v on a node, that it does not know.
func (w *walker) tells(st state, v onpath.VportID, to *site) {
	p := w.c.partner(w.cl.entry)
	if p == nil || !st.strict || st.at.edge != w.cl.entry || st.via != st.at.edge || p.reaches(v, to) {
		return
	}
	w.c.note("gateway %s does not know %s at node %s just now, to which gateway %s leads flows: packets of these flows that come in at both may meet two instances",
		p.node, w.c.vportName(st.at, v), to.node, st.at.node)
}

// alike reports whether two nodes' groups choose the same member for every flow.
func alike(g, o *onpath.Group) bool {
	a, b := slices.Clone(g.Members), slices.Clone(o.Members)
	byVport := func(x, y onpath.Member) int { return int(x.Vport) - int(y.Vport) }
	slices.SortFunc(a, byVport)
	slices.SortFunc(b, byVport)
	return g.Together == o.Together && slices.EqualFunc(a, b, func(x, y onpath.Member) bool {
		return x.Vport == y.Vport && x.Weight == y.Weight && x.Key == y.Key
	})
}

// leaveAtPeer checks that answers find the way that come in at the other gateway of a
// pair: to the vport that the packets have come out of last.
func (w *walker) leaveAtPeer(st state, s set) *failure {
	to := w.c.partner(w.cl.entry)
	if to == nil || to.edge == st.at.edge && to == st.at {
		return nil
	}
	if f := w.steers(st, s, to); f != nil && st.strict {
		return f
	}
	if !to.reaches(st.via, st.at) {
		return w.lose(st, s,
			"has an answer that is dropped if it comes in at gateway %s, which does not know vport %d of node %s",
			to.node, st.via, st.at.node)
	}
	if st.at.edge != to.edge && !st.at.reaches(to.edge, to) {
		return w.lose(st, s, "cannot leave at gateway %s, where it may come in as well: node %s does not know its edge",
			to.node, st.at.node)
	}
	return nil
}
