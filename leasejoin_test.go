package onpath

import (
	"net/netip"
	"slices"
	"testing"
)

// TestLeaseServesAtAddressesLentLater: a publisher's engine has the addresses that its slot has
// now, whatever the slot had when the first of its modules came.
func TestLeaseServesAtAddressesLentLater(t *testing.T) {
	then := LeaseSlot{Vport: 20, Path: 30, Addresses: []netip.Prefix{netip.MustParsePrefix("10.0.0.2/32")}}
	now := then
	now.Serves = []netip.Addr{netip.MustParseAddr("203.0.113.5")}
	p := &NodePlan{Leases: &LeasePlan{Slots: []LeaseSlot{now}}, Datapath: DatapathConfig{Edge: &Edge{Vport: 1, Table: 1}}}
	lease := func(name string, s LeaseSlot) LocalLease {
		return LocalLease{Slot: s, LeaseSpec: LeaseSpec{Publisher: "voice", Module: name, To: []Prefix{{netip.MustParsePrefix("192.0.2.0/24")}}},
			Name: name}
	}
	server := lease("web", now)
	server.Serves, server.Addresses, server.ServesOnly = []ServedPort{{"tcp", 80}}, now.Serves, true
	joined := p.WithLeases([]LocalLease{lease("monitor", then), server})
	if len(joined.Instances) != 1 || !slices.Equal(joined.Instances[0].Serves, now.Serves) {
		t.Errorf("%+v", joined.Instances)
	}
}
