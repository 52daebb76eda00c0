package onpath_test

import (
	"go/ast"
	"go/token"
	"regexp"
	"strings"
	"testing"
)

// coined are words that have a plain one, by which things are named here.
var coined = map[string]string{
	"astray": "misled, orphan", "bank": "shard", "bed": "testbed", "beside": "the peer's", "blind": "stale",
	"conceal": "redact", "emerge": "egress", "ending": "exit hook", "endings": "exit hook", "gate": "gateway", "gates": "gateways",
	"judge": "check, evaluate", "mill": "generator", "of2": "a name", "make1": "a name", "proof": "verification",
	"recall": "restore", "remember": "save, record", "seeing": "trace, preview",
	"story": "recorder, decisions", "stray": "orphan", "town": "testbed, site", "turned": "reversed",
	"unheard": "no report", "uproot": "remove", "veil": "redact",
}

// camel cuts a name into its words.
var camel = regexp.MustCompile(`[A-Z]+[a-z0-9]*|[a-z0-9]+`)

// TestPlainWords: names of Go and of files are the field's words.
func TestPlainWords(t *testing.T) {
	files, fset := parseAll(t)
	for _, f := range files {
		seen := map[string]bool{}
		check := func(name string, at token.Pos) {
			for _, word := range camel.FindAllString(name, -1) {
				if plain := coined[strings.ToLower(word)]; plain != "" && !seen[name] {
					seen[name] = true
					t.Errorf("%s: %s: say %s instead of %q", fset.Position(at), name, plain, word)
				}
			}
		}
		check(strings.TrimSuffix(f.name, ".go"), f.ast.Package)
		ast.Inspect(f.ast, func(n ast.Node) bool {
			if id, ok := n.(*ast.Ident); ok {
				check(id.Name, id.Pos())
			}
			return true
		})
	}
}
