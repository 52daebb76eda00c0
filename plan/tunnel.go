package plan

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/plan/tunnel"
)

// end is a node as the choice of tunnels sees it, beside another one.
func (n *node) end(other *node) *tunnel.End {
	e := &tunnel.End{Name: n.name, Underlay: n.obj.Spec.Underlay, Own: n.obj.Status.Addresses}
	if n.st == nil {
		return e
	}
	e.Seen = n.st.From
	if r := n.st.Report; r != nil {
		e.Key, e.Lacks, e.Own = r.TunnelKey, r.TunnelLacks, r.Addresses
		e.Indirect = slices.Contains(r.Indirect, other.name)
	}
	return e
}

// chooseTunnel is by what two nodes of a cloudlet reach each other.
func chooseTunnel(a, b *node) tunnel.Choice {
	if !a.c.mixed {
		return tunnel.Choice{}
	}
	if a.name > b.name {
		a, b = b, a
	}
	now := func(n, other *node) bool { return n.newest != nil && n.newest.inside[other.name] != nil }
	return tunnel.Choose(a.end(b), b.end(a), now(a, b) || now(b, a))
}

// peer is another node as this one's data path knows it.
func (b *builder) peer(m *node) onpath.Peer {
	p := onpath.Peer{
		Node: m.name, Address: m.obj.Spec.Underlay.Address, Port: port(m.obj.Spec.Underlay),
		Secret: b.w.secret(b.n, m), MTU: min(b.n.underlayMTU(), m.underlayMTU()),
	}
	if !chooseTunnel(b.n, m).WireGuard {
		return p
	}
	e, own := m.end(b.n), b.n.obj.Spec.Underlay
	p.Inside, p.Address, p.Key = true, tunnel.Inside(m.name), e.Key
	p.MTU -= tunnel.Overhead(own.Address.Is4() && e.Underlay.Address.Is4())
	if own.Address != e.Underlay.Address {
		p.Endpoints = e.Endpoints()
	} else if nat := e.Endpoints()[1]; nat.IsValid() {
		p.Endpoints[0] = nat
	}
	if m.st == nil && b.n.newest != nil { // the server has started: what was said before holds
		if was := b.n.newest.inside[m.name]; was != nil {
			p.Key, p.Endpoints = was.Key, was.Endpoints
		}
	}
	return p
}

// findTunnels marks the nodes that reach another one by WireGuard. In most cloudlets VXLAN does,
// and no pair need be looked at.
func (c *cloudlet) findTunnels() {
	addresses := map[netip.Addr]bool{}
	for _, n := range c.nodes {
		a := n.obj.Spec.Underlay.Address
		e := n.end(n)
		c.mixed = c.mixed || addresses[a] || isOne(e.Underlay.Tunnel) || e.NAT().IsValid() || n.newest != nil && len(n.newest.inside) > 0 ||
			n.st != nil && n.st.Report != nil && len(n.st.Report.Indirect) > 0
		addresses[a] = true
	}
	for _, n := range c.nodes {
		n.encrypts = c.mixed && slices.ContainsFunc(c.nodes, func(m *node) bool { return m != n && chooseTunnel(n, m).WireGuard })
	}
}

// tunnelConditions says how a node and the others of its cloudlet reach each other.
func tunnelConditions(w *world, n *node, list []onpath.Condition) []onpath.Condition {
	told := map[string]bool{}
	for _, m := range n.c.nodes {
		if !n.c.mixed || m == n || n.st == nil || m.st == nil || !speak(n, m) {
			continue
		}
		ok, reason, message := reached(n, m)
		typ := onpath.ConditionTunnel + m.name
		told[typ] = true
		list = w.condition(list, typ, ok, reason, message)
	}
	return slices.DeleteFunc(slices.Clone(list), func(c onpath.Condition) bool {
		return strings.HasPrefix(c.Type, onpath.ConditionTunnel) && !told[c.Type]
	})
}

func reached(n, m *node) (ok bool, reason, message string) {
	c := chooseTunnel(n, m)
	name := "VXLAN in clear text"
	if reason = onpath.ReasonVXLAN; c.WireGuard {
		reason, name = onpath.ReasonWireGuard, "WireGuard"
	}
	message = name + ", for " + c.Why
	hears := func(a, b *node) bool {
		return a.st.Report != nil && !slices.Contains(a.st.Report.Unreachable, b.name)
	}
	if hears(n, m) && hears(m, n) {
		return true, reason, message
	}
	a, b := n.end(m), m.end(n)
	switch lacks := tunnel.Lacks(a, b); {
	case c.WireGuard && lacks != "":
		return false, onpath.ReasonNoWireGuard, fmt.Sprintf("node %s is not reached: %s, and %s", m.name, c.Why, lacks)
	case c.WireGuard && a.NAT().IsValid() && b.NAT().IsValid():
		return false, onpath.ReasonNoWay, fmt.Sprintf("node %s is not reached: both are behind NAT, at %s and %s; "+
			"let UDP port %d through to one of the two", m.name, a.NAT(), b.NAT(), b.Underlay.WireGuardPort())
	case c.WireGuard:
		return false, onpath.ReasonNoAnswer, fmt.Sprintf("node %s does not answer by WireGuard (%s); "+
			"let UDP port %d through to one of the two", m.name, c.Why, b.Underlay.WireGuardPort())
	}
	return false, onpath.ReasonNoAnswer, fmt.Sprintf("node %s does not answer VXLAN (%s)", m.name, c.Why)
}

// isOne reports whether a Node names one tunnel, not auto.
func isOne[T ~string](t T) bool { return t != "" && t != T(onpath.TunnelAuto) }
