package cli

import (
	"context"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/api/client"
	"github.com/onpath/onpath/cli/labels"
	"github.com/onpath/onpath/cli/render"
)

// selectorFlag is for commands on several objects.
func (g *global) selectorFlag(c *cobra.Command, usage string) {
	c.Flags().StringVarP(&g.selector, "selector", "l", "", usage+", such as app=web,tier!=test or 'app in (a,b)'; instances have "+
		"those of their deployment and chains, and deployment, node")
}

// chosen is what -l says; names are those that were written beside it.
func (g *global) chosen(names []string) (labels.Selector, error) {
	if g.selector == "" {
		return nil, nil
	}
	if len(names) > 0 {
		return nil, badUsage("name objects, or choose them by -l; not both")
	}
	s, err := labels.Parse(g.selector)
	if err != nil {
		return nil, badUsage("-l: %w", err)
	}
	return s, nil
}

// matching are the objects of a list that -l chooses; all of them without it.
func (g *global) matching(ctx context.Context, cl *client.Client, list []onpath.Object) ([]onpath.Object, error) {
	s, err := g.chosen(nil)
	if err != nil || s == nil {
		return list, err
	}
	match, err := matcher(ctx, cl, s, list)
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(list, func(o onpath.Object) bool { return !match(o) }), nil
}

// matcher tells whether a selector chooses an object. Instances have the labels of what
// they belong to, which is read once if there are any.
func matcher(ctx context.Context, cl *client.Client, s labels.Selector, list []onpath.Object) (func(onpath.Object) bool, error) {
	var owners []onpath.Object
	if slices.ContainsFunc(list, func(o onpath.Object) bool { return o.ObjectKind() == onpath.KindInstance }) {
		for _, kind := range []onpath.Kind{onpath.KindChain, onpath.KindDeployment} {
			more, _, err := cl.List(ctx, kind, "")
			if err != nil {
				return nil, err
			}
			owners = append(owners, more...)
		}
	}
	return func(o onpath.Object) bool { return s.Matches(labelsOf(o, owners)) }, nil
}

func labelsOf(o onpath.Object, owners []onpath.Object) map[string]string {
	i, ok := o.(*onpath.Instance)
	if !ok {
		return o.Meta().Labels
	}
	all := map[string]string{"deployment": i.Spec.Deployment, "node": i.Spec.Node}
	for _, owner := range owners {
		if render.Belongs(i, owner) {
			maps.Copy(all, owner.Meta().Labels)
		}
	}
	maps.Copy(all, i.Metadata.Labels)
	return all
}

// splitKind takes KIND/NAME apart, as some write it.
func splitKind(args []string) []string {
	if len(args) == 0 {
		return args
	}
	kind, name, ok := strings.Cut(args[0], "/")
	if _, err := parseKind(kind); !ok || err != nil || name == "" {
		return args
	}
	names := []string{name}
	for _, a := range args[1:] {
		names = append(names, strings.TrimPrefix(a, kind+"/"))
	}
	return append([]string{kind}, names...)
}
