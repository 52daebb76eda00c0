package cli

import (
	"io"
	"os"

	"github.com/spf13/cobra"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/cli/render"
)

func newScaling(g *global) *cobra.Command {
	var page string
	c := &cobra.Command{
		Use: "scaling CHAIN", Short: "Show how a chain was scaled, and why", GroupID: groupSee,
		Long: `Show the trials of a chain with spec.scaling: what was added or taken away, how
the application's value changed, and whether it was kept; then how things stand.`,
		Example: examples("onpath scaling web", "onpath scaling web --html scaling.html", "onpath scaling web -o json"),
		Args:    cobra.ExactArgs(1), ValidArgsFunction: g.completeKind(onpath.KindChain),
		RunE: func(c *cobra.Command, args []string) error {
			if err := g.checkOutput(); err != nil {
				return err
			}
			if err := canWrite("--html", page); err != nil {
				return err
			}
			o, err := g.scaledChain(c, args[0])
			if err != nil {
				return err
			}
			if page != "" {
				f, err := os.Create(page)
				if err != nil {
					return unwritable("--html", page, err)
				}
				if err := render.ScalingPage(f, o); err != nil {
					_ = f.Close()
					return err
				}
				if err := f.Close(); err != nil {
					return unwritable("--html", page, err)
				}
			}
			return g.print(c, o.Status.Scaling, func(w io.Writer) error { return render.Scaling(w, o) })
		},
	}
	c.Flags().StringVar(&page, "html", "", "also write a page with a plot to this file")
	return c
}

// scaledChain reads a chain that scales.
func (g *global) scaledChain(c *cobra.Command, name string) (*onpath.Chain, error) {
	k, err := g.key(onpath.KindChain, name)
	if err != nil {
		return nil, err
	}
	cl, err := g.client()
	if err != nil {
		return nil, err
	}
	defer cl.Close()
	got, err := cl.Get(c.Context(), k)
	if err != nil {
		return nil, err
	}
	o := got.(*onpath.Chain)
	switch {
	case o.Spec.Scaling == nil:
		e := onpath.Errorf(onpath.CodeInvalid, "%s has no spec.scaling", k)
		e.Remedy = "see docs/scaling.md"
		return nil, e
	case o.Status.Scaling == nil:
		return nil, onpath.Errorf(onpath.CodeUnavailable, "the scaling of %s has not begun; try again in a moment", k)
	}
	return o, nil
}
