package cli

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"time"

	"github.com/spf13/cobra"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/cli/config"
	"github.com/onpath/onpath/control/notify"
)

func newWebhook(g *global) *cobra.Command {
	var secret bool
	c := &cobra.Command{
		Use: "webhook NAME", Short: "Show what a webhook has sent and why it failed, or its secret", GroupID: groupSee,
		Long: `Show how many notifications a webhook has sent, and why the last attempt failed;
or the secret by which its receiver verifies them. docs/attach.md tells more.`,
		Example: examples("onpath webhook pager", "onpath webhook acme/pager --secret"),
		Args:    cobra.ExactArgs(1), ValidArgsFunction: g.completeKind(onpath.KindWebhook),
		RunE: func(c *cobra.Command, args []string) error {
			if err := g.checkOutput(); err != nil {
				return err
			}
			k, err := g.key(onpath.KindWebhook, args[0])
			if err != nil {
				return err
			}
			cl, err := g.client()
			if err != nil {
				return err
			}
			defer cl.Close()
			s, err := cl.WebhookState(c.Context(), k)
			if err != nil {
				return err
			}
			if secret {
				_, err := fmt.Fprintln(c.OutOrStdout(), s.Secret)
				return err
			}
			s.Secret = "" // it is for those who ask for it
			return g.print(c, s, func(w io.Writer) error { return writeWebhook(w, s) })
		},
	}
	c.Flags().BoolVar(&secret, "secret", false, "print the secret, and nothing else")
	return c
}

func writeWebhook(w io.Writer, s onpath.WebhookState) error {
	_, err := fmt.Fprintf(w, "sent:      %d\nleft out:  %d\n", s.Sent, s.Dropped)
	if err == nil && s.Failures > 0 {
		_, err = fmt.Fprintf(w, "failures:  %d, the last: %s\n", s.Failures, printable(s.Message))
	}
	return err
}

// newWebhooks sends what the keeper keeps.
func newWebhooks(conf *config.Server, keeper *notify.Keeper, store onpath.Store, secrets func() [][]byte,
	log *slog.Logger) *notify.Webhooks {
	return notify.NewWebhooks(notify.WebhookOptions{Keeper: keeper, Allowed: plain(conf.WebhookTargets), Secrets: secrets,
		Log: log, Now: time.Now,
		List: func(ctx context.Context) (out []*onpath.Webhook, err error) {
			list, _, err := store.List(ctx, onpath.KindWebhook, "")
			for _, o := range list {
				out = append(out, o.(*onpath.Webhook))
			}
			return out, err
		},
		Underlay: func(ctx context.Context) (out []netip.Addr, err error) {
			list, _, err := store.List(ctx, onpath.KindNode, "")
			for _, o := range list {
				out = append(out, o.(*onpath.Node).Spec.Underlay.Address.Unmap())
			}
			return out, err
		}})
}
