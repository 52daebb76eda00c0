package cli

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"slices"

	"github.com/spf13/cobra"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/cli/table"
)

// versions are those of all parts of a network.
type versions struct {
	Client string            `json:"client"`
	Server string            `json:"server,omitempty"`
	API    string            `json:"api,omitempty"`
	Nodes  map[string]string `json:"nodes,omitempty"`
}

func newVersion(g *global) *cobra.Command {
	client := false
	c := &cobra.Command{
		Use: "version", Short: "Show the versions of this program, the server and the nodes", GroupID: groupAround,
		Long: `Show the versions of this program, of the server that it speaks to, and of the
agents of all nodes. A server that does not answer is an error (exit code 4);
--client asks none.`,
		Example: examples("onpath version", "onpath version --client", "onpath version -o json"),
		Args:    cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if err := g.checkOutput(); err != nil {
				return err
			}
			v := versions{Client: versionString()}
			var lacking error
			if !client {
				lacking = g.askVersions(c, &v)
			}
			if err := g.print(c, v, v.write); err != nil {
				return err
			}
			return lacking
		},
	}
	c.Flags().BoolVar(&client, "client", false, "only of this program; ask no server")
	return c
}

func (g *global) askVersions(c *cobra.Command, v *versions) error {
	cl, err := g.client()
	if err != nil {
		return err
	}
	defer cl.Close()
	s, err := cl.Version(c.Context())
	if err != nil {
		return err
	}
	v.Server, v.API, v.Nodes = s.Version, s.API, map[string]string{}
	nodes, _, err := cl.List(c.Context(), onpath.KindNode, "")
	if onpath.CodeOf(err) == onpath.CodeForbidden { // a tenant's user sees none
		return nil
	}
	for _, o := range nodes {
		v.Nodes[o.Meta().Name] = o.(*onpath.Node).Status.Version
	}
	return err
}

func (v versions) write(w io.Writer) error {
	t := table.New("PART", "VERSION")
	t.Row("client", v.Client)
	if v.Server != "" {
		t.Row("server", fmt.Sprintf("%s (%s)", v.Server, v.API))
	}
	for _, name := range slices.Sorted(maps.Keys(v.Nodes)) {
		t.Row("node "+name, cmp.Or(v.Nodes[name], "-"))
	}
	return t.Write(w)
}
