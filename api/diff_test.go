package api

import (
	"strings"
	"testing"

	"github.com/onpath/onpath/api/wire"
)

// TestDiffOfLongText shows what differs, not what long texts begin with.
func TestDiffOfLongText(t *testing.T) {
	lines := func(l ...string) string { return strings.Repeat("same\n", 30) + strings.Join(l, "\n") + "\nend\n" }
	long := strings.Repeat("é", 100)
	for name, c := range map[string]struct{ old, new, field, was, is string }{
		"short":             {"a", "b", "f", `"a"`, `"b"`},
		"a line":            {lines("x", "y"), lines("z", "y"), "f, line 31", `"x"`, `"z"`},
		"a line more":       {lines("x"), lines("x", "y"), "f, line 32", "", `"y"`},
		"a line less":       {lines("x", "y"), lines("y"), "f, line 31", `"x"`, ""},
		"in a long line":    {long + "x", long + "y", "f", `"…` + strings.Repeat("é", 10) + `x"`, `"…` + strings.Repeat("é", 10) + `y"`},
		"a line at the end": {long + "\nx", long + "\nx\nx", "f, line 3", "", `"x"`},
	} {
		var got []wire.FieldChange
		compareFields("f", c.old, c.new, &got)
		if len(got) != 1 || got[0].Field != c.field || string(got[0].Old) != c.was || string(got[0].New) != c.is {
			t.Errorf("%s: %s", name, got)
		}
	}
}
