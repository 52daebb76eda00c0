package cli

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/api/client"
	"github.com/onpath/onpath/api/manifest"
	"github.com/onpath/onpath/api/wire"
	"github.com/onpath/onpath/cli/render"
)

func newHistory(g *global) *cobra.Command {
	c := &cobra.Command{
		Use: "history KIND NAME [NUMBER]", Short: "Show an object's last versions and who wrote them", GroupID: groupUse,
		Long: `Show the last 20 versions of an object (1 MiB at most), the latest last: when and by
whom each was written, and what it changed. With a NUMBER, show that version as a
file. An object's history goes with it; reservations have theirs in the ledger.`,
		Example: examples("onpath history chain web", "onpath history chain web 3", "onpath rollback chain web --to 3 --dry-run"),
		Args:    cobra.RangeArgs(1, 3), ValidArgsFunction: g.completeObjects,
		RunE: func(c *cobra.Command, args []string) error {
			args = splitKind(args)
			_, list, cl, err := g.history(c, args[:min(len(args), 2)])
			if err != nil {
				return err
			}
			defer cl.Close()
			if len(args) < 3 {
				return g.print(c, list, func(w io.Writer) error { return render.History(w, list, time.Now()) })
			}
			n, err := strconv.Atoi(args[2])
			if err != nil {
				return badUsage("%q is not the number of a version; onpath history lists them", args[2])
			}
			v, err := versionOf(list, n)
			if err != nil {
				return err
			}
			o, err := onpath.Decode(v.Object)
			if err != nil {
				return err
			}
			if g.output == outJSON {
				return printJSON(c.OutOrStdout(), o)
			}
			return manifest.Encode(c.OutOrStdout(), o)
		},
	}
	g.tenantFlag(c, "tenant of the object")
	return c
}

// history reads the versions of the object that KIND NAME mean. The client is open
// unless there is an error.
func (g *global) history(c *cobra.Command, args []string) (k onpath.Key, list []wire.ObjectVersion, cl *client.Client, err error) {
	if err := g.checkOutput(); err != nil {
		return k, nil, nil, err
	}
	kind, err := parseKind(args[0])
	if err != nil {
		return k, nil, nil, err
	}
	switch {
	case kind.ReadOnly():
		return k, nil, nil, badUsage("%s are written by onpath itself and have no history", kind.Plural())
	case len(args) < 2:
		return k, nil, nil, badUsage("which %s? onpath get %s lists them", strings.ToLower(string(kind)), kind.Plural())
	}
	if k, err = g.key(kind, args[1]); err != nil {
		return k, nil, nil, err
	}
	if cl, err = g.client(); err != nil {
		return k, nil, nil, err
	}
	if list, err = cl.History(c.Context(), k); err != nil {
		cl.Close()
	}
	return k, list, cl, err
}

// versionOf finds a version; 0 means the one before that which is in force.
func versionOf(list []wire.ObjectVersion, number int) (*wire.ObjectVersion, error) {
	if number == 0 && len(list) > 1 {
		return &list[len(list)-2], nil
	}
	if number == 0 {
		e := onpath.Errorf(onpath.CodeNotFound, "there is no version before the present one")
		e.Remedy = "an object's history begins when it is made"
		return nil, e
	}
	if i := slices.IndexFunc(list, func(v wire.ObjectVersion) bool { return v.Number == number }); i >= 0 {
		return &list[i], nil
	}
	return nil, onpath.Errorf(onpath.CodeNotFound, "there is no version %d; there are %d to %d", number,
		list[0].Number, list[len(list)-1].Number)
}

func newRollback(g *global) *cobra.Command {
	a := &applyFlags{global: g}
	to := 0
	c := &cobra.Command{
		Use: "rollback KIND NAME", Short: "Make an object as it was before its last change", GroupID: groupUse,
		Long: `Make an object as it was before its last change, or (--to) as it was in a version of
onpath history. It is applied as a file is: with the same checks, and as a new
version, so that another rollback takes it back.`,
		Example: examples("onpath rollback chain web --dry-run", "onpath rollback chain web --confirm 60s",
			"onpath rollback chain web --to 3 --wait"),
		Args: cobra.RangeArgs(1, 2), ValidArgsFunction: g.completeObjects,
		RunE: func(c *cobra.Command, args []string) error {
			if c.Flags().Changed("to") && to < 1 {
				return badUsage("--to %d: versions have numbers from 1; onpath history lists them", to)
			}
			if err := a.check(c); err != nil {
				return err
			}
			k, list, cl, err := g.history(c, splitKind(args))
			if err != nil {
				return err
			}
			defer cl.Close()
			if err := notAwaited(c.Context(), cl, k); err != nil {
				return err
			}
			v, err := versionOf(list, to)
			if err != nil {
				return err
			}
			if g.output == outTable {
				fmt.Fprintf(c.OutOrStdout(), "%s goes back to version %d\n", k, v.Number)
			}
			return a.rollback(c, v.Object)
		},
	}
	c.Flags().IntVar(&to, "to", 0, "the `number` of a version (default the one before the present one)")
	c.Flags().Lookup("to").DefValue = "0" // the help says what the default means
	a.changeFlags(c)
	g.tenantFlag(c, "tenant of the object")
	return c
}

func (a *applyFlags) rollback(c *cobra.Command, object json.RawMessage) error {
	o, err := onpath.Decode(object)
	if err != nil {
		return err
	}
	docs := []*manifest.Document{{Object: o}}
	return a.apply(c, docs)
}
