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
	"github.com/onpath/onpath/api/wire"
	"github.com/onpath/onpath/cli/render"
)

func newGet(g *global) *cobra.Command {
	watch, chosen := false, period{}
	c := &cobra.Command{
		Use: "get KIND [NAME…]", Short: "Show objects", GroupID: groupUse,
		Long: `Show objects: all of a kind, or those named (NAME, or TENANT/NAME).
Kinds are ` + kindLines() + `;
several are written with commas between (chains,nodes), and all stands for all but
events.

Beside table, json and yaml, -o takes wide (a table with more columns) and name
(names alone, as other commands take them). A file that -o yaml wrote can be applied.`,
		Example: examples("onpath get chains", "onpath get nodes -o wide", "onpath get node fra1-gw1 -o yaml",
			"onpath get instances -t acme --watch", "onpath get chains -o name | xargs onpath delete chain", "onpath get all -l app=shop"),
		Args: cobra.MinimumNArgs(1), ValidArgsFunction: g.completeObjects,
		RunE: func(c *cobra.Command, args []string) error {
			args = splitKind(args)
			if err := chosen.check(args, watch); err != nil {
				return err
			}
			if args[0] == allKinds || strings.Contains(args[0], ",") {
				return g.getSeveral(c, args, watch)
			}
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
			if kind == onpath.KindReservation && len(args) == 1 {
				return g.getReservations(c, cl, chosen)
			}
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
	chosen.flags(c)
	g.selectorFlag(c, "only those with these labels")
	g.tenantFlag(c, "tenant of names without one, and the only one to list")
	return c
}

// allKinds stands for all kinds but events.
const allKinds = "all"

// getSeveral shows the objects of several kinds, a table for each that has any.
func (g *global) getSeveral(c *cobra.Command, args []string, watch bool) error {
	if watch || len(args) > 1 {
		return badUsage("with names, or --watch, write one kind")
	}
	if err := g.checkOutput(outWide, outName); err != nil {
		return err
	}
	kinds := slices.DeleteFunc(onpath.Kinds(), func(k onpath.Kind) bool { return k == onpath.KindEvent })
	if args[0] != allKinds {
		kinds = nil
		for _, word := range strings.Split(args[0], ",") {
			k, err := parseKind(word)
			if err != nil {
				return err
			}
			kinds = append(kinds, k)
		}
	}
	cl, err := g.client()
	if err != nil {
		return err
	}
	defer cl.Close()
	lists := make([][]onpath.Object, len(kinds))
	for i, k := range kinds {
		lists[i], err = g.find(c.Context(), cl, k, nil)
		if err != nil && (args[0] != allKinds || onpath.CodeOf(err) != onpath.CodeForbidden) { // of all, what one may see
			return err
		}
	}
	return g.print(c, slices.Concat(lists...), func(w io.Writer) error { return g.several(w, c.ErrOrStderr(), kinds, lists) })
}

func (g *global) several(w, stderr io.Writer, kinds []onpath.Kind, lists [][]onpath.Object) error {
	shown := false
	for i, list := range lists {
		switch {
		case len(list) == 0:
			continue
		case g.output == outName:
			for _, o := range list {
				fmt.Fprintf(w, "%s/%s\n", strings.ToLower(string(kinds[i])), nameOf(o))
			}
			continue
		case shown:
			fmt.Fprintln(w)
		}
		shown = true
		fmt.Fprintf(w, "%s\n", strings.ToUpper(kinds[i].Plural()))
		if err := g.objects(w, stderr, kinds[i], list); err != nil {
			return err
		}
	}
	if !shown && g.output != outName {
		fmt.Fprintln(stderr, "there is nothing")
	}
	return nil
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
	if _, err := g.chosen(names); err != nil {
		return nil, err
	}
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
		if err == nil {
			all, err = g.matching(ctx, cl, all)
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
		return o, otherTenant(ctx, cl, k, err)
	}
	owned, listErr := withOwned(ctx, cl, k.Tenant, nil)
	for _, d := range owned {
		if d.Meta().Name == k.Name {
			return d, nil
		}
	}
	return nil, errors.Join(otherTenant(ctx, cl, k, err), listErr)
}

// otherTenant is the error that there is no such object; where another tenant that the
// caller may read has one by that name, it says so.
func otherTenant(ctx context.Context, cl *client.Client, k onpath.Key, err error) error {
	var e *onpath.Error
	if k.Tenant == "" || onpath.CodeOf(err) != onpath.CodeNotFound || !errors.As(err, &e) {
		return err
	}
	list, _, _ := cl.List(ctx, k.Kind, "") // what one may see
	for _, o := range list {
		m := o.Meta()
		i, ok := o.(*onpath.Instance)
		if m.Tenant != k.Tenant && (m.Name == k.Name || ok && string(i.Spec.Deployment) == k.Name) {
			e.Remedy = fmt.Sprintf("there is %s/%s: write that, or -t %s", m.Tenant, k.Name, m.Tenant)
			break
		}
	}
	return err
}

func newDescribe(g *global) *cobra.Command {
	c := &cobra.Command{
		Use: "describe KIND (NAME… | -l SELECTOR)", GroupID: groupUse,
		Short: "Show how objects stand, their instances, what happened",
		Long: `Show all about objects: how they stand, their instances, what happened. An instance
may be named by its deployment, if that has one.`,
		Example: examples("onpath describe chain web", "onpath describe node fra1-gw1", "onpath describe instance web-cache",
			"onpath describe chains -l app=shop"),
		Args: cobra.MinimumNArgs(1), ValidArgsFunction: g.completeObjects,
		RunE: func(c *cobra.Command, args []string) error {
			args = splitKind(args)
			kind, err := g.kindAndOutput(args[0])
			if err != nil {
				return err
			}
			if len(args) == 1 && g.selector == "" {
				return badUsage("which %s? name one, or choose by -l; onpath get %s lists them",
					strings.ToLower(string(kind)), kind.Plural())
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
			if len(list) == 0 {
				return g.objects(c.OutOrStdout(), c.ErrOrStderr(), kind, list)
			}
			return g.describe(c, cl, list)
		},
	}
	g.selectorFlag(c, "those with these labels")
	g.tenantFlag(c, "tenant of the objects")
	return c
}

// description is all about an object.
type description struct {
	Object      onpath.Object      `json:"object"`
	Instances   []onpath.Object    `json:"instances"`
	Events      []*onpath.Event    `json:"events"`
	Unconfirmed []wire.Unconfirmed `json:"unconfirmed"`
}

func (g *global) describe(c *cobra.Command, cl *client.Client, list []onpath.Object) error {
	var all []description
	for _, o := range list {
		d := description{Object: o}
		var err error
		if d.Instances, d.Events, err = around(c.Context(), cl, o); err != nil {
			return err
		}
		if d.Unconfirmed, err = unconfirmed(c.Context(), cl, onpath.KeyOf(o)); err != nil {
			return err
		}
		all = append(all, d)
	}
	var value any = all
	if len(all) == 1 {
		value = all[0]
	}
	return g.print(c, value, func(w io.Writer) error {
		for i, d := range all {
			if i > 0 {
				fmt.Fprint(w, "\n")
			}
			if err := render.Describe(w, d.Object, d.Unconfirmed, d.Instances, d.Events, time.Now()); err != nil {
				return err
			}
		}
		return nil
	})
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
		Use: "delete (KIND NAME… | KIND -l SELECTOR | -f FILE)", Short: "Delete objects", GroupID: groupUse,
		Long: `Delete objects by name, or all that files name. Flows in progress go on until they end:
rules go first, then flows drain, then instances stop.

What others need is not deleted; the message says what needs it. A machine that is
gone for good cannot stop its agent or hand over its instances: --force deletes
its Node all the same, with its instances and its certificate. Nothing else is
deleted: chains and hosts that need that node stay, and their status says what
they lack. A node whose agent is connected is never forced.`,
		Example: examples("onpath delete chain web", "onpath delete -f examples/quickstart --dry-run",
			"onpath delete chains -l app=shop",
			"onpath delete node fra1-node2 --force   # the machine is gone"),
		Args: cobra.ArbitraryArgs, ValidArgsFunction: g.completeObjects,
		RunE: func(c *cobra.Command, args []string) error {
			keys, err := g.deleteKeys(c, splitKind(args), files)
			if err != nil {
				return err
			}
			cl, err := g.client()
			if err != nil {
				return err
			}
			defer cl.Close()
			if g.selector != "" {
				if keys, err = g.chosenKeys(c, cl, args[0]); err != nil || len(keys) == 0 {
					return err
				}
			}
			reserved := slices.ContainsFunc(keys, func(k onpath.Key) bool { return k.Kind == onpath.KindReservation })
			if len(keys) == 1 && len(files) == 0 && !dryRun && !reserved { // of those a quote tells what is given back
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
	g.selectorFlag(c, "delete those with these labels")
	g.tenantFlag(c, "tenant of names without one, and of those that -l chooses")
	return c
}

// chosenKeys are the objects of a kind that -l chooses.
func (g *global) chosenKeys(c *cobra.Command, cl *client.Client, word string) (keys []onpath.Key, err error) {
	kind, err := parseKind(word)
	if err != nil {
		return nil, err
	}
	list, _, err := cl.List(c.Context(), kind, g.tenant)
	if err == nil {
		list, err = g.matching(c.Context(), cl, list)
	}
	if err == nil && len(list) == 0 {
		err = g.objects(c.OutOrStdout(), c.ErrOrStderr(), kind, nil)
	}
	for _, o := range list {
		keys = append(keys, onpath.KeyOf(o))
	}
	return keys, err
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
			if ch.Quote != nil && ch.Action != wire.Unchanged {
				render.Quote(w, ch.Quote)
			}
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
			missing = append(missing, &onpath.Error{Code: onpath.CodeNotFound, Object: ch.Key().String(), Message: "it does not exist",
				Remedy: "onpath get " + ch.Key().Kind.Plural() + " lists what there is"})
		}
	}
	return missing.Err()
}

func (g *global) deleteKeys(c *cobra.Command, args, files []string) (keys []onpath.Key, err error) {
	if err := g.checkOutput(); err != nil {
		return nil, err
	}
	if len(files) > 0 {
		if len(args) > 0 || g.selector != "" {
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
	if g.selector != "" && len(args) == 1 {
		_, err := g.chosen(nil)
		return nil, err // they are read when there is a client
	}
	if _, err := g.chosen(args); err != nil {
		return nil, err
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
