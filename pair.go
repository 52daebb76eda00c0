package onpath

import (
	"cmp"
	"net/netip"
	"slices"
)

// A pair is two instances of one function at two cloudlets, which change packets together:
// the one encrypts and the other decrypts, say (PacketCloud §3.3.2). What they send each
// other goes over the stretch: ordinary IP between their nodes, over which each instance
// reaches the own addresses of its partner by the device StretchDevice. What the stretch
// carries is the function's business.

// The sides: a stands in the first cloudlet of the chain's at, toward its from end.
const (
	PairA = "a"
	PairB = "b"
)

// Pair is an instance's place in a pair. In an Instance it says who the partner is; in a
// node's plan also how the partner is reached.
type Pair struct {
	Number int    `json:"number"` // of the pair, from 1; no two of an element have one
	Side   string `json:"side"`
	// Partner is the name of the other instance, of the same tenant.
	Partner string `json:"partner"`
	// Secret is shared with the partner and nobody else, in hexadecimal. Another partner has
	// another one.
	Secret string `json:"secret,omitempty"`
	// Addresses are the partner's own.
	Addresses []netip.Addr `json:"addresses,omitempty"`
	// Link tells the pair's packets from those of others between the nodes (VXLAN's VNI).
	Link VportID `json:"link,omitempty"`
	// Local and Remote are the underlay addresses of the two nodes.
	Local  netip.Addr `json:"local,omitzero"`
	Remote netip.Addr `json:"remote,omitzero"`
	MTU    int        `json:"mtu,omitempty"` // of StretchDevice, bytes
}

// StretchDevice is the device of an instance by which it reaches its partner.
const StretchDevice = "pair0"

// StretchPort is the UDP port at nodes' underlay addresses by which pairs speak. Routers may
// lie between: it is not the port of the tunnels.
const StretchPort = 4798

// StretchMTU is the largest IP packet that fits between nodes whose underlays carry packets
// of mtu bytes.
func StretchMTU(mtu int, underlay netip.Addr) int {
	const outer = 8 + 8 + 14 // UDP, VXLAN, Ethernet
	if underlay.Is4() {
		return mtu - 20 - outer
	}
	return mtu - 40 - outer
}

// StretchMatch matches what a node sends another one for pairs, by their underlay addresses.
func StretchMatch(from, to netip.Addr) *Match {
	return &Match{Src: []netip.Prefix{netip.PrefixFrom(from, from.BitLen())}, Dst: []netip.Prefix{netip.PrefixFrom(to, to.BitLen())},
		Protocol: protocolNumbers("udp"), DstPorts: []PortRange{{First: StretchPort, Last: StretchPort}}}
}

// Equal reports whether two plans are the same; nil is that of an instance of no pair.
func (p *Pair) Equal(o *Pair) bool {
	if p == nil || o == nil {
		return p == o
	}
	return p.Number == o.Number && p.Side == o.Side && p.Partner == o.Partner && p.Secret == o.Secret &&
		slices.Equal(p.Addresses, o.Addresses) &&
		p.Link == o.Link && p.Local == o.Local && p.Remote == o.Remote && p.MTU == o.MTU
}

// Pair is the chain's element that is a pair, or nil.
func (s *ChainSpec) Pair() *Element {
	if i := slices.IndexFunc(s.Through, func(e Element) bool { return e.Pair }); i >= 0 {
		return &s.Through[i]
	}
	return nil
}

// PairSide is the side of the chain's pair that stands in a cloudlet; "": the chain has none.
func (s *ChainSpec) PairSide(cloudlet string) string {
	if s.Pair() == nil {
		return ""
	}
	switch slices.Index(s.At.Cloudlets, cloudlet) {
	case 0:
		return PairA
	case 1:
		return PairB
	}
	return ""
}

// StretchMAC is the address of StretchDevice at a side: each end knows the other's.
func StretchMAC(side string) string {
	if side == PairA {
		return macOf(0x74, 1)
	}
	return macOf(0x74, 2)
}

// validatePair checks a chain with a pair. Each half selects what goes into the pair at its end,
// and lets out what the other half took in; so the two ends must be told apart.
func validatePair(v *validation, c *Chain) {
	s := &c.Spec
	e := s.Pair()
	if e == nil {
		return
	}
	at := index("spec.through", slices.IndexFunc(s.Through, func(e Element) bool { return e.Pair }))
	if n := len(s.At.Cloudlets); n != 2 {
		v.add("spec.at.cloudlets", "write the cloudlet at the from end, and then the one at the to end",
			"names %d cloudlets; the two halves of a pair stand in two", n)
	}
	if len(s.Through) > 1 {
		v.add("spec.through", "put the others into a chain of another tier, or of other cloudlets",
			"has %d elements; a pair is the only one of its chain", len(s.Through))
	}
	given := func(wrong bool, field, remedy, why string) {
		if wrong {
			v.add(field, remedy, "%s", why)
		}
	}
	given(e.Mode == ModeMirror, at+".mode", "take it out", "a mirror gets copies, and sends nothing to a partner")
	given(len(e.Select) > 0, at+".select", "write it as spec.select",
		"what an element of a chain leaves out would pass beside the pair")
	given(e.Deployment != "", at+".deployment", "write {function: NAME, pair: true}", "the instances of a pair belong to one chain")
	given(e.Reservation != "", at+".reservation", "take it out",
		"a reservation is of one cloudlet, and the two sides have as many instances")
	given(s.Direction == DirectionForward, "spec.direction", "take it out",
		"a pair takes both directions: what one half changes the other changes back")
	given(cmp.Or(s.Exit, ExitEntry) != ExitEntry, "spec.exit", "take it out",
		"each half of a pair lets packets out where such flows enter")
	given(s.From.Any && s.To.Any, "spec.to", "write prefixes or hosts at one end",
		"from any to any does not tell which half stands at which end")
	given(s.From.Deployment != "", "spec.from.deployment", "write prefixes or hosts", "flows of a pair enter at gateways")
}
