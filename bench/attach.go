package bench

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/bench/testnet"
	"github.com/onpath/onpath/internal/netnsrun"
)

func attachBenchmark() Benchmark {
	b := Benchmark{
		Name: "attach", rounds: 20, cost: cost{10 * time.Second, 25 * time.Second}, byName: true,
		Question: "functions on another machine, attached to one of two that talk, against the same wired by hand over the same tunnel " +
			"(VXLAN): TCP, one stream (GNFC, Figure 5)",
		run: func(ctx context.Context, r *Run) error {
			return r.functions(ctx, (*Run).newCloud, []maker{{"static", wireAttachedByHand}, {"onpath-tc", wireAttached}})
		},
	}
	for _, k := range containerCases {
		b.Targets = append(b.Targets,
			Target{Text: k.name + ": median ≥ 0.99 of static (GNFC: 0.966 at worst)", Case: k.name, Contestant: "onpath-tc",
				Metric: metricOfStatic, Min: 0.99},
			Target{Text: k.name + ": round trip ≤ 1.02 of static", Case: k.name, Contestant: "onpath-tc",
				Metric: MetricRoundTrip, Of: "static", Max: 1.02})
	}
	return b
}

// end is an attached machine: the first is the site's client, the second its server.
type end struct {
	name    string
	address netip.Addr
	vni     int
	mac     string // of its VXLAN device
}

var (
	cloudEnds = []end{
		{"vm1", netSiteServer.Addr().Next(), 7, "02:62:00:00:02:01"},
		{"vm2", siteServer.Addr(), 8, "02:62:00:00:02:02"},
	}
	cloudFunctions = siteServer.Addr().Next() // where the machine of the functions is
)

// newCloud makes three machines at one switch; the gateway of the site is the one that
// functions run on.
func (r *Run) newCloud(name string) (*site, error) { return r.siteOf(name, (*site).wireCloud) }

func (t *site) wireCloud() error {
	network, err := t.Namespace("switch")
	if err != nil {
		return err
	}
	var ports []string
	for _, m := range []struct {
		ns      *string
		name    string
		address netip.Addr
	}{
		{&t.client, cloudEnds[0].name, cloudEnds[0].address}, {&t.server, cloudEnds[1].name, cloudEnds[1].address},
		{&t.gateway, "vm3", cloudFunctions},
	} {
		if *m.ns, err = t.Namespace(m.name); err != nil {
			return err
		}
		err := testnet.Pair(testnet.End{NS: network, Dev: m.name},
			testnet.End{NS: *m.ns, Dev: devUnderlay, Addrs: []netip.Prefix{netip.PrefixFrom(m.address, netSiteServer.Bits())}})
		if err != nil {
			return err
		}
		ports = append(ports, m.name)
	}
	if err := netnsrun.Do(network, func() error { return bridge("br0", ports...) }); err != nil {
		return err
	}
	return testnet.Set(network, "bridge/bridge-nf-call-iptables=0") // a switch, and no firewall
}

// wireAttachedByHand has a VXLAN device at each machine for the one of the functions, which
// has one for each: a routed function by policy routing, a bridged one between two bridges.
func wireAttachedByHand(_ context.Context, _ *Run, t *site, k containerCase) (ns string, err error) {
	e := k.element()
	if ns, err = k.namespace(t); err != nil {
		return "", err
	}
	for i, x := range cloudEnds {
		other, machine := cloudEnds[1-i], []string{t.client, t.server}[i]
		here, next := fmt.Sprintf("vx%d", i+1), fmt.Sprintf("02:62:00:00:03:%02d", i+1)
		err := errors.Join(vxlan(machine, devVXLAN, x.vni, x.address, cloudFunctions, x.mac),
			vxlan(t.gateway, here, x.vni, cloudFunctions, x.address, next))
		if err != nil {
			return "", err
		}
		if k.bridged {
			next = other.mac
		}
		if err := routeOnLink(machine, devVXLAN, other.address, next); err != nil {
			return "", err
		}
		if k.bridged {
			device := onpath.DeviceName([]onpath.VportID{e.forth, e.back}[i])
			err = netnsrun.Do(t.gateway, func() error { return bridge("br-"+here, here, device) })
		} else {
			err = returnByHand(t.gateway, onpath.DeviceName(e.forth), here, x)
		}
		if err != nil {
			return "", err
		}
	}
	if k.bridged {
		return ns, nil
	}
	return ns, steerByHand(t.gateway, onpath.DeviceName(e.forth), e.forth, "vx1", "vx2")
}

// routeOnLink leads to one address by a device, at whose link it has a MAC address.
func routeOnLink(ns, dev string, to netip.Addr, hw string) error {
	return errors.Join(testnet.Neighbour(ns, dev, to, mac(hw)), testnet.Route(ns, dev, netip.PrefixFrom(to, to.BitLen()), to))
}

// returnByHand leads what comes out of a function to a machine's tunnel. (The tunnel's own
// packets, which are for the same address, go by the main table.)
func returnByHand(ns, from, dev string, x end) error {
	if err := testnet.Neighbour(ns, dev, x.address, mac(x.mac)); err != nil {
		return err
	}
	return netnsrun.Do(ns, func() error {
		l, err := netlink.LinkByName(dev)
		if err != nil {
			return err
		}
		rule := netlink.NewRule()
		rule.IifName, rule.Dst, rule.Table, rule.Priority = from, ipNet(netip.PrefixFrom(x.address, x.address.BitLen())), 20+x.vni, 90
		if err := netlink.RuleAdd(rule); err != nil {
			return fmt.Errorf("route by hand: %w", err)
		}
		return netlink.RouteAdd(&netlink.Route{LinkIndex: l.Attrs().Index, Gw: x.address.AsSlice(),
			Flags: int(netlink.FLAG_ONLINK), Table: rule.Table})
	})
}

// wireAttached has onpath do it, by a chain that is attached to the first machine.
func wireAttached(ctx context.Context, r *Run, t *site, k containerCase) (ns string, err error) {
	yaml, err := k.yaml(r.Images, "{hosts: vm1}", "{hosts: vm2}", "vm3")
	if err != nil {
		return "", err
	}
	list, err := r.steered(ctx, t.Network, cloudYAML(yaml), map[string]string{"vm1": t.client, "vm2": t.server, "vm3": t.gateway})
	if err != nil {
		return "", err
	}
	return list[0].ns, nil
}

// cloudYAML adds the three machines.
func cloudYAML(yaml string) string {
	yaml += node("vm3", cloudFunctions.String())
	for _, x := range cloudEnds {
		yaml += node(x.name, x.address.String(), fmt.Sprintf("{name: own, device: %s, attach: host}", devUnderlay)) +
			object(onpath.KindHosts, x.name, fmt.Sprintf("{node: %s}", x.name))
	}
	return yaml
}
