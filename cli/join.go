package cli

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/onpath/onpath/api/client"
)

func newJoin(g *global) *cobra.Command {
	return &cobra.Command{
		Use: "join TOKEN", Short: "Use a server on another machine from now on", GroupID: groupRun,
		Long: `Use a server on another machine from now on: redeem the token for a certificate,
which is kept in ~/.config/onpath ($ONPATH_HOME). Nodes join by themselves, with
onpath node --token.`,
		Example: examples("onpath join onpath1.eyJhIjoi…"),
		Args:    cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			dir := home()
			if dir == "" {
				return badUsage("set $HOME or $ONPATH_HOME: there is no place to keep the certificate")
			}
			cl, err := client.Join(c.Context(), args[0], "", dir)
			if err != nil {
				return err
			}
			defer cl.Close()
			who, err := cl.WhoAmI(c.Context())
			if err != nil {
				return err
			}
			_, err = fmt.Fprintf(c.OutOrStdout(), "joined %s as %s\n", cl.Server(), who.URI())
			return err
		},
	}
}
