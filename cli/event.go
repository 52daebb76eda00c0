package cli

import (
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/api/client"
)

func newEvents(g *global) *cobra.Command {
	var follow bool
	var about string
	c := &cobra.Command{
		Use: "events", Short: "Show what happened, the latest last", GroupID: groupSee,
		Example: examples("onpath events", "onpath events -f", "onpath events --about chain/web"),
		Args:    cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if err := g.checkOutput(); err != nil {
				return err
			}
			if words := splitKind([]string{about}); len(words) == 2 { // KIND/NAME
				kind, _ := parseKind(words[0])
				k, err := g.key(kind, words[1])
				if err != nil {
					return err
				}
				about = k.String()
			}
			cl, err := g.client()
			if err != nil {
				return err
			}
			defer cl.Close()
			return g.events(c, cl, follow, about)
		},
	}
	c.Flags().BoolVarP(&follow, "follow", "f", false, "go on with what happens from now on")
	c.Flags().StringVar(&about, "about", "", "only about this object, as KIND/NAME or as events name it")
	g.tenantFlag(c, "only this tenant's")
	return c
}

func (g *global) events(c *cobra.Command, cl *client.Client, follow bool, about string) error {
	list, revision, err := cl.List(c.Context(), onpath.KindEvent, g.tenant)
	if err != nil {
		return err
	}
	list = slices.DeleteFunc(list, func(o onpath.Object) bool {
		return about != "" && !strings.Contains(o.(*onpath.Event).Spec.About, about)
	})
	slices.SortStableFunc(list, func(a, b onpath.Object) int {
		return a.(*onpath.Event).Spec.Time.Compare(b.(*onpath.Event).Spec.Time)
	})
	if !follow {
		return g.print(c, list, func(w io.Writer) error { return g.objects(w, c.ErrOrStderr(), onpath.KindEvent, list) })
	}
	f := g.follow(c.OutOrStdout(), onpath.KindEvent)
	if err := f.begin(list); err != nil {
		return err
	}
	return cl.Watch(c.Context(), client.WatchOptions{Kinds: []onpath.Kind{onpath.KindEvent}, Tenant: g.tenant, From: revision},
		func(e client.Change) error {
			if event, ok := e.Object.(*onpath.Event); !ok || about != "" && !strings.Contains(event.Spec.About, about) {
				return nil
			}
			return f.show(e.Key, e.Object)
		})
}
