package tunnel

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/onpath/onpath"
)

func end(name, address, seen string) End {
	e := End{Name: name, Underlay: onpath.Underlay{Address: netip.MustParseAddr(address)}, Key: "key of " + name}
	e.Own = []netip.Addr{e.Underlay.Address}
	if seen != "" {
		e.Seen = netip.MustParseAddr(seen)
	}
	return e
}

// TestChoose: VXLAN where it is answered after one hop, WireGuard elsewhere, and each choice says
// why.
func TestChoose(t *testing.T) {
	a, b := end("a", "192.0.2.1", "192.0.2.1"), end("b", "192.0.2.2", "192.0.2.2")
	change := func(e End, do func(*End)) End { do(&e); return e }
	says := func(word string) func(*End) {
		return func(e *End) {
			if word == "vxlan" {
				e.Underlay.Tunnel = onpath.TunnelVXLAN
			} else {
				e.Underlay.Tunnel = onpath.TunnelWireGuard
			}
		}
	}
	nat := end("n", "10.0.0.7", "198.51.100.2")
	for _, c := range []struct {
		name      string
		a, b      End
		now       bool
		wireGuard bool
		why       string
	}{
		{"they meet", a, b, false, false, "one IP hop"},
		{"one says WireGuard", change(a, says("wireguard")), b, false, true, "node a says tunnel: wireguard"},
		{"the other says VXLAN", a, change(b, says("vxlan")), true, false, "node b says tunnel: vxlan"},
		{"VXLAN is not answered", a, change(b, func(e *End) { e.Indirect = true }), false, true, "no answer to VXLAN from node a"},
		{"WireGuard stays", a, b, true, true, "auto keeps it"},
		{"one is behind NAT", a, nat, false, true, "node n is behind NAT, at 198.51.100.2"},
		{"both are behind one NAT", change(nat, func(e *End) { e.Underlay.Address = netip.MustParseAddr("10.0.0.8") }), nat, false, false, "one IP hop"},
		{"one has no key", change(a, func(e *End) { e.Key, e.Lacks = "", "no TUN" }), nat, false, false, "node a has no WireGuard: no TUN"},
		{"two networks have the same addresses", a, change(b, func(e *End) { e.Underlay.Address = a.Underlay.Address }), false, true, "both have the underlay address"},
	} {
		got := Choose(&c.a, &c.b, c.now)
		if got.WireGuard != c.wireGuard || !strings.Contains(got.Why, c.why) {
			t.Errorf("%s: %+v, want %v, %q", c.name, got, c.wireGuard, c.why)
		}
	}
	if ends := nat.Endpoints(); ends[1] != netip.MustParseAddrPort("198.51.100.2:4798") {
		t.Errorf("a node behind NAT is looked for at %v", ends)
	}
	if ends := a.Endpoints(); ends[1].IsValid() {
		t.Errorf("a node behind no NAT is looked for at %v", ends)
	}
}

// TestInside: addresses inside differ by node and are of one network.
func TestInside(t *testing.T) {
	a := Inside("a")
	if b := Inside("b"); a == b || !inside.Contains(a) || !inside.Contains(b) || !a.IsPrivate() {
		t.Errorf("two nodes have %s and %s", a, b)
	}
}
