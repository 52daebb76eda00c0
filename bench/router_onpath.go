package bench

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/datapath/ebpf"
	"github.com/onpath/onpath/internal/netnsrun"
)

// onpathRouter is onpath's data path by its own driver, configured as a node's agent
// would, with room for so many flow entries, 0 being the default. It steers what YAML says;
// then, if not nil, has the instances.
func onpathRouter(name string, flows int, fast onpath.Fast, yaml string, then func(l *line, list []instance) error) router {
	return router{name, func(ctx context.Context, r *Run, l *line) error {
		f, err := planned(gatewayNode(fast) + yaml)
		if err != nil {
			return err
		}
		c, list, err := wirePlan(l.Network, l.router, f.Plan(gatewayName))
		if err == nil && then != nil {
			err = then(l, list)
		}
		if err != nil {
			return err
		}
		o := ebpf.Options{Name: filepath.Base(l.Dir()), PinPath: pinPath, Log: r.Log, Flows: flows}
		d, err := openDatapath(l.router, o)
		if err != nil {
			return err
		}
		l.After(func() error { return errors.Join(d.Remove(context.Background()), d.Close()) })
		l.datapath = d
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

// otherTraffic is a chain for other traffic than what a gateway is sent: what comes is looked
// at, and left to the kernel. The chain's instance is never sent a packet.
var otherTraffic = throughHops(1, netOther.String())

// netOther has servers to which no flow of a line goes.
var netOther = netip.MustParsePrefix("198.51.100.0/24")
