package verify

import (
	"net/netip"
	"slices"

	"github.com/onpath/onpath"
)

// host is an attached machine: a node whose edge has its own traffic alone.
type host struct {
	node  string
	edge  onpath.VportID
	addrs []netip.Prefix
	// shares: others have some of its addresses, too.
	shares bool
	// sent and got are the sets of what it sends and gets, from and to the sets of what has
	// an address that it alone of the cloudlet's machines has.
	sent, got, from, to match
}

// hosts are those of the nodes that are attached machines, their sets taken up.
func (c *checker) hosts(nodes []string) (out []*host) {
	for _, n := range c.res.nodes {
		if !n.AttachedHost() || !slices.Contains(nodes, n.Metadata.Name) {
			continue
		}
		h := &host{node: n.Metadata.Name, edge: n.Status.Edge, addrs: ofMachine(n)}
		h.sent, h.got = c.space.take(onpath.Match{Src: h.addrs}), c.space.take(onpath.Match{Dst: h.addrs})
		out = append(out, h)
	}
	for _, h := range out {
		only := slices.DeleteFunc(slices.Clone(h.addrs), func(p netip.Prefix) bool {
			return slices.ContainsFunc(out, func(g *host) bool { return g != h && slices.Contains(g.addrs, p) })
		})
		if h.shares = len(only) < len(h.addrs); len(only) > 0 {
			h.from, h.to = c.space.take(onpath.Match{Src: only}), c.space.take(onpath.Match{Dst: only})
		}
	}
	return out
}

func (a *place) hostOf(node string) *host {
	if i := slices.IndexFunc(a.hosts, func(h *host) bool { return h.node == node }); i >= 0 {
		return a.hosts[i]
	}
	return nil
}

// entersAt reports whether flows of a promise are to enter at a node's edge: that of the
// machine that it names, else gateways', without any every machine's.
func (a *place) entersAt(p *promise, node string) bool {
	switch {
	case p.host != "":
		return p.host == node
	case a.hostOf(node) == nil:
		return true
	}
	return len(a.hosts) == len(a.used)
}

// claims are what tenants' chains select at a node, in order. What a chain selects by an
// address that its machine shares with others it selects at its own machine alone.
func (c *checker) claims(a *place, node string) []*traffic {
	if a.hostOf(node) == nil || !slices.ContainsFunc(a.hosts, func(h *host) bool { return h.shares }) {
		return a.tenant
	}
	out := slices.Clone(a.tenant)
	for i, t := range out {
		h := a.hostOf(t.p.host)
		if h == nil || h.node == node || !h.shares {
			continue
		}
		clipped := *t
		clipped.boxes = nil
		for _, b := range t.boxes {
			for _, own := range append(c.space.boxes(h.from), c.space.boxes(h.to)...) {
				if both, ok := c.space.and(set{box: b}, own); ok {
					clipped.boxes = append(clipped.boxes, both.box)
				}
			}
		}
		out[i] = &clipped
	}
	return out
}

// atHost follows what a machine sends and gets. Of traffic between two machines, a chain
// that names neither takes up what is the first one's.
func (c *checker) atHost(a *place, base class, h *host) {
	for _, all := range c.everything() {
		rest, ok := c.space.minusAll(all, c.quiet)
		if !ok {
			continue
		}
		own := append(c.space.boxes(h.sent), c.space.boxes(h.got)...)
		for i, b := range own {
			part, ok := c.space.and(rest, b)
			if !ok {
				continue
			}
			if part, ok = c.space.minusAll(part, own[:i]); ok {
				c.betweenHosts(a, base, h, part)
			}
		}
	}
}

func (c *checker) betweenHosts(a *place, base class, h *host, s set) {
	for _, g := range a.hosts {
		if g.node >= h.node {
			break
		}
		for _, b := range append(c.space.boxes(g.from), c.space.boxes(g.to)...) {
			hit, ok := c.space.and(s, b)
			if !ok {
				continue
			}
			between := base
			between.first = g
			c.withTenants(a, between, hit)
			var more bool
			if s, more = c.space.minus(s, b); !more {
				return
			}
		}
	}
	c.withTenants(a, base, s)
}

// delivered checks that what leaves at another edge than it entered is for the machine of
// that edge's node.
func (w *walker) delivered(st state, s set) *failure {
	for _, a := range w.c.areas {
		for _, h := range a.hosts {
			if h.edge != st.deliver {
				continue
			}
			for _, b := range w.c.space.boxes(h.to) {
				var more bool
				if s, more = w.c.space.minus(s, b); !more {
					return nil
				}
			}
			return w.fail(st, s, "leaves at the edge of node %s, whose machine it is not for", h.node)
		}
	}
	return w.fail(st, s, "leaves at vport %d, which is no machine's edge", st.deliver)
}
