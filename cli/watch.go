package cli

import (
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/api/client"
	"github.com/onpath/onpath/api/manifest"
	"github.com/onpath/onpath/cli/render"
	"github.com/onpath/onpath/cli/table"
)

func newWatch(g *global) *cobra.Command {
	c := &cobra.Command{
		Use: "watch KIND [NAME…]", Short: "Show objects, and every change of them (get --watch)", GroupID: groupUse,
		Example: examples("onpath watch instances", "onpath watch chain web -o json"),
		Args:    cobra.MinimumNArgs(1), ValidArgsFunction: g.completeObjects,
		RunE: func(c *cobra.Command, args []string) error { return g.watch(c, splitKind(args)) },
	}
	g.selectorFlag(c, "only those with these labels")
	g.tenantFlag(c, "tenant of names without one, and the only one to show")
	return c
}

// watch shows the objects that args name, KIND [NAME…], and what becomes of them.
func (g *global) watch(c *cobra.Command, args []string) error {
	kind, err := g.kindAndOutput(args[0], outWide, outName)
	if err != nil {
		return err
	}
	var only []onpath.Key
	for _, n := range args[1:] {
		k, err := g.key(kind, n)
		if err != nil {
			return err
		}
		only = append(only, k)
	}
	sel, err := g.chosen(args[1:])
	if err != nil {
		return err
	}
	cl, err := g.client()
	if err != nil {
		return err
	}
	defer cl.Close()
	list, revision, err := cl.List(c.Context(), kind, g.tenant)
	if err != nil {
		return err
	}
	shown := map[onpath.Key]bool{} // that -l has chosen: that they are deleted, or are chosen no more, is told
	f := g.follow(c.OutOrStdout(), kind)
	var now []onpath.Object
	for _, o := range list {
		if only == nil || slices.Contains(only, onpath.KeyOf(o)) {
			now = append(now, o)
		}
	}
	if now, err = g.matching(c.Context(), cl, now); err != nil {
		return err
	}
	for _, o := range now {
		shown[onpath.KeyOf(o)] = true
	}
	if err := f.begin(now); err != nil {
		return err
	}
	return cl.Watch(c.Context(), client.WatchOptions{Kinds: []onpath.Kind{kind}, Tenant: g.tenant, From: revision},
		func(e client.Change) error {
			if only != nil && !slices.Contains(only, e.Key) {
				return nil
			}
			if sel != nil && e.Object != nil {
				match, err := matcher(c.Context(), cl, sel, []onpath.Object{e.Object})
				if err != nil {
					return err
				}
				shown[e.Key] = shown[e.Key] || match(e.Object)
			}
			if sel != nil && !shown[e.Key] {
				return nil
			}
			return f.show(e.Key, e.Object)
		})
}

// follower prints objects as they change, in the form that was asked for.
type follower struct {
	output string
	w      io.Writer
	table  *table.Table // of the two forms that are tables
}

func (g *global) follow(w io.Writer, kind onpath.Kind) *follower {
	return &follower{output: g.output, w: w, table: render.Table(kind, g.output == outWide)}
}

func (f *follower) tabular() bool { return f.output == outTable || f.output == outWide }

// begin shows what is there, a table with its heading in any case.
func (f *follower) begin(list []onpath.Object) error {
	for _, o := range list {
		if f.tabular() {
			f.table.Row(render.Row(o, time.Now(), f.output == outWide)...)
		} else if err := f.show(onpath.KeyOf(o), o); err != nil {
			return err
		}
	}
	if f.tabular() {
		return f.table.Follow(f.w)
	}
	return nil
}

// show prints one object; nil means that it was deleted.
func (f *follower) show(k onpath.Key, o onpath.Object) error {
	switch {
	case f.output == outJSON:
		return printJSON(f.w, map[string]any{"key": k.String(), "object": o})
	case o == nil && f.output == outYAML:
		_, err := fmt.Fprintf(f.w, "# %s deleted\n---\n", k)
		return err
	case o == nil && f.output == outName:
		return nil
	case o == nil:
		_, err := fmt.Fprintf(f.w, "%s deleted\n", k)
		return err
	case f.output == outName:
		_, err := fmt.Fprintln(f.w, nameOf(o))
		return err
	case f.output == outYAML:
		if err := manifest.Encode(f.w, o); err != nil {
			return err
		}
		_, err := fmt.Fprintln(f.w, "---")
		return err
	}
	f.table.Row(render.Row(o, time.Now(), f.output == outWide)...)
	return f.table.Follow(f.w)
}

// nameOf is an object's name as commands take it: NAME, or TENANT/NAME.
func nameOf(o onpath.Object) string {
	if k := onpath.KeyOf(o); k.Tenant != "" {
		return k.Tenant + "/" + k.Name
	}
	return o.Meta().Name
}
