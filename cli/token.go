package cli

import (
	"cmp"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/api/auth"
	"github.com/onpath/onpath/api/client"
	"github.com/onpath/onpath/api/wire"
	"github.com/onpath/onpath/cli/render"
	"github.com/onpath/onpath/cli/table"
)

func newToken(g *global) *cobra.Command {
	c := group("token", "Let nodes and users of other machines join", groupRun, newTokenCreate(g), newTokenList(g), newTokenDelete(g),
		newTokenResume(g))
	c.Long = "Let nodes and users of other machines join. A token is one word that carries the\nserver's address, the hash of its " +
		"certificate authority, and a secret."
	return c
}

func newTokenCreate(g *global) *cobra.Command {
	var node, user, viewer, operator, address string
	var bearer bool
	var kinds []string
	var ttl time.Duration
	var uses int
	var cloudlet string
	var uplinks []string
	c := &cobra.Command{
		Use:                   "create [--node NAME | --user NAME | --viewer NAME | …]",
		DisableFlagsInUseLine: true, Short: "Make a join token",
		Long: `Make a join token, and write it to standard output. Without a name it is for any
node, which then names itself. A node gets the cloudlet and the uplinks that its
token is for; one whose own configuration asks for more waits until the operator
accepts it (onpath node accept).

With --api it makes a bearer token for scripts: no one joins by it, each request
shows it (ONPATH_TOKEN, or the header Authorization: Bearer WORD). The server keeps
its hash, and onpath token delete takes it back.`,
		Example: examples("onpath token create --node n1 --cloudlet fra1",
			"onpath token create --node fra1-gw1 --cloudlet fra1 --uplink eth0 --uplink eth1",
			"onpath token create --user alice -t acme --ttl 24h",
			"onpath token create --api --viewer grafana -t acme --kinds chains,instances --ttl 720h"),
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			r := auth.TokenRequest{Role: auth.RoleNode, Name: node, TTL: onpath.Duration(ttl), Uses: uses, Address: address,
				Cloudlet: cloudlet, Uplinks: uplinks}
			r.API = bearer
			for _, word := range kinds {
				k, ok := onpath.ParseKind(word)
				if !ok {
					return badUsage("--kinds: there is no kind %q", word)
				}
				r.Kinds = append(r.Kinds, k)
			}
			switch {
			case viewer != "" && (node != "" || user != "" || operator != ""):
				return badUsage("a token is for one: give --node, --user, --viewer or --operator")
			case viewer != "":
				r.Role, r.Name, r.Tenant = auth.RoleViewer, viewer, cmp.Or(g.tenant, onpath.DefaultTenant)
			case node != "" && user != "" || node != "" && operator != "" || user != "" && operator != "":
				return badUsage("a token is for one: give --node, --user, --viewer or --operator")
			case user != "":
				r.Role, r.Name, r.Tenant = auth.RoleUser, user, g.tenant
				if r.Tenant == "" {
					r.Tenant = onpath.DefaultTenant
				}
			case operator != "":
				r.Role, r.Name = auth.RoleOperator, operator
			}
			if c.Flags().Changed("ttl") && ttl <= 0 || c.Flags().Changed("uses") && uses <= 0 {
				return badUsage("--ttl and --uses are above 0: a token that nobody can use is none")
			}
			cl, err := g.client()
			if err != nil {
				return err
			}
			defer cl.Close()
			t, err := cl.CreateToken(c.Context(), r)
			if err != nil {
				return err
			}
			return g.print(c, t, func(w io.Writer) error {
				_, err := fmt.Fprintln(w, t.Word)
				return err
			})
		},
	}
	f := c.Flags()
	f.StringVar(&node, "node", "", "for the node of this name")
	f.StringVar(&user, "user", "", "for a user of this name, of the tenant given with -t")
	f.StringVar(&viewer, "viewer", "", "for a viewer of this name, of the tenant given with -t: reads only")
	f.BoolVar(&bearer, "api", false, "make a bearer token for scripts")
	f.StringSliceVar(&kinds, "kinds", nil, "kinds that a bearer token is for (default all of the role)")
	f.StringVar(&operator, "operator", "", "for an operator of this name")
	f.StringVar(&cloudlet, "cloudlet", "", "of the node (default \"default\")")
	f.StringArrayVar(&uplinks, "uplink", nil, "device that the node may have as an uplink, or any (default none)")
	f.DurationVar(&ttl, "ttl", 0, "how long it can be used (default 1h)")
	f.IntVar(&uses, "uses", 0, "how often it can be used (default once)")
	f.StringVar(&address, "address", "", "HOST:PORT at which the server is reached (default its own choice)")
	g.tenantFlag(c, "tenant of the user or viewer")
	return c
}

func newTokenList(g *global) *cobra.Command {
	return &cobra.Command{
		Use: "list", Short: "Show the tokens that can still be used",
		Example: examples("onpath token list"),
		Args:    cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			cl, err := clientToPrint(g)
			if err != nil {
				return err
			}
			defer cl.Close()
			list, err := cl.Tokens(c.Context())
			if err != nil {
				return err
			}
			return g.print(c, list, func(w io.Writer) error {
				t := table.New("ID", "FOR", "NAME", "TENANT", "KINDS", ">USES", ">EXPIRES IN")
				for _, i := range list {
					kinds, uses := "", strconv.Itoa(i.Uses)
					if i.API {
						kinds, uses = "all", "api"
					}
					for n, k := range i.Kinds {
						if n == 0 {
							kinds = ""
						}
						kinds += strings.Repeat(",", min(n, 1)) + string(k)
					}
					t.Row(i.ID, string(i.Role), i.Name, i.Tenant, kinds, uses, render.Age(time.Now(), i.Expires))
				}
				return t.Write(w)
			})
		},
	}
}

func newTokenDelete(g *global) *cobra.Command {
	return &cobra.Command{
		Use: "delete ID", Short: "Make a token unusable",
		Example: examples("onpath token delete k3jd9x2a"),
		Args:    cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			cl, err := g.client()
			if err != nil {
				return err
			}
			defer cl.Close()
			if err := cl.DeleteToken(c.Context(), args[0]); err != nil {
				return err
			}
			_, err = fmt.Fprintf(c.OutOrStdout(), "token %s deleted\n", args[0])
			return err
		},
	}
}

func newTokenResume(g *global) *cobra.Command {
	all := false
	c := &cobra.Command{
		Use: "resume [ID | IDENTITY]…", Short: "Accept users and bearer tokens of a restored backup again",
		Long: `Accept users and bearer tokens of a restored backup again: some may have been revoked
after the backup, so a restored server refuses them until you say so. Without names,
those that are refused are listed.`,
		Example: examples("onpath token resume", "onpath token resume onpath:user/acme/alice k3jd9x2a", "onpath token resume --all"),
		Args:    cobra.ArbitraryArgs,
		RunE: func(c *cobra.Command, args []string) error {
			if all && len(args) > 0 {
				return badUsage("give names, or --all")
			}
			cl, err := g.client()
			if err != nil {
				return err
			}
			defer cl.Close()
			if !all && len(args) == 0 {
				names, err := client.KeysOf(cl).Suspended(c.Context())
				for _, name := range names {
					fmt.Fprintln(c.OutOrStdout(), name)
				}
				return err
			}
			names, err := client.KeysOf(cl).Resume(c.Context(), wire.Resume{Names: args, All: all})
			for _, name := range names {
				fmt.Fprintf(c.OutOrStdout(), "%s is accepted\n", name)
			}
			return err
		},
	}
	c.Flags().BoolVar(&all, "all", false, "all that are refused")
	return c
}

func newRevoke(g *global) *cobra.Command {
	return &cobra.Command{
		Use: "revoke IDENTITY", Short: "Refuse all certificates of a node or user from now on", GroupID: groupRun,
		Long: "Refuse all certificates of a node or user from now on. Identities are\nonpath:node/NAME, " +
			"onpath:user/TENANT/NAME,\nonpath:viewer/TENANT/NAME and " +
			"onpath:operator/NAME. Bearer tokens of them go, too.",
		Example: examples("onpath revoke onpath:node/fra1-gw1", "onpath revoke onpath:user/acme/alice"),
		Args:    cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			cl, err := g.client()
			if err != nil {
				return err
			}
			defer cl.Close()
			if err := cl.Revoke(c.Context(), args[0]); err != nil {
				return err
			}
			_, err = fmt.Fprintf(c.OutOrStdout(), "%s is revoked\n", args[0])
			return err
		},
	}
}

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
