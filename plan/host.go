package plan

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/onpath/onpath"
)

// A host is a node whose uplinks carry its machine's own traffic alone (GNFC §III-B). Its
// edge is no gateway: it takes what its machine sends and gets, tells no other edge of
// flows, and a cloudlet has as many as there are machines.
//
// Of each flow one edge takes care. A chain that names a host's machine is entered at that
// host's edge alone; any other chain at the gateways or, in a cloudlet without any, at
// every host's, and between two of these at the first one's. At all other edges the rules
// of the chain leave its traffic alone. Behind the last element packets for a host leave
// at its edge at once, and their replies come in there.
//
// Addresses that several hosts of a cloudlet have (overlapping networks of clouds, a
// container engine's bridge) mean another machine at each edge: no other edge leaves them
// alone, and packets for them go back to the edge where they entered.

func (n *node) host() bool { return n.obj != nil && n.obj.AttachedHost() }

// edges are the nodes of a cloudlet whose uplinks are used.
func (c *cloudlet) edges() []*node {
	if len(c.hosts) == 0 {
		return c.activeGateways
	}
	return slices.Concat(c.activeGateways, c.hosts)
}

// entrances are the nodes at whose edges flows enter a chain.
func (c *cloudlet) entrances(ch *chain) []*node {
	switch {
	case ch != nil && ch.host != nil && ch.host.c == c:
		return []*node{ch.host}
	case ch != nil && ch.host != nil:
		return nil
	case len(c.activeGateways) > 0:
		return c.activeGateways
	}
	return c.hosts
}

// nameHost notes the host at whose edge the chain's flows enter: of two that it names, the
// one where flows start.
func (c *chain) nameHost(n *node) {
	if c.host == nil && n.host() {
		c.host = n
	}
}

// checkHost refuses what attached machines cannot have.
func (w *resolver) checkHost(c *chain) {
	if c.host != nil && !slices.Contains(c.cloudlets, c.host.c.name) {
		c.fail(onpath.CodeInvalid, "spec.at.cloudlets", fmt.Sprintf("write %s, or leave it out", c.host.c.name),
			"the chain is for the machine of node %s, which is in cloudlet %s", c.host.name, c.host.c.name)
	}
	if c.tier != onpath.TierOperator {
		return
	}
	for _, n := range c.cloudlets {
		if cl := w.cloudlets[n]; c.host != nil || len(cl.activeGateways) == 0 && len(cl.hosts) > 0 {
			c.fail(onpath.CodeUnsupported, "spec.tier", "write tier: tenant, or at: with cloudlets that have gateways",
				"the own traffic of machines (uplinks with attach: host, cloudlet %s) crosses chains of tier tenant only", n)
			return
		}
	}
}

func (n *node) prefixes() (out []netip.Prefix) {
	for _, a := range n.addresses() {
		out = append(out, netip.PrefixFrom(a, a.BitLen()))
	}
	return out
}

// findShared notes addresses that several hosts have.
func (c *cloudlet) findShared() {
	if len(c.hosts) < 2 {
		return
	}
	c.shared = map[netip.Addr]bool{}
	seen := map[netip.Addr]*node{}
	for _, h := range c.hosts {
		for _, a := range h.addresses() {
			if first := seen[a]; first != nil && first != h {
				c.shared[a] = true
			}
			seen[a] = h
		}
	}
}

// only are the addresses that no other host of the cloudlet has.
func (n *node) only() []netip.Prefix {
	return slices.DeleteFunc(n.prefixes(), func(p netip.Prefix) bool { return n.c.shared[p.Addr()] })
}

// rulesAt are a path's rules in a node's classifier. together has both directions where
// one must not stand behind rules of other chains: whose flow it is between two hosts is
// decided for both directions by the same chain.
func (p *path) rulesAt(n *node) (together, forward, reverse []onpath.Rule) {
	switch entrances := n.c.entrances(p.chain); {
	case !n.hasEdge():
		return nil, p.forward, p.reverse // behind an operator's chain
	case !slices.Contains(entrances, n) && n.host() && p.tier == onpath.TierOperator:
		return nil, nil, nil
	case !slices.Contains(entrances, n):
		return p.leaveAlone(n), nil, nil
	case !n.host():
		return nil, p.forward, p.reverse
	case p.chain != nil && p.chain.host != nil:
		return slices.Concat(p.forward, p.reverse), nil, nil
	}
	for _, g := range n.c.hosts {
		if g.name >= n.name {
			break
		}
		for _, r := range slices.Concat(p.forward, p.reverse) {
			together = append(together, narrowed(r, g.only(), n.prefixes())...)
			together = append(together, narrowed(r, n.prefixes(), g.only())...)
		}
	}
	return together, p.forward, p.reverse
}

// leaveAlone are rules by which a node's edge leaves a chain's traffic to another edge: at
// a host those about its own machine.
func (p *path) leaveAlone(n *node) (out []onpath.Rule) {
	var there []netip.Prefix // the machine's that the chain names
	if p.chain != nil && p.chain.host != nil {
		there = p.chain.host.only()
	}
	for _, r := range slices.Concat(p.forward, p.reverse) {
		if !n.host() {
			out = append(out, onpath.Rule{Match: r.Match, Action: onpath.Action{Kind: onpath.ActionExit}})
			continue
		}
		out = append(out, narrowed(r, n.prefixes(), there)...)
		out = append(out, narrowed(r, there, n.prefixes())...)
	}
	return out
}

// narrowed is a rule that leaves alone what another selects from src to dst.
func narrowed(r onpath.Rule, src, dst []netip.Prefix) []onpath.Rule {
	m, ok := overlap(r.Match, onpath.Match{Src: tidy(src), Dst: tidy(dst)})
	if !ok {
		return nil
	}
	return []onpath.Rule{{Match: m, Action: onpath.Action{Kind: onpath.ActionExit}}}
}

// delivering are the tables of a path at a node: behind elements, packets for hosts that
// can take them leave at these hosts' edges.
func (b *builder) delivering(p *path) []onpath.Table {
	entrances := b.n.c.entrances(p.chain)
	if len(b.local) == 0 || len(entrances) == 0 || !entrances[0].host() || p.over {
		return p.tables
	}
	var rules []onpath.Rule
	for _, h := range b.n.c.hosts {
		if b.mayDeliver(p, h) {
			rules = append(rules, onpath.Rule{Match: onpath.Match{Dst: tidy(h.only())},
				Action: onpath.Action{Kind: onpath.ActionDeliver, Vport: h.obj.Status.Edge}})
		}
	}
	if len(rules) == 0 {
		return p.tables
	}
	out := slices.Clone(p.tables)
	for i, t := range out {
		_, k, _ := onpath.GroupID(t.ID).Split()
		all := len(t.Rules) > 0 && isAll(t.Rules[len(t.Rules)-1].Match)
		if k != start && !all && t.Miss.Kind == onpath.ActionExit {
			out[i].Rules = slices.Concat(t.Rules, rules)
		}
	}
	return out
}

// mayDeliver reports whether a host knows what of a path comes to its edge from the node,
// and where the replies go.
func (b *builder) mayDeliver(p *path, h *node) bool {
	if h == b.n {
		return h.obj.Status.Edge != 0
	}
	if h.away || !mayPointEdge(b.n, h) || h.acked.path(p.id) == nil || len(h.only()) == 0 {
		return false
	}
	for _, i := range b.local {
		if slices.Contains(p.deps, i.dep) && !h.acked.hasRemote(i.obj.Spec.Vport) {
			return false
		}
	}
	return true
}

// withoutDelivery is a table without the rules of delivering.
func withoutDelivery(t onpath.Table) onpath.Table {
	t.Rules = slices.DeleteFunc(slices.Clone(t.Rules), func(r onpath.Rule) bool { return r.Action.Kind == onpath.ActionDeliver })
	if len(t.Rules) == 0 {
		t.Rules = nil
	}
	return t
}

// speak reports whether two nodes of a cloudlet may send each other packets. Hosts without
// instances send none to each other.
func speak(a, b *node) bool {
	idle := func(n *node) bool { return n.host() && len(n.insts) == 0 }
	return !idle(a) || !idle(b)
}

// edgeOf is the node that has an edge, or nil.
func (w *world) edgeOf(v onpath.VportID) *node {
	if i := slices.IndexFunc(w.nodeOrder, func(n *node) bool { return v != 0 && n.obj.Status.Edge == v }); i >= 0 {
		return w.nodeOrder[i]
	}
	return nil
}
