package cli

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"github.com/onpath/onpath/cli/ociimage"
	"github.com/onpath/onpath/cli/render"
	"github.com/onpath/onpath/cli/table"
)

func newImages(g *global) *cobra.Command {
	return group("images", "Make images of functions from recipes, without a registry", groupAround, newImagesBuild(g))
}

func newImagesBuild(g *global) *cobra.Command {
	var out string
	c := &cobra.Command{
		Use: "build [RECIPE…]", Short: "Make OCI images from recipes, or take them from the cache",
		Long: `Make OCI images from recipes (folders with an ` + ociimage.RecipeFile + `), from the
distribution's packages, or take them from the cache. Without a name: all of
./functions.`,
		Example: examples("sudo onpath images build --out bin/images", "sudo onpath images build functions/cache"),
		Args:    cobra.ArbitraryArgs,
		RunE: func(c *cobra.Command, args []string) error {
			outliveReader()
			if err := g.checkOutput(); err != nil {
				return err
			}
			recipes, err := recipeDirs(args)
			if err != nil {
				return err
			}
			p := newProgress(c.ErrOrStderr())
			defer p.done()
			results, err := ociimage.BuildAll(c.Context(), recipes, out, func(s string) { p.show("%s", s) })
			if err != nil {
				return err
			}
			p.done()
			return g.print(c, results, func(w io.Writer) error { return imagesTable(w, results) })
		},
	}
	c.Flags().StringVar(&out, "out", "", "folder for links to the images (default none)")
	return c
}

// recipeDirs are those named, or all in ./functions.
func recipeDirs(args []string) ([]string, error) {
	if len(args) > 0 {
		for _, dir := range args {
			if _, err := os.Stat(filepath.Join(dir, ociimage.RecipeFile)); err != nil {
				return nil, badUsage("%s has no %s; name a folder with a recipe in it, such as functions/firewall",
					dir, ociimage.RecipeFile)
			}
		}
		return args, nil
	}
	found, err := filepath.Glob(filepath.Join("functions", "*", ociimage.RecipeFile))
	if err != nil {
		return nil, err
	}
	if len(found) == 0 {
		return nil, badUsage("there is no functions/*/%s here; name the folders of recipes", ociimage.RecipeFile)
	}
	for i, f := range found {
		found[i] = filepath.Dir(f)
	}
	return found, nil
}

func imagesTable(w io.Writer, results []ociimage.Result) error {
	t := table.New("IMAGE", ">SIZE", "BUILT", "WHERE")
	for _, r := range results {
		built, where := "cached", r.Path
		if !r.Cached {
			built = "in " + r.Took.Round(100*time.Millisecond).String()
		}
		if where == "" {
			where = r.Layout
		}
		t.Row(r.Name, render.Bytes(uint64(r.Size)), built, where)
	}
	if err := t.Write(w); err != nil {
		return fmt.Errorf("write: %w", err)
	}
	return nil
}
