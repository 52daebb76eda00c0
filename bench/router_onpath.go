package bench

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/bench/testnet"
	"github.com/onpath/onpath/datapath/ebpf"
	"github.com/onpath/onpath/internal/netnsrun"
)

// edgeVport is the vport of a line's router.
const edgeVport = onpath.VportID(1)

// onpathRouter is onpath's data path by its own driver, configured as a node's
// agent would, with room for so many flow entries.
func onpathRouter(name string, flows int, fast onpath.Fast, config func(l *line) (*onpath.DatapathConfig, error)) router {
	return router{name, func(ctx context.Context, r *Run, l *line) error {
		o := ebpf.Options{Name: filepath.Base(l.Dir()), PinPath: pinPath, Log: r.Log, Flows: flows}
		if err := testnet.Set(l.router, "ipv4/ip_forward=1"); err != nil {
			return err
		}
		d, err := openDatapath(l.router, o)
		if err != nil {
			return err
		}
		l.After(func() error { return errors.Join(d.Remove(context.Background()), d.Close()) })
		l.datapath = d
		c, err := config(l)
		if err != nil {
			return err
		}
		for i := range c.Edge.Uplinks {
			c.Edge.Uplinks[i].Fast = fast
		}
		if err := d.Apply(ctx, c); err != nil {
			return err
		}
		return attached(ctx, d, fast)
	}}
}

// attached checks that the fast path is where it was asked for.
func attached(ctx context.Context, d *ebpf.Driver, fast onpath.Fast) error {
	if fast == onTC {
		return nil
	}
	c, err := d.Counters(ctx)
	if err != nil {
		return err
	}
	for name, u := range c.Uplinks {
		if !u.Fast {
			return lacking(fmt.Sprintf("the fast path is not on uplink %s: %s", name, u.Why))
		}
	}
	return nil
}

func openDatapath(ns string, o ebpf.Options) (d *ebpf.Driver, err error) {
	err = netnsrun.Do(ns, func() error {
		d, err = ebpf.New(o)
		return err
	})
	return d, err
}

// Where the data path is: on tc alone, or also on XDP.
const (
	onTC  = onpath.FastNever
	onXDP = onpath.FastAlways
)

// otherTrafficConfig has a chain for other traffic than what a gateway is sent: what comes is
// looked at, and left to the kernel. The chain's instance is never sent a packet.
func otherTrafficConfig(n *testnet.Network, gateway string) (*onpath.DatapathConfig, error) {
	const id = onpath.VportID(16)
	if _, err := wireRouted(n, gateway, id, true); err != nil {
		return nil, err
	}
	return chainConfig(onpath.Match{Dst: []netip.Prefix{netOther}}, routedElement(id)), nil
}

func passesOthers(l *line) (*onpath.DatapathConfig, error) {
	return otherTrafficConfig(l.Network, l.router)
}

// netOther has servers to which no flow of a line goes.
var netOther = netip.MustParsePrefix("198.51.100.0/24")

// edgeConfig is a node with the line's two devices as uplinks, whose classifier
// has these rules.
func edgeConfig(vports []onpath.Vport, rules ...onpath.Rule) *onpath.DatapathConfig {
	return &onpath.DatapathConfig{
		Node: "router", Generation: 1,
		Edge: &onpath.Edge{Vport: edgeVport, Table: onpath.ClassifierTable(onpath.TierTenant), Uplinks: []onpath.Uplink{
			{Name: "access", Device: devIn, Attach: onpath.AttachRouter}, {Name: "core", Device: devOut, Attach: onpath.AttachRouter},
		}},
		Vports: vports,
		Tables: []onpath.Table{{ID: onpath.ClassifierTable(onpath.TierTenant), Rules: rules, Miss: onpath.Action{Kind: onpath.ActionExit}}},
		Paths:  []onpath.Path{{ID: 1, Chain: "bench/chain", Tenant: "bench"}},
		// Every flow asks whether it may begin, and no measurement begins so many.
		Tenants: []onpath.TenantLimits{{Name: "bench", MaxNewFlows: onpath.MostNewFlows}},
	}
}

func toServers() onpath.Match { return onpath.Match{Dst: []netip.Prefix{netServers}} }
