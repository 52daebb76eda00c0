package cli

import (
	"fmt"
	"io"
	"slices"

	"github.com/spf13/cobra"

	"github.com/onpath/onpath/api/client"
	"github.com/onpath/onpath/api/manifest"
	"github.com/onpath/onpath/api/wire"
	"github.com/onpath/onpath/cli/render"
)

func newDiff(g *global) *cobra.Command {
	var files []string
	c := &cobra.Command{
		Use: "diff -f FILE", Short: "Show how files differ from what the server has", GroupID: groupUse,
		Long: `Show how objects in files differ from those that the server has, field by field.
Nothing is changed, nothing pushed; the files are checked as apply checks them.
The exit code is 0 where nothing differs and 1 where something does.
onpath apply --dry-run also shows what would follow for instances and rules.`,
		Example: examples("onpath diff -f examples/quickstart", "generate | onpath diff -f -"),
		Args:    cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if err := g.checkOutput(); err != nil {
				return err
			}
			docs, err := loadFiles(c, files)
			if err != nil {
				return err
			}
			a := &applyFlags{global: g, files: files, dryRun: true, noVerify: true}
			applied, err := a.send(c, docs, client.ApplyOptions{DryRun: true, NoVerify: true})
			if err != nil {
				return err
			}
			applied.Preview = nil
			if err := g.print(c, applied, func(w io.Writer) error { return printDiff(w, applied) }); err != nil {
				return err
			}
			if slices.ContainsFunc(applied.Changes, func(ch wire.ObjectChange) bool { return ch.Action != wire.Unchanged }) {
				return exitStatus(exitFailed)
			}
			return nil
		},
	}
	c.Flags().StringArrayVarP(&files, "file", "f", nil, "file, directory (its *.yaml, *.yml, *.json) or - for stdin; may be repeated")
	return c
}

func printDiff(w io.Writer, applied *wire.Applied) error {
	for _, ch := range applied.Changes {
		if ch.Action == wire.Unchanged {
			continue
		}
		if _, err := fmt.Fprintf(w, "%s %s\n", ch.Key(), render.Would[ch.Action]); err != nil {
			return err
		}
		for _, d := range ch.Diff {
			if len(d.Old) > 0 {
				fmt.Fprintf(w, "- %s: %s\n", d.Field, render.Value(d.Field, d.Old))
			}
			if len(d.New) > 0 {
				fmt.Fprintf(w, "+ %s: %s\n", d.Field, render.Value(d.Field, d.New))
			}
		}
	}
	return nil
}

// send has the server apply documents, and gives errors their places in the files.
func (a *applyFlags) send(c *cobra.Command, docs []*manifest.Document, o client.ApplyOptions) (*wire.Applied, error) {
	warnOfCut(c.ErrOrStderr(), docs)
	cl, err := a.client()
	if err != nil {
		return nil, err
	}
	defer cl.Close()
	if err := a.pushImages(c, cl, docs); err != nil {
		return nil, manifest.Locate(docs, err)
	}
	applied, err := cl.Apply(c.Context(), manifest.Objects(docs), o)
	return applied, manifest.Locate(docs, err)
}
