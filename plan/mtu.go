package plan

import (
	"slices"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/plan/tunnel"
)

// What a tunnel adds to an IP packet, in bytes: outer IP, UDP, VXLAN and the
// inner Ethernet header.
const (
	overhead4 = 20 + 8 + 8 + 14
	overhead6 = 40 + 8 + 8 + 14
)

// ethernetMTU is assumed where nobody says another, and is the least that an
// instance's interface has: a smaller one would also limit what never leaves
// its node.
const ethernetMTU = 1500

// underlayMTU is that of the node's underlay, in bytes.
func (n *node) underlayMTU() int {
	switch {
	case n.obj.Spec.Underlay.MTU > 0:
		return n.obj.Spec.Underlay.MTU
	case n.st != nil && n.st.Report != nil && n.st.Report.UnderlayMTU > 0:
		return n.st.Report.UnderlayMTU
	}
	return ethernetMTU
}

// tunnelMTU is the largest IP packet that the node can send or receive through
// a tunnel.
func (n *node) tunnelMTU() int {
	if n.encrypts {
		return n.underlayMTU() - tunnel.Overhead(n.obj.Spec.Underlay.Address.Is4()) - overhead6
	}
	if n.obj.Spec.Underlay.Address.Is4() {
		return n.underlayMTU() - overhead4
	}
	return n.underlayMTU() - overhead6
}

// interfaceMTU is that of the interfaces of a function's instances on the node.
func (n *node) interfaceMTU(fn *onpath.FunctionSpec) int {
	if fn.Traits().WholeFrames {
		return ethernetMTU
	}
	return max(ethernetMTU, n.tunnelMTU())
}

// mtu is the largest IP packet that all hops of the path carry in the cloudlet.
func (w *pathfinder) mtu(cl *cloudlet, p *path) int {
	var nodes []*node // few, most often
	note := func(n *node) {
		if !slices.Contains(nodes, n) {
			nodes = append(nodes, n)
		}
	}
	for _, g := range cl.entrances(p.chain) {
		note(g)
		if g.host() {
			nodes = slices.Clone(cl.hosts) // to any of which it may deliver
			break
		}
	}
	least := 0
	lower := func(m int) {
		if least == 0 || m < least {
			least = m
		}
	}
	for _, members := range p.members {
		for _, i := range members {
			if !i.leaving {
				note(i.node)
				lower(i.mostIn())
			}
		}
	}
	if len(nodes) > 1 {
		for _, n := range nodes {
			lower(n.tunnelMTU())
		}
	}
	return least
}

// canCarry reports whether an MTU is enough for IPv6 (RFC 8200 §5); 0 is that
// of a path without instances.
func canCarry(mtu int) bool { return mtu == 0 || mtu >= onpath.MinMTU }
