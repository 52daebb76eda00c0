package bench

import (
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/bench/testnet"
	"github.com/onpath/onpath/internal/netnsrun"
)

// element are the vports of an instance.
type element struct {
	forth, back onpath.VportID // the same for a routed instance
}

// hostAddr is what a routed instance takes for its router.
var hostAddr = netip.MustParseAddr("169.254.1.1")

var anywhere = netip.MustParsePrefix("0.0.0.0/0")

// wireRouted makes the namespace of an instance that is an IP hop of a node and
// wires it as the node's agent does. Linux forwards in it if forward is set.
func wireRouted(b *testnet.Network, node string, id onpath.VportID, forward bool) (ns string, err error) {
	if ns, err = b.Namespace(fmt.Sprintf("i%d", id)); err != nil {
		return "", err
	}
	err = testnet.Pair(testnet.End{NS: node, Dev: onpath.DeviceName(id), MAC: mac(onpath.HostMAC(id))},
		testnet.End{NS: ns, Dev: "eth0", MAC: mac(onpath.InstanceMAC(id))})
	if err != nil {
		return "", err
	}
	if err := testnet.Neighbour(ns, "eth0", hostAddr, mac(onpath.HostMAC(id))); err != nil {
		return "", err
	}
	if err := testnet.Route(ns, "eth0", anywhere, hostAddr); err != nil {
		return "", err
	}
	if forward {
		err = testnet.Set(ns, "ipv4/ip_forward=1")
	}
	return ns, err
}

// wireBridged makes the namespace of an instance with two sides.
func wireBridged(b *testnet.Network, node string, e element) (ns string, err error) {
	if ns, err = b.Namespace(fmt.Sprintf("i%d", e.forth)); err != nil {
		return "", err
	}
	for dev, id := range map[string]onpath.VportID{"eth0": e.forth, "eth1": e.back} {
		err := testnet.Pair(testnet.End{NS: node, Dev: onpath.DeviceName(id), MAC: mac(onpath.HostMAC(id))},
			testnet.End{NS: ns, Dev: dev, MAC: mac(onpath.InstanceMAC(id))})
		if err != nil {
			return "", err
		}
	}
	return ns, nil
}

// instanceAddr is what a router wired by hand takes for a routed instance.
var instanceAddr = netip.MustParseAddr("169.254.1.2")

// steerByHand has a node's kernel send what comes in at devices to the instance
// behind another device: policy routing, as one would do without onpath.
func steerByHand(node, dev string, instance onpath.VportID, from ...string) error {
	if err := testnet.Set(node, "ipv4/ip_forward=1"); err != nil {
		return err
	}
	if err := testnet.Neighbour(node, dev, instanceAddr, mac(onpath.InstanceMAC(instance))); err != nil {
		return err
	}
	return policyRoute(node, dev, instanceAddr, from...)
}

// policyRoute sends what comes in at devices out of another one to a next hop.
func policyRoute(node, dev string, via netip.Addr, from ...string) error {
	return netnsrun.Do(node, func() error {
		l, err := netlink.LinkByName(dev)
		if err != nil {
			return err
		}
		const table = 10
		r := &netlink.Route{LinkIndex: l.Attrs().Index, Gw: via.AsSlice(), Flags: int(netlink.FLAG_ONLINK), Table: table}
		if err := netlink.RouteAdd(r); err != nil {
			return fmt.Errorf("route by hand: %w", err)
		}
		for _, in := range from {
			rule := netlink.NewRule()
			rule.IifName, rule.Table, rule.Priority = in, table, 100
			if err := netlink.RuleAdd(rule); err != nil {
				return fmt.Errorf("route by hand: %w", err)
			}
		}
		return nil
	})
}
