package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/api/client"
	"github.com/onpath/onpath/bench/cloud"
	"github.com/onpath/onpath/cli/attach"
	"github.com/onpath/onpath/cli/await"
	"github.com/onpath/onpath/measure/trial"
)

// benchCloud is what `onpath bench cloud` is told, and the cloud that it finds.
type benchCloud struct {
	cloud.Options
	nodes    []string
	function string
	limit    time.Duration
	client   *client.Client
	chain    *onpath.Chain
	was      map[string]onpath.Underlay // of each node, before
	now      func() time.Time
}

// tunnels that may be compared.
var tunnels = map[string]onpath.Underlay{
	string(onpath.TunnelVXLAN):     {Tunnel: onpath.TunnelVXLAN},
	string(onpath.TunnelWireGuard): {Tunnel: onpath.TunnelWireGuard},
}

func newBenchCloud(g *global) *cobra.Command {
	b := &benchCloud{now: time.Now}
	c := &cobra.Command{
		Use: "cloud --nodes A,B,C", Short: "Measure the network between nodes, with and without a function",
		Long: `Measure somebody's cloud between three nodes of one cloudlet, through the server: which
packets its network passes (protocols, sizes, foreign sources), and throughput and round
trips from A to C, directly and through a function on B, by each tunnel (GNFC, Tables I
and III, Figures 3 and 4). A and C are attached (onpath node --attach host), B runs the
function, which exists. Nothing else may be attached to A. Afterwards all is as before.`,
		Example: examples("onpath bench cloud --nodes vm1,vm3,vm2", "onpath bench cloud --nodes vm1,vm3,vm2 --tunnels vxlan,wireguard",
			"onpath bench cloud --nodes vm1,vm3,vm2 --quick -o json"),
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if err := b.check(); err != nil {
				return err
			}
			cl, err := clientToPrint(g)
			if err != nil {
				return err
			}
			defer cl.Close()
			b.client = cl
			r, err := b.run(c)
			if r == nil {
				return err
			}
			if printed := g.print(c, r, func(w io.Writer) error { return r.Text(w) }); err == nil {
				err = printed
			}
			return err
		},
	}
	f := c.Flags()
	f.StringSliceVar(&b.nodes, "nodes", nil, "the `nodes`: one that sends, one that runs the function, one that receives")
	f.StringVar(&b.function, "function", "bridge", "the function between: bridge is a software switch (functions/bridge)")
	f.StringSliceVar(&b.Tunnels, "tunnels", nil, "`tunnels` to compare: vxlan, wireguard (default the one in use)")
	f.StringVar(&b.Type, "type", "", "what kind of machine runs the function (default its label type)")
	f.IntVar(&b.Rounds, "rounds", 10, "how often each way is measured")
	f.DurationVar(&b.For, "for", 5*time.Second, "how long each throughput is measured")
	f.IntVar(&b.Echoes, "pings", 300, "how many round trips are measured each time")
	f.BoolVar(&b.Quick, "quick", false, "one short round: shows that it works, measures nothing")
	f.DurationVar(&b.limit, "timeout", 2*time.Minute, "how long to wait until the function is in its place")
	return c
}

func (b *benchCloud) check() error {
	if len(b.nodes) != 3 || b.nodes[0] == b.nodes[1] || b.nodes[1] == b.nodes[2] || b.nodes[0] == b.nodes[2] {
		return badUsage("--nodes: name three nodes, such as vm1,vm3,vm2: one that sends, one that runs the function, one that receives")
	}
	b.From, b.Through, b.To = b.nodes[0], b.nodes[1], b.nodes[2]
	if b.Quick {
		b.Rounds, b.For, b.Echoes = 1, time.Second, 20
	}
	switch {
	case b.Rounds < 1:
		return badUsage("--rounds %d: give a number above 0", b.Rounds)
	case b.For <= 0 || b.For > time.Duration(trial.MaxTime):
		return badUsage("--for %s: give more than nothing, and at most %s", b.For, trial.MaxTime)
	case b.Echoes < 1 || b.Echoes > trial.MaxEchoes:
		return badUsage("--pings %d: give 1 to %d", b.Echoes, trial.MaxEchoes)
	}
	for i, t := range b.Tunnels {
		if _, known := tunnels[t]; !known || slices.Contains(b.Tunnels[:i], t) {
			return badUsage("--tunnels: %q: write vxlan, wireguard or both, each once", t)
		}
	}
	return nil
}

// run measures, and leaves the cloud as it was.
func (b *benchCloud) run(c *cobra.Command) (r *cloud.Report, err error) {
	ctx := c.Context()
	if err := b.begin(ctx); err != nil {
		return nil, err
	}
	progress, start := newProgress(c.ErrOrStderr()), b.now()
	b.Progress = func(format string, args ...any) {
		progress.show("%4.0f s  %s", b.now().Sub(start).Seconds(), fmt.Sprintf(format, args...))
	}
	defer func() {
		progress.done()
		if left := b.end(context.WithoutCancel(ctx)); err == nil {
			err = left
		}
	}()
	return cloud.Run(ctx, b, b.Options)
}

// begin looks at the nodes and the function, and makes the chain, which steers nothing yet.
func (b *benchCloud) begin(ctx context.Context) error {
	b.was = map[string]onpath.Underlay{}
	for i, name := range b.nodes {
		n, err := b.node(ctx, name)
		if err != nil {
			return err
		}
		b.was[name] = n.Spec.Underlay
		if i == 1 {
			b.Type = cmp.Or(b.Type, n.Metadata.Labels["type"], fmt.Sprintf("%s CPUs", n.Status.Capacity.CPU))
		} else if err := attach.Check(n); err != nil {
			return err
		}
	}
	function := onpath.Key{Kind: onpath.KindFunction, Tenant: onpath.DefaultTenant, Name: b.function}
	if _, err := b.client.Get(ctx, function); err != nil {
		if onpath.CodeOf(err) == onpath.CodeNotFound {
			e := onpath.Errorf(onpath.CodeNotFound, "there is no function %s to send the traffic through", b.function)
			e.Remedy = "build its image and apply it (functions/bridge/README.md), or name another with --function"
			return e
		}
		return err
	}
	r := attach.Request{Node: b.From, Tenant: onpath.DefaultTenant, Through: []string{b.function},
		Place: map[string]string{"name": b.Through}}
	chain, err := attach.Chain(r, nil)
	if err != nil {
		return err
	}
	if _, err := b.client.Get(ctx, onpath.KeyOf(chain)); err == nil {
		e := onpath.Errorf(onpath.CodeConflict, "functions are attached to %s, and would be measured, too", b.From)
		e.Remedy = "take them off (onpath detach " + b.From + "), or name another node"
		return e
	}
	chain.Spec.Disabled = true
	b.chain = chain
	_, err = b.client.Apply(ctx, []onpath.Object{attach.Hosts(r), chain}, client.ApplyOptions{})
	return err
}

// end gives the nodes their tunnels back, and takes the chain away. One may fail without the other.
func (b *benchCloud) end(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	var tunnelsLeft error
	if len(b.Tunnels) > 0 {
		tunnelsLeft = b.setTunnels(ctx, b.was)
	}
	hosts := onpath.Key{Kind: onpath.KindHosts, Tenant: b.chain.Metadata.Tenant, Name: b.chain.Metadata.Name}
	_, err := b.client.Apply(ctx, nil, client.ApplyOptions{Delete: []onpath.Key{onpath.KeyOf(b.chain), hosts}})
	return errors.Join(tunnelsLeft, err)
}

func (b *benchCloud) node(ctx context.Context, name string) (*onpath.Node, error) {
	o, err := b.client.Get(ctx, onpath.Key{Kind: onpath.KindNode, Name: name})
	if err != nil {
		return nil, err
	}
	return o.(*onpath.Node), nil
}

// Try implements cloud.Network.
func (b *benchCloud) Try(ctx context.Context, r trial.Request) (*trial.Result, error) {
	return client.Trial(ctx, b.client, r)
}

// Steer implements cloud.Network.
func (b *benchCloud) Steer(ctx context.Context, steer bool) error {
	c := onpath.Clone(b.chain)
	c.Spec.Disabled = !steer
	if _, err := b.client.Apply(ctx, []onpath.Object{c}, client.ApplyOptions{}); err != nil {
		return err
	}
	wait := await.Wait{Ends: b.now().Add(b.limit)}
	return b.until(ctx, func() (bool, string, error) {
		o, err := b.client.Get(ctx, onpath.KeyOf(c))
		if err != nil {
			return false, "", err
		}
		s := wait.Look(o, b.now())
		if s.Vain != nil {
			return false, s.Text, &onpath.Error{Code: onpath.CodeUnavailable, Message: s.Text, Remedy: s.Vain.Remedy}
		}
		return s.Done, s.Text, nil
	})
}

// Use implements cloud.Network.
func (b *benchCloud) Use(ctx context.Context, tunnel string) (by string, err error) {
	if tunnel != "" {
		one := map[string]onpath.Underlay{}
		for _, name := range b.nodes {
			one[name] = tunnels[tunnel]
		}
		if err := b.setTunnels(ctx, one); err != nil {
			return "", err
		}
	}
	err = b.until(ctx, func() (bool, string, error) {
		n, err := b.node(ctx, b.From)
		if err != nil {
			return false, "", err
		}
		by = string(onpath.TunnelVXLAN)
		k := slices.IndexFunc(n.Status.Conditions, func(c onpath.Condition) bool { return c.Type == onpath.ConditionTunnel+b.Through })
		if k < 0 {
			return tunnel != string(onpath.TunnelWireGuard), "no tunnel to " + b.Through, nil
		}
		c := n.Status.Conditions[k]
		by = strings.ToLower(c.Reason)
		return c.Status == onpath.True && (tunnel == "" || by == tunnel), c.Message, nil
	})
	return by, err
}

// setTunnels writes the tunnel of each of the three nodes.
func (b *benchCloud) setTunnels(ctx context.Context, of map[string]onpath.Underlay) error {
	var changed []onpath.Object
	for _, name := range b.nodes {
		n, err := b.node(ctx, name)
		if err != nil {
			return err
		}
		n.Spec.Underlay.Tunnel = of[name].Tunnel
		n.Status = onpath.NodeStatus{}
		changed = append(changed, n)
	}
	_, err := b.client.Apply(ctx, changed, client.ApplyOptions{})
	return err
}

// until asks twice a second until what is awaited is so.
func (b *benchCloud) until(ctx context.Context, ok func() (bool, string, error)) error {
	said := ""
	for ends := b.now().Add(b.limit); ; {
		done, text, err := ok()
		if done || err != nil {
			return err
		}
		if b.now().After(ends) {
			e := onpath.Errorf(onpath.CodeUnavailable, "waited %s in vain: %s", b.limit, text)
			e.Remedy = "see onpath describe node " + b.From
			return e
		}
		if text != said {
			b.Progress("waiting: %s", text)
			said = text
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(500 * time.Millisecond):
		}
	}
}
