package cli

import (
	"strings"
	"testing"

	"github.com/onpath/onpath"
)

// TestFollower: every form shows what is there, what changes and what goes.
func TestFollower(t *testing.T) {
	hosts := func(name string) *onpath.Hosts {
		o, err := onpath.New(onpath.KindHosts)
		if err != nil {
			t.Fatal(err)
		}
		o.Meta().Tenant, o.Meta().Name = "acme", name
		return o.(*onpath.Hosts)
	}
	a, b := hosts("a"), hosts("b")
	for output, want := range map[string][]string{
		outTable: {"TENANT", "acme", "acme", "hosts acme/a deleted"},
		outWide:  {"TENANT", "acme", "acme", "hosts acme/a deleted"},
		outName:  {"acme/a", "acme/b"},
		outYAML:  {"name: a", "name: b", "# hosts acme/a deleted"},
		outJSON:  {`"name": "a"`, `"name": "b"`, `"object": null`},
	} {
		var out strings.Builder
		f := (&global{output: output}).follow(&out, onpath.KindHosts)
		if err := f.begin([]onpath.Object{a}); err != nil {
			t.Fatal(err)
		}
		if err := f.show(onpath.KeyOf(b), b); err != nil {
			t.Fatal(err)
		}
		if err := f.show(onpath.KeyOf(a), nil); err != nil {
			t.Fatal(err)
		}
		rest := out.String()
		for _, w := range want {
			_, after, ok := strings.Cut(rest, w)
			if !ok {
				t.Errorf("%s: no %q, or not in its place, in\n%s", output, w, out.String())
			}
			rest = after
		}
	}
}
