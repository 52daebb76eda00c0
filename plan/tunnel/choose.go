// Package tunnel chooses by which tunnel two nodes reach each other.
package tunnel

import (
	"cmp"
	"crypto/sha256"
	"fmt"
	"net/netip"
	"slices"

	"github.com/onpath/onpath"
)

// Overhead is what WireGuard adds to an IP packet, in bytes: the outer IP header, UDP and its own.
func Overhead(v4 bool) int {
	if v4 {
		return 20 + 8 + 32
	}
	return 40 + 8 + 32
}

// inside is the network inside WireGuard, a unique local one (RFC 4193).
var inside = netip.MustParsePrefix("fd6f:6e70:7767::/64")

// Inside is the address of a node inside WireGuard. It is made of the node's name alone, so that it
// never changes: two nodes do not take up a plan in the same instant.
func Inside(node string) netip.Addr {
	a, host := inside.Addr().As16(), sha256.Sum256([]byte(node))
	copy(a[8:], host[:])
	return netip.AddrFrom16(a)
}

// End is one node of a pair, with what it says of the other.
type End struct {
	Name     string
	Underlay onpath.Underlay
	Own      []netip.Addr // the machine's addresses
	Seen     netip.Addr   // from where its session came; zero: it is on the server's machine
	Key      string       // of its WireGuard; "": it has none
	Lacks    string       // why
	Indirect bool         // the other has not answered VXLAN
}

// NAT is the address at which others see a node behind NAT; zero: it is behind none.
func (e *End) NAT() netip.Addr {
	s := e.Seen.Unmap()
	if !s.IsValid() || s.IsLoopback() || s == e.Underlay.Address || slices.Contains(e.Own, s) {
		return netip.Addr{}
	}
	return s
}

// Endpoints are where a node's WireGuard may be.
func (e *End) Endpoints() (out [2]netip.AddrPort) {
	port := e.Underlay.WireGuardPort()
	out[0] = netip.AddrPortFrom(e.Underlay.Address, port)
	if nat := e.NAT(); nat.IsValid() {
		out[1] = netip.AddrPortFrom(nat, port)
	}
	return out
}

// Choice is how two nodes reach each other.
type Choice struct {
	WireGuard bool
	Why       string // to be read behind the name of the tunnel
}

// Lacks is why two nodes can have no WireGuard; "": they can.
func Lacks(a, b *End) string {
	for _, e := range []*End{a, b} {
		if e.Key == "" {
			why := cmp.Or(e.Lacks, "nothing has been heard of it yet, or it is of an earlier version")
			return fmt.Sprintf("node %s has no WireGuard: %s", e.Name, why)
		}
	}
	return ""
}

// Choose chooses. now is what they use already.
func Choose(a, b *End, now bool) Choice {
	for _, e := range []*End{a, b} {
		if e.Underlay.Tunnel == onpath.TunnelWireGuard {
			return Choice{true, fmt.Sprintf("node %s says tunnel: wireguard", e.Name)}
		}
	}
	for _, e := range []*End{a, b} {
		if e.Underlay.Tunnel == onpath.TunnelVXLAN {
			return Choice{false, fmt.Sprintf("node %s says tunnel: vxlan", e.Name)}
		}
	}
	if why := Lacks(a, b); why != "" {
		return Choice{now, why} // for a while, perhaps
	}
	if a.NAT() != b.NAT() {
		e := a
		if !e.NAT().IsValid() {
			e = b
		}
		return Choice{true, fmt.Sprintf("node %s is behind NAT, at %s", e.Name, e.NAT())}
	}
	silent := func(e, other *End) string {
		return fmt.Sprintf("node %s gets no answer to VXLAN from node %s: a router or a firewall is in between", e.Name, other.Name)
	}
	switch {
	case a.Underlay.Address == b.Underlay.Address:
		return Choice{true, fmt.Sprintf("both have the underlay address %s", a.Underlay.Address)}
	case now: // VXLAN is not tried meanwhile
		return Choice{true, "it is in use, and auto keeps it; tunnel: vxlan at one of the two ends it"}
	case a.Indirect:
		return Choice{true, silent(a, b)}
	case b.Indirect:
		return Choice{true, silent(b, a)}
	}
	return Choice{false, "one IP hop"}
}
