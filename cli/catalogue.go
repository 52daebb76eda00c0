package cli

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/api/manifest"
	"github.com/onpath/onpath/cli/catalogue"
	"github.com/onpath/onpath/cli/ociimage"
	"github.com/onpath/onpath/cli/render"
	"github.com/onpath/onpath/cli/table"
)

func newCatalogue(g *global) *cobra.Command {
	return group("catalogue", "Use functions that come with onpath", groupUse,
		newCatalogueList(g), newCatalogueShow(g), newCatalogueUse(g))
}

func newCatalogueList(g *global) *cobra.Command {
	return &cobra.Command{
		Use: "list", Short: "List the functions that come with onpath", Args: cobra.NoArgs,
		Example: examples("onpath catalogue list"),
		RunE: func(c *cobra.Command, _ []string) error {
			if err := g.checkOutput(); err != nil {
				return err
			}
			list, err := catalogue.List()
			if err != nil {
				return err
			}
			shown := []*render.CatalogueEntry{}
			for _, e := range list {
				shown = append(shown, shownEntry(e))
			}
			return g.print(c, shown, func(w io.Writer) error {
				t := table.New("NAME", "KIND", "FOR")
				for _, e := range shown {
					t.Row(e.Name, string(e.Kind), e.For)
				}
				return t.Write(w)
			})
		},
	}
}

func shownEntry(e *catalogue.Entry) *render.CatalogueEntry {
	return &render.CatalogueEntry{Name: e.Name, Kind: e.Function.Spec.Kind(), For: e.For, Use: e.Use, Shows: e.Shows,
		Parameters: e.Function.Spec.Parameters, Page: e.Page()}
}

func newCatalogueShow(g *global) *cobra.Command {
	return &cobra.Command{
		Use: "show NAME", Short: "Show what a function is for, its parameters and its use",
		Args: cobra.ExactArgs(1), Example: examples("onpath catalogue show cache"), ValidArgsFunction: completeEntries,
		RunE: func(c *cobra.Command, args []string) error {
			if err := g.checkOutput(); err != nil {
				return err
			}
			e, err := catalogue.Find(args[0])
			if err != nil {
				return err
			}
			shown := shownEntry(e)
			return g.print(c, shown, func(w io.Writer) error { return render.Catalogue(w, shown) })
		},
	}
}

func completeEntries(_ *cobra.Command, args []string, _ string) (names []string, _ cobra.ShellCompDirective) {
	if list, err := catalogue.List(); err == nil && len(args) == 0 {
		for _, e := range list {
			names = append(names, e.Name+"\t"+e.For)
		}
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}

// catalogueUse are the flags of `catalogue use`.
type catalogueUse struct {
	make     applyFlags
	set      []string
	name     string
	from, to string
	at       []string
	priority int
}

func newCatalogueUse(g *global) *cobra.Command {
	u := &catalogueUse{make: applyFlags{global: g}}
	c := &cobra.Command{
		Use: "use NAME", Short: "Build and apply a function, and steer traffic through it",
		Long: `Build the function's image on this machine, from the distribution's packages (as
root, with mmdebstrap), or take it from the cache; then apply the Function. With --to
a Chain of its name sends traffic through it. A function that answers by itself gets a
Deployment and a Service instead.

--set tells the function a value; onpath catalogue show lists the parameters. --from and
--to are any, prefixes with commas, or the name of a Hosts object.`,
		Example: examples("sudo onpath catalogue use cache --to website --at fra1",
			"sudo onpath catalogue use ids --name shop-ids --to 198.51.100.0/24 --set MODE=inline --wait",
			"onpath catalogue use ebpf-ratelimit --to website --set rate=50Mbit --dry-run"),
		Args: cobra.ExactArgs(1), ValidArgsFunction: completeEntries,
		RunE: func(c *cobra.Command, args []string) error { return u.run(c, args[0]) },
	}
	f := c.Flags()
	f.StringArrayVar(&u.set, "set", nil, "`PARAMETER=VALUE`; may be repeated")
	f.StringVar(&u.name, "name", "", "name of the objects (default that of the entry's Function, such as limit of ebpf-ratelimit)")
	f.StringVar(&u.from, "from", "any", "whose traffic")
	f.StringVar(&u.to, "to", "", "traffic to these passes the function")
	f.StringSliceVar(&u.at, "at", nil, "cloudlets (default all that have a gateway)")
	f.IntVar(&u.priority, "priority", 0, "of two chains of a tenant, which select the same traffic, the higher one gets it")
	g.tenantFlag(c, "tenant of the objects")
	u.make.changeFlags(c)
	return c
}

// check refuses flags that do not go together, and empty ones: variables of a script that are
// not set.
func (u *catalogueUse) check(c *cobra.Command, name string) error {
	if err := u.make.check(c); err != nil {
		return err
	}
	given := c.Flags().Changed
	for flag, value := range map[string]string{"from": u.from, "to": u.to, "name": u.name, "at": strings.Join(u.at, "")} {
		if given(flag) && value == "" {
			return badUsage("--%s is empty: write a value, or leave it out", flag)
		}
	}
	for _, flag := range []string{"from", "priority"} {
		if given(flag) && u.to == "" {
			return badUsage("--%s is of a chain, and without --to there is none: add --to", flag)
		}
	}
	if u.priority < -onpath.MaxPriority || u.priority > onpath.MaxPriority {
		return badUsage("--priority %d: write %d to %d", u.priority, -onpath.MaxPriority, onpath.MaxPriority)
	}
	seen := map[string]bool{}
	for _, s := range u.set {
		k, _, ok := strings.Cut(s, "=")
		if !ok || k == "" {
			return badUsage("--set %s: write PARAMETER=VALUE; onpath catalogue show %s lists the parameters", s, name)
		}
		if seen[k] {
			return badUsage("--set %s is there twice: leave one of them out", k)
		}
		seen[k] = true
	}
	return nil
}

func (u *catalogueUse) run(c *cobra.Command, name string) error {
	if err := u.check(c, name); err != nil {
		return err
	}
	e, err := catalogue.Find(name)
	if err != nil {
		return err
	}
	t := catalogue.Target{Name: u.name, Tenant: u.make.tenant, At: u.at, Chained: u.to != "", Priority: u.priority, Set: onpath.Env{}}
	for _, s := range u.set {
		k, v, _ := strings.Cut(s, "=")
		t.Set[k] = v
	}
	t.From, t.To = endpointsOf(u.from), endpointsOf(u.to)
	dir, err := os.MkdirTemp("", "onpath-catalogue-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	if err := catalogue.Extract(dir); err != nil {
		return err
	}
	f, err := e.Load(dir)
	if err != nil {
		return err
	}
	objects, err := e.Objects(f, t)
	if err != nil {
		return err
	}
	if e.Recipe {
		if err := u.buildImage(c, f, filepath.Join(dir, e.Name)); err != nil {
			return err
		}
	}
	var docs []*manifest.Document
	for _, o := range objects {
		docs = append(docs, &manifest.Document{Object: o})
	}
	if err := u.make.apply(c, docs); err != nil {
		return err
	}
	if !t.Chained && e.Chain != nil && u.make.output == outTable {
		fmt.Fprintf(c.ErrOrStderr(), "no traffic passes it yet: add --to, or name function %s in a Chain\n", f.Metadata.Name)
	}
	return nil
}

// buildImage builds what the function's image is, and names it.
func (u *catalogueUse) buildImage(c *cobra.Command, f *onpath.Function, recipe string) error {
	p := newProgress(c.ErrOrStderr())
	defer p.done()
	image, err := ociimage.Build(c.Context(), recipe, "", func(s string) { p.show("%s", s) })
	if err != nil {
		return err
	}
	for _, b := range f.Spec.Brings().Images {
		*b.Image = image.Layout
	}
	return nil
}

// endpointsOf reads an end of a chain: any, prefixes, or the name of a Hosts object.
func endpointsOf(s string) onpath.Endpoints {
	if s == "any" {
		return onpath.Endpoints{Any: true}
	}
	var prefixes []onpath.Prefix
	for item := range strings.SplitSeq(s, ",") {
		var p onpath.Prefix
		if p.UnmarshalText([]byte(item)) != nil {
			return onpath.Endpoints{Hosts: onpath.Ref(s)}
		}
		prefixes = append(prefixes, p)
	}
	return onpath.Endpoints{Prefixes: prefixes}
}
