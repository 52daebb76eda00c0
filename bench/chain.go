package bench

import (
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/bench/testnet"
	"github.com/onpath/onpath/internal/netnsrun"
)

// element is one element of a chain under test: the vports of its one instance.
type element struct {
	forth, back onpath.VportID // the same for a routed instance
}

// routedElement is an instance with one vport.
func routedElement(id onpath.VportID) element { return element{id, id} }

// vports of the instance, local to the node.
func (e element) vports() []onpath.Vport {
	attach := onpath.Routed
	if e.back != e.forth {
		attach = onpath.Bridged
	}
	list := []onpath.Vport{localVport(e.forth, e.back, attach)}
	if e.back != e.forth {
		list = append(list, localVport(e.back, e.forth, attach))
	}
	return list
}

func localVport(id, other onpath.VportID, attach onpath.ContainerAttach) onpath.Vport {
	return onpath.Vport{ID: id, Kind: onpath.VportInstance, State: onpath.VportUp, Instance: fmt.Sprintf("bench/i%d", id), Tenant: "bench",
		Other: other, MAC: onpath.InstanceMAC(id), HostMAC: onpath.HostMAC(id), Attach: attach, Packets: onpath.PacketsKeep, Entry: edgeVport}
}

// chainConfig is a node whose edge sends what matches through elements, in order,
// and back through them, and then out again.
func chainConfig(match onpath.Match, elements ...element) *onpath.DatapathConfig {
	back := match
	back.Src, back.Dst, back.SrcPorts, back.DstPorts = match.Dst, match.Src, match.DstPorts, match.SrcPorts
	last := len(elements) - 1
	c := edgeConfig(nil,
		onpath.Rule{Match: match, Path: 1, Action: toGroup(0, false)},
		onpath.Rule{Match: back, Path: 1, Reverse: true, Action: toGroup(last, true)})
	for _, e := range elements {
		c.Vports = append(c.Vports, e.vports()...)
	}
	c.Groups, c.Tables = chainTables(elements, c.Tables)
	return c
}

// chainTables adds what continues behind each element.
func chainTables(elements []element, tables []onpath.Table) ([]onpath.Group, []onpath.Table) {
	var groups []onpath.Group
	for i, e := range elements {
		for _, reverse := range []bool{false, true} {
			vport, next := e.forth, i+1
			if reverse {
				vport, next = e.back, i-1
			}
			groups = append(groups, onpath.Group{
				ID: onpath.GroupOf(1, i, reverse), Path: 1, Reverse: reverse, Mode: onpath.ModeInline,
				Then: onpath.TableOf(1, i, reverse), Back: onpath.TableOf(1, i, !reverse), Lost: onpath.LostRepick, None: onpath.NoneDrop,
				Members: []onpath.Member{{Vport: vport, Key: uint32(e.forth), Weight: 1}},
			})
			t := onpath.Table{ID: onpath.TableOf(1, i, reverse), Miss: onpath.Action{Kind: onpath.ActionExit}}
			if next >= 0 && next < len(elements) {
				t.Miss = toGroup(next, reverse)
			}
			tables = append(tables, t)
		}
	}
	return groups, tables
}

func toGroup(element int, reverse bool) onpath.Action {
	return onpath.Action{Kind: onpath.ActionGroup, Group: onpath.GroupOf(1, element, reverse)}
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
