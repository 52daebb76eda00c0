package cli

import (
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/onpath/onpath/api/client"
	"github.com/onpath/onpath/api/wire"
)

func newRotate(g *global) *cobra.Command {
	var r wire.Rotate
	c := &cobra.Command{
		Use: "rotate [authority | secret]", Short: "Replace the server's keys while it works", GroupID: groupRun,
		Long: `Replace one of the server's keys while it works, in two steps. With the first, a new
key is made, and the one before is good beside it. With the second (--end) the one
before is refused.

authority: the key that signs certificates. Nodes connect again and get certificates
of the new one; users get theirs with their next command. Make new tokens: those of
before are refused in the end, as is who was away all the time.

secret: what Secrets are sealed with, and what secrets of webhooks and passwords of
claims are made from. Secrets are sealed again, and instances that read them are
replaced one after another. Requests of webhooks are signed for both; have receivers
take the new secret (onpath webhook NAME --secret). A claim's answer may be either
password; have tenants answer the new one.

Without a key, it is told how far a rotation is.`,
		Example:   examples("onpath rotate authority", "onpath rotate", "onpath rotate authority --end"),
		Args:      cobra.MatchAll(cobra.MaximumNArgs(1), cobra.OnlyValidArgs),
		ValidArgs: []string{"authority", "secret"},
		RunE: func(c *cobra.Command, args []string) error {
			cl, err := clientToPrint(g)
			if err != nil {
				return err
			}
			defer cl.Close()
			if r.Force && !r.End || r.End && len(args) == 0 {
				return badUsage("--end ends the rotation of one key, and --force is for --end: onpath rotate authority --end")
			}
			var state *wire.KeyRotation
			if len(args) == 0 {
				state, err = client.KeysOf(cl).Rotation(c.Context())
			} else {
				state, err = client.KeysOf(cl).Rotate(c.Context(), args[0], r)
			}
			if err != nil {
				return err
			}
			return g.print(c, state, func(w io.Writer) error { return writeRotation(w, state) })
		},
	}
	c.Flags().BoolVar(&r.End, "end", false, "refuse the key before from now on")
	c.Flags().BoolVar(&r.Force, "force", false, "with --end: although nodes would have to join again")
	return c
}

// writeRotation says how far the rotation of each key is.
func writeRotation(w io.Writer, r *wire.KeyRotation) error {
	var b strings.Builder
	switch a := r.Authority; {
	case a == nil:
	case a.Former == "":
		fmt.Fprintf(&b, "authority: %s…\n", a.Authority[:12])
	default:
		fmt.Fprintf(&b, "authority: %s…, and %s… until onpath rotate authority --end\n", a.Authority[:12], a.Former[:12])
		for _, who := range a.Waiting {
			fmt.Fprintf(&b, "  %s has not shown a certificate of the new one yet\n", who)
		}
		for _, id := range a.Tokens {
			fmt.Fprintf(&b, "  token %s is for the former one\n", id)
		}
	}
	if r.Secret {
		b.WriteString("secret:    the new one, and the one before until onpath rotate secret --end\n")
	} else {
		b.WriteString("secret:    one\n")
	}
	for _, s := range r.Sealed {
		fmt.Fprintf(&b, "  %s is sealed by the one before\n", s)
	}
	_, err := io.WriteString(w, b.String())
	return err
}
