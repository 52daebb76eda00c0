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

// Inside is the address of a node inside WireGuard: a unique local one (RFC 4193) that is made of
// the installation's secret and the node's name, so that it never changes.
func Inside(secret []byte, node string) netip.Addr {
	net := sha256.Sum256(append([]byte("inside WireGuard\x00"), secret...))
	host := sha256.Sum256([]byte(node))
	var a [16]byte
	a[0] = 0xfd
	copy(a[1:6], net[:])
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
	// Indirect: the other has not answered VXLAN; Direct: it has, although they use WireGuard.
	Indirect, Direct bool
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
	case now && !a.Direct:
		return Choice{true, silent(a, b)}
	case now && !b.Direct:
		return Choice{true, silent(b, a)}
	case now:
		return Choice{false, "VXLAN is answered now"}
	case a.Indirect:
		return Choice{true, silent(a, b)}
	case b.Indirect:
		return Choice{true, silent(b, a)}
	}
	return Choice{false, "one IP hop"}
}
