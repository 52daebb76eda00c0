package cli

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/spf13/cobra"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/cli/table"
)

func newNotifications(g *global) *cobra.Command {
	f := onpath.NotificationFilter{}
	var follow bool
	c := &cobra.Command{
		Use: "notifications", Short: "Show what functions told their owners, the latest last", GroupID: groupSee,
		Long: `Show what functions told their owners, the latest last. A function tells by
POST $ONPATH_NOTIFY/notify with level, title, text and fields as JSON.`,
		Example: examples("onpath notifications", "onpath notifications -f", "onpath notifications --instance web-ids-1 -o json"),
		Args:    cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if err := g.checkOutput(); err != nil {
				return err
			}
			if f.Limit < 1 {
				return badUsage("--limit %d: write how many, 1 or more", f.Limit)
			}
			cl, err := g.client()
			if err != nil {
				return err
			}
			defer cl.Close()
			f.Tenant = g.tenant
			if follow {
				return cl.Notifications(c.Context(), f, true, func(n onpath.Notification) error {
					if g.output == "json" {
						return json.NewEncoder(c.OutOrStdout()).Encode(n)
					}
					_, err := fmt.Fprintln(c.OutOrStdout(), strings.Join(notificationRow(n), "  "))
					return err
				})
			}
			list := []onpath.Notification{}
			err = cl.Notifications(c.Context(), f, false, func(n onpath.Notification) error { list = append(list, n); return nil })
			if err != nil {
				return err
			}
			return g.print(c, list, func(w io.Writer) error {
				t := table.New("TIME", "LEVEL", "INSTANCE", "TITLE", "TEXT")
				for _, n := range list {
					t.Row(notificationRow(n)...)
				}
				return t.Write(w)
			})
		},
	}
	c.Flags().BoolVarP(&follow, "follow", "f", false, "go on with what comes from now on")
	c.Flags().StringVar(&f.Instance, "instance", "", "only this instance's")
	c.Flags().IntVarP(&f.Limit, "limit", "n", 100, "the latest so many")
	g.tenantFlag(c, "only this tenant's")
	return c
}

// notificationRow is one for people; functions write it, so nothing of it may move a cursor.
func notificationRow(n onpath.Notification) []string {
	text := []string{n.Text}
	for _, k := range slices.Sorted(maps.Keys(n.Fields)) {
		text = append(text, k+"="+n.Fields[k])
	}
	return []string{n.Time.Local().Format(time.DateTime), string(n.Level), n.Tenant + "/" + n.Instance,
		printable(n.Title), printable(strings.TrimSpace(strings.Join(text, " ")))}
}

// printable is text without what a terminal would obey.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return ' '
	}, s)
}
