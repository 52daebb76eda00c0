package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/api/client"
)

func newDrain(g *global) *cobra.Command {
	var wait time.Duration
	c := &cobra.Command{
		Use: "drain (NODE… | -l SELECTOR)", Short: "Move all instances off a node and keep new ones away", GroupID: groupRun,
		Long: `Move all instances off a node and keep new ones away. Replacements start first,
then flows drain, then instances stop. With --wait it ends when none is left.

Instances that no other node can run stay, and go on: the command names them and
says why, and so does onpath describe node. They move as soon as there is a place.`,
		Example: examples("onpath drain fra1-node2", "onpath drain fra1-node2 --wait 5m && ssh fra1-node2 reboot",
			"onpath uncordon fra1-node2"),
		Args: cobra.ArbitraryArgs, ValidArgsFunction: g.completeKind(onpath.KindNode),
		RunE: func(c *cobra.Command, args []string) error {
			if wait < 0 {
				return badUsage("--wait %s: write a time such as 5m", wait)
			}
			nodes, err := g.nodesNamed(c, args)
			for _, n := range nodes {
				if err == nil {
					err = g.setNode(c, n, "drains", func(n *onpath.Node) { n.Spec.Schedulable, n.Spec.Drain = new(bool), true }, nil)
				}
			}
			for _, n := range nodes {
				if err == nil {
					err = g.drained(c, n, wait)
				}
			}
			return err
		},
	}
	g.selectorFlag(c, "nodes with these labels")
	c.Flags().DurationVar(&wait, "wait", 0, "wait this long until no instance is left on it")
	return c
}

// nodesNamed are the nodes that a command names, or chooses by -l.
func (g *global) nodesNamed(c *cobra.Command, args []string) (names []string, err error) {
	if len(args) == 0 && g.selector == "" {
		return nil, badUsage("which node? name one, or choose by -l; onpath get nodes lists them")
	}
	if _, err := g.chosen(args); err != nil || len(args) > 0 {
		return args, err
	}
	cl, err := g.client()
	if err != nil {
		return nil, err
	}
	defer cl.Close()
	list, err := g.find(c.Context(), cl, onpath.KindNode, nil)
	if err == nil && len(list) == 0 {
		err = onpath.Errorf(onpath.CodeNotFound, "no node has the labels of -l %s", g.selector)
	}
	for _, o := range list {
		names = append(names, o.Meta().Name)
	}
	return names, err
}

// drained says what is left on a node, and waits until nothing is.
func (g *global) drained(c *cobra.Command, node string, wait time.Duration) error {
	cl, err := g.client()
	if err != nil {
		return err
	}
	defer cl.Close()
	if empty, err := tellDrained(c.Context(), c, cl, node); err != nil || empty || wait == 0 {
		return err
	}
	return awaitEmpty(c.Context(), c, cl, node, wait)
}

func newCordon(g *global) *cobra.Command {
	return &cobra.Command{
		Use: "cordon NODE", Short: "Keep new instances away from a node; those there stay", GroupID: groupRun,
		Example: examples("onpath cordon fra1-node2", "onpath uncordon fra1-node2"),
		Args:    cobra.ExactArgs(1), ValidArgsFunction: g.completeKind(onpath.KindNode),
		RunE: func(c *cobra.Command, args []string) error {
			return g.setNode(c, args[0], "takes no new instances", func(n *onpath.Node) { n.Spec.Schedulable = new(bool) }, nil)
		},
	}
}

func newUncordon(g *global) *cobra.Command {
	return &cobra.Command{
		Use: "uncordon NODE", Short: "Let a node have instances again", GroupID: groupRun,
		Example: examples("onpath uncordon fra1-node2"),
		Args:    cobra.ExactArgs(1), ValidArgsFunction: g.completeKind(onpath.KindNode),
		RunE: func(c *cobra.Command, args []string) error {
			return g.setNode(c, args[0], "takes instances", func(n *onpath.Node) {
				yes := true
				n.Spec.Schedulable, n.Spec.Drain = &yes, false
			}, nil)
		},
	}
}

// setNode changes a node's spec, again if somebody else did meanwhile.
func (g *global) setNode(c *cobra.Command, name, says string, change func(*onpath.Node),
	then func(context.Context, *client.Client) error) error {
	cl, err := g.client()
	if err != nil {
		return err
	}
	defer cl.Close()
	for attempt := 1; ; attempt++ {
		o, err := cl.Get(c.Context(), onpath.Key{Kind: onpath.KindNode, Name: name})
		if err != nil {
			return err
		}
		change(o.(*onpath.Node))
		_, err = cl.Put(c.Context(), o)
		if onpath.CodeOf(err) == onpath.CodeConflict && attempt < 10 {
			continue
		}
		if err != nil {
			return err
		}
		break
	}
	fmt.Fprintf(c.OutOrStdout(), "node %s %s\n", name, says)
	if then == nil {
		return nil
	}
	return then(c.Context(), cl)
}

// drainedTime is how long the server may take to find out what cannot move.
const drainedTime = 3 * time.Second

// drainedCondition is what the server says of a node that is to be drained; nil:
// nothing yet.
func drainedCondition(ctx context.Context, cl *client.Client, node string) (*onpath.Condition, error) {
	o, err := cl.Get(ctx, onpath.Key{Kind: onpath.KindNode, Name: node})
	if err != nil {
		return nil, err
	}
	list := o.(*onpath.Node).Status.Conditions
	i := slices.IndexFunc(list, func(c onpath.Condition) bool { return c.Type == onpath.ConditionDrained })
	if i < 0 {
		return nil, nil
	}
	return &list[i], nil
}

// tellDrained says what is on the node, and what cannot move; empty: nothing is
// left.
func tellDrained(ctx context.Context, c *cobra.Command, cl *client.Client, node string) (empty bool, err error) {
	for end := time.Now().Add(drainedTime); time.Now().Before(end) && ctx.Err() == nil; time.Sleep(20 * time.Millisecond) {
		d, err := drainedCondition(ctx, cl, node)
		if err != nil {
			return false, err
		}
		if d == nil {
			continue
		}
		mark := ""
		if d.Reason == onpath.ReasonStuck {
			mark = "! "
		}
		_, err = fmt.Fprintf(c.OutOrStdout(), "%s%s\n", mark, d.Message)
		return d.Status == onpath.True, err
	}
	return false, ctx.Err()
}

// awaitEmpty waits until a node has no instances.
func awaitEmpty(ctx context.Context, c *cobra.Command, cl *client.Client, node string, limit time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	p := newProgress(c.ErrOrStderr())
	defer p.done()
	last := "the server did not answer"
	for {
		left, err := instancesOn(ctx, cl, node)
		if err == nil && left == 0 {
			p.done()
			_, err := fmt.Fprintf(c.OutOrStdout(), "no instance is left on %s\n", node)
			return err
		}
		d, condErr := drainedCondition(ctx, cl, node)
		switch err = errors.Join(err, condErr); {
		case err == nil:
			last = fmt.Sprintf("instances on node %s: %d", node, left)
			if d != nil && d.Status == onpath.False {
				last = "node " + node + ": " + d.Message
			}
			p.show("%s", last)
		case ctx.Err() == nil:
			return err
		}
		select {
		case <-ctx.Done():
			if c.Context().Err() != nil {
				return c.Context().Err()
			}
			e := onpath.Errorf(onpath.CodeUnavailable, "not empty after %s: %s", limit, last)
			e.Remedy = "it goes on draining; onpath describe node " + node + " tells more"
			return incomplete{e}
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// instancesOn counts the instances that a node has.
func instancesOn(ctx context.Context, cl *client.Client, node string) (n int, err error) {
	list, _, err := cl.List(ctx, onpath.KindInstance, "")
	for _, o := range list {
		if o.(*onpath.Instance).Spec.Node == node {
			n++
		}
	}
	return n, err
}
