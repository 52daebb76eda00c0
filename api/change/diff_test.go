package change

import (
	"slices"
	"strconv"
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

// TestDiffOfLists shows an element that goes or comes as such, not as a change of all
// that follow it.
func TestDiffOfLists(t *testing.T) {
	element := func(pairs ...string) any {
		m := map[string]any{}
		for i := 0; i < len(pairs); i += 2 {
			m[pairs[i]] = pairs[i+1]
		}
		return m
	}
	hop, bump, slow := element("function", "hop", "drain", "1s"), element("function", "bump"), element("function", "hop", "drain", "9s")
	many := make([]any, 2000)
	for i := range many {
		many[i] = element("function", strconv.Itoa(i))
	}
	for name, c := range map[string]struct {
		old, new []any
		want     []string
	}{
		"the first goes":         {[]any{hop, bump}, []any{bump}, []string{`f[0].drain "1s" to `, `f[0].function "hop" to `}},
		"the last goes":          {[]any{hop, bump}, []any{hop}, []string{`f[1].function "bump" to `}},
		"one comes first":        {[]any{hop}, []any{bump, hop}, []string{`f[0].function  to "bump"`}},
		"one changes":            {[]any{hop, bump}, []any{slow, bump}, []string{`f[0].drain "1s" to "9s"`}},
		"one comes, one changes": {[]any{hop}, []any{bump, slow}, []string{`f[0].function  to "bump"`, `f[1].drain "1s" to "9s"`}},
		"another":                {[]any{bump}, []any{element("function", "nat")}, []string{`f[0].function "bump" to "nat"`}},
		"values":                 {[]any{"a", "b", "c"}, []any{"a", "c"}, []string{`f[1] "b" to `}},
		"all go":                 {[]any{"a"}, []any{}, []string{`f[0] "a" to `}},
		"too many to align":      {many, many[1:1900], []string{`f[0].function "0" to "1"`}},
	} {
		var got []wire.FieldChange
		compareFields("f", c.old, c.new, &got)
		var words []string
		for _, g := range got {
			words = append(words, g.Field+" "+string(g.Old)+" to "+string(g.New))
		}
		if name == "too many to align" {
			words = words[:1]
		}
		if !slices.Equal(words, c.want) {
			t.Errorf("%s: %q, want %q", name, words, c.want)
		}
	}
}
