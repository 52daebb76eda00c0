package cli

import (
	"context"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/api/client"
	"github.com/onpath/onpath/api/wire"
	"github.com/onpath/onpath/cli/render"
)

func newConfirm(g *global) *cobra.Command {
	undo := false
	c := &cobra.Command{
		Use: "confirm [ID]", Short: "Keep what was applied with --confirm, or list what waits", GroupID: groupUse,
		Long: `Keep what was applied with --confirm. Without an ID, list what waits: what it did,
who applied it, and when it is undone. --undo takes it back now.`,
		Example: examples("onpath confirm", "onpath confirm k3jd9x2a", "onpath confirm k3jd9x2a --undo"),
		Args:    cobra.MaximumNArgs(1), ValidArgsFunction: g.completeUnconfirmed,
		RunE: func(c *cobra.Command, args []string) error {
			if err := g.checkOutput(); err != nil {
				return err
			}
			if len(args) == 0 && undo {
				return badUsage("--undo needs the ID of what is to be taken back; onpath confirm lists what waits")
			}
			if len(args) == 1 && args[0] == "" {
				return badUsage("the ID is empty; onpath confirm lists what waits")
			}
			cl, err := g.client()
			if err != nil {
				return err
			}
			defer cl.Close()
			if len(args) == 0 {
				return g.listUnconfirmed(c, cl)
			}
			if undo {
				done, err := cl.Undo(c.Context(), args[0])
				if err != nil {
					return err
				}
				return render.Undone(c.OutOrStdout(), args[0], done)
			}
			if err := cl.Confirm(c.Context(), args[0]); err != nil {
				return err
			}
			_, err = fmt.Fprintf(c.OutOrStdout(), "%s is kept\n", args[0])
			return err
		},
	}
	c.Flags().BoolVar(&undo, "undo", false, "take it back now")
	return c
}

func (g *global) listUnconfirmed(c *cobra.Command, cl *client.Client) error {
	list, err := cl.Unconfirmed(c.Context())
	if err != nil {
		return err
	}
	return g.print(c, list, func(w io.Writer) error {
		if len(list) == 0 {
			_, err := fmt.Fprintln(c.ErrOrStderr(), "nothing waits for a confirmation")
			return err
		}
		return render.Unconfirmed(w, list, time.Now())
	})
}

// unconfirmed are the applies of one object that wait for a confirmation.
func unconfirmed(ctx context.Context, cl *client.Client, k onpath.Key) ([]wire.Unconfirmed, error) {
	list, err := cl.Unconfirmed(ctx)
	return slices.DeleteFunc(list, func(u wire.Unconfirmed) bool {
		return !slices.ContainsFunc(u.Changes, func(c wire.ObjectChange) bool { return c.Key() == k })
	}), err
}

// tellUnconfirmed says which objects are as they were applied only until an earlier change
// of them is undone.
func tellUnconfirmed(c *cobra.Command, cl *client.Client, changes []wire.ObjectChange) error {
	changes = slices.DeleteFunc(slices.Clone(changes), func(ch wire.ObjectChange) bool { return ch.Action != wire.Unchanged })
	if len(changes) == 0 {
		return nil
	}
	list, err := cl.Unconfirmed(c.Context())
	if onpath.CodeOf(err) == onpath.CodeForbidden { // who may apply need not see what waits
		return nil
	}
	for _, u := range list {
		for _, ch := range u.Changes {
			if slices.ContainsFunc(changes, func(same wire.ObjectChange) bool { return same.Key() == ch.Key() }) {
				fmt.Fprintf(c.ErrOrStderr(), "%s was changed before, and that is undone at %s unless confirmed: onpath confirm %s\n",
					ch.Key(), u.Deadline.Local().Format(time.TimeOnly), u.ID)
			}
		}
	}
	return err
}

// notAwaited refuses to roll an object back of which a change is undone by itself unless
// it is confirmed: what that would then restore, nobody asked for.
func notAwaited(ctx context.Context, cl *client.Client, k onpath.Key) error {
	list, err := unconfirmed(ctx, cl, k)
	if err != nil || len(list) == 0 {
		return err
	}
	u := list[0]
	e := onpath.Errorf(onpath.CodeConflict, "its last change is undone at %s unless confirmed", u.Deadline.Local().Format(time.TimeOnly))
	e.Object, e.Remedy = k.String(), fmt.Sprintf("onpath confirm %s --undo takes it back now, onpath confirm %s keeps it", u.ID, u.ID)
	return e
}

func (g *global) completeUnconfirmed(c *cobra.Command, args []string, _ string) (ids []string, _ cobra.ShellCompDirective) {
	cl, err := g.client()
	if err != nil || len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	defer cl.Close()
	list, _ := cl.Unconfirmed(c.Context()) // without a server there is nothing to complete
	for _, u := range list {
		ids = append(ids, u.ID)
	}
	return ids, cobra.ShellCompDirectiveNoFileComp
}
