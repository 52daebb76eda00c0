package cli

import (
	"net"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/api/auth"
	"github.com/onpath/onpath/api/client"
	"github.com/onpath/onpath/cli/config"
)

// global are the flags of all commands.
type global struct {
	output string
	server string
	tenant string // of commands that name objects of a tenant
	// selector is what -l says, of commands on several objects.
	selector string
}

func (g *global) flags(root *cobra.Command) {
	f := root.PersistentFlags()
	f.StringVarP(&g.output, "output", "o", outTable, "form of the output: table, json or yaml")
	f.StringVar(&g.server, "server", os.Getenv("ONPATH_SERVER"),
		"the server: unix:///path, or https://host:port that was joined (default $ONPATH_SERVER, else the one joined, else this machine's)")
	f.Lookup("server").DefValue = "" // the help says where it comes from
	_ = root.RegisterFlagCompletionFunc("output", func(c *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
		if c.Name() == "get" {
			return append([]string{outWide, outName}, outputs...), cobra.ShellCompDirectiveNoFileComp
		}
		return outputs, cobra.ShellCompDirectiveNoFileComp
	})
}

// flagKinds are flags whose values are names of objects.
var flagKinds = map[string]onpath.Kind{"tenant": onpath.KindTenant, "node": onpath.KindNode, "cloudlet": onpath.KindCloudlet}

// completeFlags completes these flags of a command and of those within.
func (g *global) completeFlags(c *cobra.Command) {
	for name, kind := range flagKinds {
		if c.Flags().Lookup(name) != nil {
			_ = c.RegisterFlagCompletionFunc(name, func(c *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
				return g.completeNames(c, kind), cobra.ShellCompDirectiveNoFileComp
			})
		}
	}
	for _, sub := range c.Commands() {
		g.completeFlags(sub)
	}
}

// tenantFlag is for commands on objects of a tenant.
func (g *global) tenantFlag(c *cobra.Command, usage string) {
	c.Flags().StringVarP(&g.tenant, "tenant", "t", os.Getenv("ONPATH_TENANT"), usage+" (default $ONPATH_TENANT)")
	c.Flags().Lookup("tenant").DefValue = ""
}

// home is where `onpath join` keeps a user's certificate.
func home() string {
	if dir := os.Getenv("ONPATH_HOME"); dir != "" {
		return dir
	}
	dir, err := os.UserConfigDir()
	if err != nil {
		return ""
	}
	return filepath.Join(dir, "onpath")
}

// client connects to the server that is meant.
func (g *global) client() (*client.Client, error) {
	if word := os.Getenv("ONPATH_TOKEN"); word != "" && g.server == "" {
		cl, err := client.Bearer(word)
		if err != nil {
			return nil, badUsage("ONPATH_TOKEN is not a bearer token, or not the whole of it; onpath token create --api prints one")
		}
		return cl, nil
	}
	address, https := strings.CutPrefix(g.server, "https://")
	if scheme, _, ok := strings.Cut(g.server, "://"); ok && !https && scheme != "unix" {
		return nil, badUsage("--server %s: a server is reached by unix:///path or https://host:port", g.server)
	}
	if _, _, err := net.SplitHostPort(g.server); err == nil && !strings.ContainsAny(g.server, "/[") {
		return nil, badUsage("--server %s: a server on a network is named https://%s", g.server, g.server)
	}
	if _, err := os.Stat(g.server); err != nil && g.server != "" && !strings.ContainsAny(g.server, "/:") {
		return nil, badUsage("--server %s: a server is named unix:///path or https://host:port", g.server)
	}
	if !https {
		return client.Default(strings.TrimPrefix(g.server, "unix://"), home(), config.DefaultSocket)
	}
	if !auth.Joined(home()) {
		return nil, notJoined(address)
	}
	h, err := auth.OpenHolder(home())
	if err != nil {
		return nil, err
	}
	if h.Address() != address {
		return nil, notJoined(address)
	}
	return client.Remote(h), nil
}

func notJoined(address string) error {
	e := onpath.Errorf(onpath.CodeForbidden, "this user has not joined the server at %s", address)
	e.Remedy = "ask its operator for a token (onpath token create --user NAME) and run onpath join TOKEN"
	return e
}

// parseKind reads a kind as people write it.
func parseKind(s string) (onpath.Kind, error) {
	if k, ok := onpath.ParseKind(s); ok {
		return k, nil
	}
	if k, ok := shortKinds[strings.ToLower(s)]; ok {
		return k, nil
	}
	if w := kindsElsewhere[strings.ToLower(s)]; w != "" {
		return "", badUsage("there is no kind %q; %s", s, w)
	}
	var names []string
	for _, k := range onpath.Kinds() {
		names = append(names, k.Plural(), strings.ToLower(string(k)))
	}
	if w := onpath.Nearest(s, names); w != "" {
		return "", badUsage("there is no kind %q; did you mean %s?", s, w)
	}
	return "", badUsage("there is no kind %q; kinds are %s", s, strings.Join(kindWords(), ", "))
}

// kindWords are the plurals of all kinds.
func kindWords() (words []string) {
	for _, k := range onpath.Kinds() {
		words = append(words, k.Plural())
	}
	return words
}

// kindLines are the same in sentences of a help, in two lines.
func kindLines() string {
	words := kindWords()
	half := (len(words) + 1) / 2
	return strings.Join(words[:half], ", ") + ",\n" + strings.Join(words[half:], ", ")
}

// key is the object that NAME or TENANT/NAME of a kind means.
func (g *global) key(kind onpath.Kind, name string) (onpath.Key, error) {
	k := onpath.Key{Kind: kind, Name: name}
	if tenant, n, ok := strings.Cut(name, "/"); ok {
		if !kind.Tenanted() {
			return k, badUsage("%q: a %s has no tenant", name, strings.ToLower(string(kind)))
		}
		k.Tenant, k.Name = tenant, n
	} else if kind.Tenanted() {
		k.Tenant = g.tenant
		if k.Tenant == "" {
			k.Tenant = onpath.DefaultTenant
		}
	}
	if k.Name == "" {
		return k, badUsage("a name is missing")
	}
	return k, nil
}

// completeObjects completes KIND and then NAME.
func (g *global) completeObjects(c *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	if len(args) == 0 {
		words := kindWords()
		if c.Name() == "get" {
			words = append(words, allKinds)
		}
		return words, cobra.ShellCompDirectiveNoFileComp
	}
	kind, err := parseKind(args[0])
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return g.completeNames(c, kind), cobra.ShellCompDirectiveNoFileComp
}

// completeNames lists the names of a kind, with the tenant where it is another.
func (g *global) completeNames(c *cobra.Command, kind onpath.Kind) (names []string) {
	cl, err := g.client()
	if err != nil {
		return nil
	}
	defer cl.Close()
	list, _, err := cl.List(c.Context(), kind, g.tenant)
	if err != nil {
		return nil
	}
	for _, o := range list {
		m := o.Meta()
		if name := m.Name; m.Tenant == "" || m.Tenant == g.tenant || g.tenant == "" && m.Tenant == onpath.DefaultTenant {
			names = append(names, name)
		} else {
			names = append(names, m.Tenant+"/"+name)
		}
	}
	return names
}

func (g *global) completeKind(kind onpath.Kind) cobra.CompletionFunc {
	return func(c *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
		if len(args) > 0 {
			return nil, cobra.ShellCompDirectiveDefault
		}
		return g.completeNames(c, kind), cobra.ShellCompDirectiveNoFileComp
	}
}
