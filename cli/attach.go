package cli

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/api/client"
	"github.com/onpath/onpath/api/manifest"
	"github.com/onpath/onpath/cli/attach"
)

func newAttach(g *global) *cobra.Command {
	a := &applyFlags{global: g}
	var r attach.Request
	c := &cobra.Command{
		Use:   "attach HOST --through FUNCTION[,FUNCTION…]",
		Short: "Put functions before a machine, whatever network it is in", GroupID: groupUse,
		Long: `Have the traffic of a machine cross functions, which may run on any node of its
cloudlet: all that it sends and gets, or (--ports) that of some services, or
(--copy) copies of it. HOST is the name of its node, started with onpath node
--attach host. The ends notice nothing; running TCP connections go on past the
functions, new ones cross them.

It writes a Hosts and a Chain named attached-HOST, and waits until the traffic is
steered. Run again with other functions, it puts them behind those that are there.`,
		Example: examples("onpath attach vm1 --through firewall", "onpath attach vm1 --through cache --ports tcp/80",
			"onpath attach vm1 --through ids --copy", "onpath detach vm1"),
		Args: cobra.ExactArgs(1), ValidArgsFunction: g.completeKind(onpath.KindNode),
		RunE: func(c *cobra.Command, args []string) error {
			if r.Node = args[0]; len(r.Through) == 0 {
				return badUsage("--through: name a function; onpath get functions lists them")
			}
			cl, err := g.client()
			if err != nil {
				return err
			}
			defer cl.Close()
			objects, err := attaching(c, cl, g, r)
			if err != nil {
				return err
			}
			docs, err := documents(objects)
			if err != nil {
				return err
			}
			a.wait = a.wait && !a.dryRun
			return a.apply(c, docs)
		},
	}
	f := c.Flags()
	f.StringSliceVar(&r.Through, "through", nil, "`functions`, in the order of traffic that comes in")
	f.StringSliceVar(&r.Ports, "ports", nil, "only these `services`, the machine's and those that it uses: tcp/80, udp/5000-5009, icmp")
	f.BoolVar(&r.Copy, "copy", false, "the functions get copies; the traffic itself goes on as before")
	f.BoolVar(&r.Bypass, "bypass", false, "let traffic past a function that does not serve (default: it is dropped)")
	f.StringToStringVar(&r.Place, "place", nil, "labels of the `nodes` that may run the functions, such as name=vm3")
	f.BoolVar(&a.dryRun, "dry-run", false, "change nothing; show what would change")
	f.DurationVar(&a.confirm, "confirm", 0, "undo everything after this time unless onpath confirm comes")
	f.BoolVar(&a.wait, "wait", true, "wait until the traffic is steered")
	f.DurationVar(&a.timeout, "timeout", 2*time.Minute, "how long to wait")
	g.tenantFlag(c, "whose chain it is")
	return c
}

// attaching are the objects that attach what is requested to what a machine has.
func attaching(c *cobra.Command, cl *client.Client, g *global, r attach.Request) ([]onpath.Object, error) {
	o, err := cl.Get(c.Context(), onpath.Key{Kind: onpath.KindNode, Name: r.Node})
	if err != nil {
		return nil, err
	}
	if err := attach.Check(o.(*onpath.Node)); err != nil {
		return nil, err
	}
	have, err := attachedChain(c, cl, g, r.Node)
	if err != nil {
		return nil, err
	}
	r.Tenant = g.tenant
	chain, err := attach.Chain(r, have)
	if err != nil {
		return nil, err
	}
	return []onpath.Object{attach.Hosts(r), chain}, nil
}

// attachedChain is the chain of a machine, or nil.
func attachedChain(c *cobra.Command, cl *client.Client, g *global, node string) (*onpath.Chain, error) {
	k, err := g.key(onpath.KindChain, attach.Name(node))
	if err != nil {
		return nil, err
	}
	o, err := cl.Get(c.Context(), k)
	if onpath.CodeOf(err) == onpath.CodeNotFound {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return o.(*onpath.Chain), nil
}

// documents are objects as files say them.
func documents(objects []onpath.Object) ([]*manifest.Document, error) {
	var text bytes.Buffer
	if err := manifest.Encode(&text, objects...); err != nil {
		return nil, err
	}
	return manifest.Parse(text.Bytes(), "attach", ".")
}

func newDetach(g *global) *cobra.Command {
	a := &applyFlags{global: g, timeout: time.Minute}
	var names []string
	c := &cobra.Command{
		Use: "detach HOST [--function FUNCTION]", Short: "Take functions off a machine again", GroupID: groupUse,
		Long: `Have the traffic of a machine cross functions no more: all, or those named. New
connections go on directly; flows in progress go on until they end, then instances stop.`,
		Example: examples("onpath detach vm1", "onpath detach vm1 --function ids"),
		Args:    cobra.ExactArgs(1), ValidArgsFunction: g.completeKind(onpath.KindNode),
		RunE: func(c *cobra.Command, args []string) error {
			cl, err := g.client()
			if err != nil {
				return err
			}
			defer cl.Close()
			have, err := attachedChain(c, cl, g, args[0])
			if err != nil {
				return err
			}
			if have == nil {
				_, err := fmt.Fprintf(c.OutOrStdout(), "nothing is attached to %s\n", args[0])
				return err
			}
			left, err := attach.Without(have, names)
			if err != nil {
				return err
			}
			if left == nil {
				return detachAll(c.Context(), c.OutOrStdout(), cl, have)
			}
			docs, err := documents([]onpath.Object{left})
			if err != nil {
				return err
			}
			return a.apply(c, docs)
		},
	}
	c.Flags().StringSliceVar(&names, "function", nil, "`functions` to take off (default all)")
	g.tenantFlag(c, "whose chain it is")
	return c
}

func detachAll(ctx context.Context, w io.Writer, cl *client.Client, c *onpath.Chain) error {
	chain := onpath.KeyOf(c)
	hosts := onpath.Key{Kind: onpath.KindHosts, Tenant: chain.Tenant, Name: chain.Name}
	if _, err := cl.Apply(ctx, nil, client.ApplyOptions{Delete: []onpath.Key{chain, hosts}}); err != nil {
		return err
	}
	_, err := fmt.Fprintf(w, "%s detached\n", strings.Join(attach.Attached(c), ", "))
	return err
}
