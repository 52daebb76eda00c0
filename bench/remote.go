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

const (
	remoteCase    = "one routed instance on another node"
	metricOfVXLAN = "throughput over a hand-made VXLAN path"
)

func remote() Benchmark {
	return Benchmark{
		Name: "remote", rounds: 20, cost: cost{10 * time.Second, 6 * time.Second},
		Question: "a chain through an instance on another node, against a VXLAN path made by hand: TCP, one stream",
		Targets: []Target{
			{Text: "≥ 0.9 of a hand-made VXLAN path", Case: remoteCase, Contestant: "onpath-tc", Metric: metricOfVXLAN, Min: 0.9},
		},
		run: runRemote,
	}
}

// The underlay of remote, and the instance on the far node. The tunnel takes 50
// bytes, so what passes it has 1450.
const (
	devUnderlay = "under0"
	remoteMTU   = 1450
)

var (
	underlayNear = netip.MustParsePrefix("10.255.0.1/24")
	underlayFar  = netip.MustParsePrefix("10.255.0.2/24")
)

func runRemote(ctx context.Context, r *Run) error {
	if err := r.streams(ctx, remoteCase, r.Rounds(), beyond("static", wireVXLAN), beyond("onpath-tc", wireRemote)); err != nil {
		return err
	}
	r.overOther(remoteCase, MetricThroughput, "static", metricOfVXLAN)
	return nil
}

// beyond connects a site's gateway with a second node and the instance there.
func beyond(name string, wire func(ctx context.Context, r *Run, t *site, far string) error) siteMaker {
	return siteMaker{name, func(ctx context.Context, r *Run, t *site) error {
		far, err := t.farNode()
		if err != nil {
			return err
		}
		return wire(ctx, r, t, far)
	}}
}

// farNode adds a second node on an underlay, and has the end points send what fits into a
// tunnel.
func (t *site) farNode() (far string, err error) {
	if far, err = t.Namespace("far"); err != nil {
		return "", err
	}
	err = testnet.Pair(testnet.End{NS: t.gateway, Dev: devUnderlay, Addrs: []netip.Prefix{underlayNear}},
		testnet.End{NS: far, Dev: devUnderlay, Addrs: []netip.Prefix{underlayFar}})
	if err != nil {
		return "", err
	}
	for _, ns := range []string{t.client, t.server} {
		if err := setMTU(ns, "eth0", remoteMTU); err != nil {
			return "", err
		}
	}
	return far, nil
}

func setMTU(ns, dev string, mtu int) error {
	return netnsrun.Do(ns, func() error {
		l, err := netlink.LinkByName(dev)
		if err != nil {
			return err
		}
		return netlink.LinkSetMTU(l, mtu)
	})
}

// wireVXLAN is the path by hand: a VXLAN device at each end, policy routing into
// it at the gateway, and into the instance and back at the far node.
func wireVXLAN(_ context.Context, _ *Run, t *site, far string) error {
	_, err := wireRouted(t.Network, far, byHand, true)
	if err = errors.Join(err, testnet.Set(t.gateway, "ipv4/ip_forward=1")); err != nil {
		return err
	}
	ends := []struct {
		ns            string
		local, remote netip.Addr
		mac, peer     string
		peerAddr      netip.Addr
	}{
		{t.gateway, underlayNear.Addr(), underlayFar.Addr(), "02:62:00:00:01:01", "02:62:00:00:01:02", netip.MustParseAddr("169.254.2.2")},
		{far, underlayFar.Addr(), underlayNear.Addr(), "02:62:00:00:01:02", "02:62:00:00:01:01", netip.MustParseAddr("169.254.2.1")},
	}
	for _, e := range ends {
		if err := vxlan(e.ns, devVXLAN, 7, e.local, e.remote, e.mac); err != nil {
			return err
		}
		if err := testnet.Neighbour(e.ns, devVXLAN, e.peerAddr, mac(e.peer)); err != nil {
			return err
		}
	}
	// At the gateway, both directions go to the far node.
	if err := policyRoute(t.gateway, devVXLAN, ends[0].peerAddr, devIn, devOut); err != nil {
		return err
	}
	// There, to the instance; and from it back.
	if err := steerByHand(far, onpath.DeviceName(byHand), byHand, devVXLAN); err != nil {
		return err
	}
	return testnet.Route(far, devVXLAN, anywhere, ends[1].peerAddr)
}

const devVXLAN = "vx0"

// vxlan is a device for one other end.
func vxlan(ns, dev string, vni int, local, remote netip.Addr, hw string) error {
	return netnsrun.Do(ns, func() error {
		under, err := netlink.LinkByName(devUnderlay)
		if err != nil {
			return err
		}
		attrs := netlink.NewLinkAttrs()
		attrs.Name, attrs.MTU, attrs.HardwareAddr = dev, remoteMTU, mac(hw)
		v := &netlink.Vxlan{LinkAttrs: attrs, VxlanId: vni, VtepDevIndex: under.Attrs().Index,
			SrcAddr: local.AsSlice(), Group: remote.AsSlice(), Port: 4789, Learning: false}
		if err := netlink.LinkAdd(v); err != nil {
			return fmt.Errorf("make a VXLAN device: %w", err)
		}
		return netlink.LinkSetUp(v)
	})
}

// wireRemote has onpath do it: the gateway steers to the vport of the other node.
func wireRemote(ctx context.Context, r *Run, t *site, far string) error {
	_, err := r.steered(ctx, t.Network, remoteYAML, map[string]string{gatewayName: t.gateway, "far": far})
	return err
}

var remoteYAML = gatewayNode(onpath.FastAuto) + node("far", underlayFar.Addr().String()) + hopFunction +
	chain("any", toSiteServer, "{function: hop, place: {nodes: {name: far}}}")
