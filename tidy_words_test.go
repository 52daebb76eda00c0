package onpath_test

import (
	"go/ast"
	"go/token"
	"os"
	"path/filepath"
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

// coinedInC are further words, with plain ones, in the programs of bpf/, whose names are
// of one field.
var coinedInC = map[string]string{
	"answer": "reply", "answers": "replies", "ask": "query", "asked": "queried", "asks": "queries",
	"banks": "shards", "decide": "classify", "forget": "delete", "heard": "the field's condition", "held": "quota",
	"holdings": "quotas", "hear": "receive", "meet": "mirrors", "news": "what must be done", "pace": "admission, rate",
	"paces": "admissions", "pair": "HA sync", "partner": "HA peer", "place": "slot, index", "recall": "restore",
	"room": "capacity", "settle": "establish", "tell": "send, sync", "tells": "send, sync", "told": "sent", "turn": "change",
}

// allowedInC are names that others gave: authors of functions and the kernel.
var allowedInC = map[string]bool{"ONPATH_ANSWER": true, "BPF_ADJ_ROOM_MAC": true, "BPF_ADJ_ROOM_NET": true, "bpf_skb_adjust_room": true}

var (
	commentInC = regexp.MustCompile(`(?s)/\*.*?\*/`)
	nameInC    = regexp.MustCompile(`[A-Za-z_][A-Za-z0-9_]*`)
)

// TestPlainWordsInC: so are names of bpf/.
func TestPlainWordsInC(t *testing.T) {
	var files []string
	for _, pattern := range []string{"bpf/*.[ch]", "bpf/lib/*.h"} {
		list, err := filepath.Glob(pattern)
		if err != nil || len(list) == 0 {
			t.Fatalf("no files %s (%v)", pattern, err)
		}
		files = append(files, list...)
	}
	for _, file := range files {
		source, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		seen := map[string]bool{}
		base := strings.TrimSuffix(strings.TrimSuffix(filepath.Base(file), ".h"), ".bpf.c")
		code := commentInC.ReplaceAll(source, []byte{' '})
		for _, name := range append(nameInC.FindAllString(string(code), -1), base) {
			for _, word := range strings.Split(strings.ToLower(name), "_") {
				plain := coined[word] + coinedInC[word]
				if plain == "" || seen[name] || allowedInC[name] {
					continue
				}
				seen[name] = true
				t.Errorf("%s: %s: say %s instead of %q", file, name, plain, word)
			}
		}
	}
}
