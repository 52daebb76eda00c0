package main

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
	"github.com/onpath/onpath/api/wire"
	"github.com/onpath/onpath/internal/render"
)

func newGet(g *global) *cobra.Command {
	watch := false
	c := &cobra.Command{
		Use: "get KIND [NAME…]", Short: "Show objects", GroupID: groupUse,
		Long: `Show objects: all of a kind, or those named (NAME, or TENANT/NAME).
Kinds are ` + kindLines() + `.

Beside table, json and yaml, -o takes wide (a table with more columns) and name
(names alone, as other commands take them). A file that -o yaml wrote can be applied.`,
		Example: examples("onpath get chains", "onpath get nodes -o wide", "onpath get node fra1-gw1 -o yaml",
			"onpath get instances -t acme --watch", "onpath get chains -o name | xargs onpath delete chain"),
		Args: cobra.MinimumNArgs(1), ValidArgsFunction: g.completeObjects,
		RunE: func(c *cobra.Command, args []string) error {
			if watch {
				return g.watch(c, args)
			}
			kind, err := g.kindAndOutput(args[0], outWide, outName)
			if err != nil {
				return err
			}
			cl, err := g.client()
			if err != nil {
				return err
			}
			defer cl.Close()
			list, err := g.find(c.Context(), cl, kind, args[1:])
			if err != nil {
				return err
			}
			if len(args) == 2 && g.output == outJSON {
				return printJSON(c.OutOrStdout(), list[0])
			}
			return g.print(c, list, func(w io.Writer) error { return g.objects(w, c.ErrOrStderr(), kind, list) })
		},
	}
	c.Flags().BoolVarP(&watch, "watch", "w", false, "go on with every change of them")
	g.tenantFlag(c, "tenant of names without one, and the only one to list")
	return c
}

// objects prints a list as text; that there are none goes to where errors go.
func (g *global) objects(w, stderr io.Writer, kind onpath.Kind, list []onpath.Object) error {
	if len(list) == 0 {
		_, err := fmt.Fprintf(stderr, "no %s\n", kind.Plural())
		return err
	}
	if g.output != outName {
		return render.Objects(w, kind, list, time.Now(), g.output == outWide)
	}
	for _, o := range list {
		if _, err := fmt.Fprintln(w, nameOf(o)); err != nil {
			return err
		}
	}
	return nil
}

// kindAndOutput reads a kind; more are the forms of output that the command has
// beside the usual ones.
func (g *global) kindAndOutput(word string, more ...string) (onpath.Kind, error) {
	if err := g.checkOutput(more...); err != nil {
		return "", err
	}
	return parseKind(word)
}

// find reads all objects of a kind, or those named.
func (g *global) find(ctx context.Context, cl *client.Client, kind onpath.Kind, names []string) ([]onpath.Object, error) {
	list := []onpath.Object{}
	if len(names) == 0 {
		all, _, err := cl.List(ctx, kind, g.tenant)
		if kind == onpath.KindEvent {
			slices.SortStableFunc(all, func(a, b onpath.Object) int {
				return a.(*onpath.Event).Spec.Time.Compare(b.(*onpath.Event).Spec.Time)
			})
		}
		if kind == onpath.KindDeployment && err == nil {
			all, err = withOwned(ctx, cl, g.tenant, all)
		}
		if err == nil && len(all) == 0 && g.tenant != "" { // or is there no such tenant?
			_, err = cl.Get(ctx, onpath.Key{Kind: onpath.KindTenant, Name: g.tenant})
		}
		return append(list, all...), err
	}
	for _, n := range names {
		k, err := g.key(kind, n)
		if err != nil {
			return nil, err
		}
		o, err := g.object(ctx, cl, k)
		if err != nil {
			return nil, err
		}
		list = append(list, o)
	}
	return list, nil
}

// withOwned adds the deployments that chains' short forms make.
func withOwned(ctx context.Context, cl *client.Client, tenant string, list []onpath.Object) ([]onpath.Object, error) {
	chains, _, err := cl.List(ctx, onpath.KindChain, tenant)
	if err != nil {
		return nil, err
	}
	for _, c := range chains {
		for _, d := range c.(*onpath.Chain).OwnDeployments() {
			list = append(list, d)
		}
	}
	slices.SortStableFunc(list, func(a, b onpath.Object) int {
		return cmp.Or(cmp.Compare(a.Meta().Tenant, b.Meta().Tenant), cmp.Compare(a.Meta().Name, b.Meta().Name))
	})
	return list, nil
}

// object reads an object: also a deployment that a chain's short form makes, and
// an instance by the name of its deployment.
func (g *global) object(ctx context.Context, cl *client.Client, k onpath.Key) (onpath.Object, error) {
	if k.Kind == onpath.KindInstance {
		i, err := g.instance(ctx, cl, k.Tenant+"/"+k.Name)
		if err != nil {
			return nil, err
		}
		return i, nil
	}
	o, err := cl.Get(ctx, k)
	if k.Kind != onpath.KindDeployment || onpath.CodeOf(err) != onpath.CodeNotFound {
		return o, err
	}
	owned, listErr := withOwned(ctx, cl, k.Tenant, nil)
	for _, d := range owned {
		if d.Meta().Name == k.Name {
			return d, nil
		}
	}
	return nil, errors.Join(err, listErr)
}

func newDescribe(g *global) *cobra.Command {
	c := &cobra.Command{
		Use: "describe KIND NAME", Short: "Show how an object stands, its instances, what happened", GroupID: groupUse,
		Long: `Show all about an object: how it stands, its instances, what happened. An instance
may be named by its deployment, if that has one.`,
		Example: examples("onpath describe chain web", "onpath describe node fra1-gw1", "onpath describe instance web-cache"),
		Args:    cobra.ExactArgs(2), ValidArgsFunction: g.completeObjects,
		RunE: func(c *cobra.Command, args []string) error {
			kind, err := g.kindAndOutput(args[0])
			if err != nil {
				return err
			}
			k, err := g.key(kind, args[1])
			if err != nil {
				return err
			}
			cl, err := g.client()
			if err != nil {
				return err
			}
			defer cl.Close()
			o, err := g.object(c.Context(), cl, k)
			if err != nil {
				return err
			}
			parts, events, err := around(c.Context(), cl, o)
			if err != nil {
				return err
			}
			waiting, err := unconfirmed(c.Context(), cl, onpath.KeyOf(o))
			if err != nil {
				return err
			}
			all := map[string]any{"object": o, "instances": parts, "events": events, "unconfirmed": waiting}
			return g.print(c, all, func(w io.Writer) error { return render.Describe(w, o, waiting, parts, events, time.Now()) })
		},
	}
	g.tenantFlag(c, "tenant of the object")
	return c
}

// around finds the instances that belong to an object, and the events about it
// and them, the last ones.
func around(ctx context.Context, cl *client.Client, o onpath.Object) (parts []onpath.Object, events []*onpath.Event, err error) {
	tenant := o.Meta().Tenant
	instances, _, err := cl.List(ctx, onpath.KindInstance, tenant)
	if err != nil {
		return nil, nil, err
	}
	about := map[string]bool{onpath.KeyOf(o).String(): true}
	for _, i := range instances {
		if render.Belongs(i.(*onpath.Instance), o) {
			parts = append(parts, i)
			about[onpath.KeyOf(i).String()] = true
		}
	}
	all, _, err := cl.List(ctx, onpath.KindEvent, "")
	if err != nil {
		return nil, nil, err
	}
	for _, e := range all {
		if e := e.(*onpath.Event); about[e.Spec.About] {
			events = append(events, e)
		}
	}
	slices.SortStableFunc(events, func(a, b *onpath.Event) int { return a.Spec.Time.Compare(b.Spec.Time) })
	const most = 20
	return parts, events[max(0, len(events)-most):], nil
}

func newDelete(g *global) *cobra.Command {
	var files []string
	var force, dryRun bool
	c := &cobra.Command{
		Use: "delete (KIND NAME… | -f FILE)", Short: "Delete objects", GroupID: groupUse,
		Long: `Delete objects by name, or all that files name. Flows in progress end in peace:
rules go first, then flows drain, then instances stop.

What others need is not deleted; the message says what needs it. A machine that is
gone for good cannot stop its agent or hand over its instances: --force deletes
its Node all the same, with its instances and its certificate. Nothing else is
deleted: chains and hosts that need that node stay, and their status says what
they lack. A node whose agent is connected is never forced.`,
		Example: examples("onpath delete chain web", "onpath delete -f examples/quickstart --dry-run",
			"onpath delete node fra1-node2 --force   # it burnt"),
		Args: cobra.ArbitraryArgs, ValidArgsFunction: g.completeObjects,
		RunE: func(c *cobra.Command, args []string) error {
			keys, err := g.deleteKeys(c, args, files)
			if err != nil {
				return err
			}
			cl, err := g.client()
			if err != nil {
				return err
			}
			defer cl.Close()
			if len(keys) == 1 && len(files) == 0 && !dryRun {
				if err := cl.Delete(c.Context(), keys[0], force); err != nil {
					return err
				}
				fmt.Fprintf(c.OutOrStdout(), "%s deleted\n", keys[0])
				return nil
			}
			if dryRun {
				return g.previewDelete(c, cl, keys, force, len(files) == 0)
			}
			applied, err := cl.Apply(c.Context(), nil, client.ApplyOptions{Delete: keys, Force: force})
			if err != nil {
				return err
			}
			return g.printDeleted(c, applied, len(files) == 0)
		},
	}
	c.Flags().BoolVar(&dryRun, "dry-run", false, "change nothing; show what would change in objects, instances and rules")
	c.Flags().BoolVar(&force, "force", false, "delete nodes that are away and will not come back, whatever they had")
	c.Flags().StringArrayVarP(&files, "file", "f", nil, "delete what this file, directory or - (stdin) names")
	g.tenantFlag(c, "tenant of names without one")
	return c
}

// previewDelete says what would go. What would be refused is an error as it would
// be without --dry-run; the rest is shown by itself, or one node whose agent runs
// would hide all else that a file names.
func (g *global) previewDelete(c *cobra.Command, cl *client.Client, keys []onpath.Key, force, named bool) error {
	var refused error
	var stay []string
	for {
		applied, err := cl.Apply(c.Context(), nil, client.ApplyOptions{Delete: keys, Force: force, DryRun: true})
		if err == nil {
			if len(stay) > 0 && applied.Preview != nil {
				applied.Preview.Notes = append(applied.Preview.Notes,
					"this is without "+strings.Join(stay, ", ")+"; nothing is deleted as long as one of them is refused")
			}
			err = g.printDeleted(c, applied, named)
			return errors.Join(refused, err)
		}
		if refused == nil {
			refused = err
		}
		about := objectsOf(err)
		rest := slices.DeleteFunc(slices.Clone(keys), func(k onpath.Key) bool { return slices.Contains(about, k.String()) })
		if len(rest) == 0 || len(rest) == len(keys) {
			return refused
		}
		keys, stay = rest, append(stay, about...)
	}
}

// objectsOf are the objects that errors of a server are about.
func objectsOf(err error) (keys []string) {
	var all onpath.Errors
	var one *onpath.Error
	if !errors.As(err, &all) && errors.As(err, &one) {
		all = onpath.Errors{one}
	}
	for _, e := range all {
		if !slices.Contains(keys, e.Object) {
			keys = append(keys, e.Object)
		}
	}
	return keys
}

// printDeleted says what became of each object. What was named and is not there
// is an error; what a file names may be gone already.
func (g *global) printDeleted(c *cobra.Command, applied *wire.Applied, named bool) error {
	var missing onpath.Errors
	if err := g.print(c, applied, func(w io.Writer) error {
		for _, ch := range applied.Changes {
			word := render.Past[ch.Action]
			if ch.Action == wire.Unchanged {
				word = "was not there"
			}
			if applied.Preview != nil {
				word += " (dry run)"
			}
			fmt.Fprintf(w, "%s %s\n", ch.Key(), word)
		}
		if applied.Preview == nil {
			return nil
		}
		fmt.Fprintln(w)
		return render.Preview(w, applied.Preview)
	}); err != nil {
		return err
	}
	for _, ch := range applied.Changes {
		if named && ch.Action == wire.Unchanged {
			missing = append(missing, &onpath.Error{Code: onpath.CodeNotFound, Object: ch.Key().String(), Message: "it does not exist"})
		}
	}
	return missing.Err()
}

func (g *global) deleteKeys(c *cobra.Command, args, files []string) (keys []onpath.Key, err error) {
	if err := g.checkOutput(); err != nil {
		return nil, err
	}
	if len(files) > 0 {
		if len(args) > 0 {
			return nil, badUsage("name objects or files, not both")
		}
		docs, err := loadFiles(c, files)
		if err != nil {
			return nil, err
		}
		for _, d := range slices.Backward(docs) { // what refers before what is referred to
			keys = append(keys, onpath.KeyOf(d.Object))
		}
		return keys, nil
	}
	if len(args) < 2 {
		return nil, badUsage("what is to be deleted? usage: %s", c.UseLine())
	}
	kind, err := parseKind(args[0])
	if err != nil {
		return nil, err
	}
	for _, n := range args[1:] {
		k, err := g.key(kind, n)
		if err != nil {
			return nil, err
		}
		keys = append(keys, k)
	}
	return keys, nil
}
