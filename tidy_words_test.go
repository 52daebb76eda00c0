package onpath_test

import (
	"fmt"
	"go/ast"
	"go/token"
	"maps"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
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

// coinedInGo is how often the words of coinedInC stand in the names of functions, types,
// fields, constants and variables that a folder of nodes and servers declares. The numbers may
// only fall.
const coinedInGo = `
.: place 7, told 6
accel: answer 8
api: ask 7, forget 4, held 4, place 4
cli: tell 4
control: ask 10, asked 3, decide 4, forget 5, held 7, settle 3, tell 7, told 3
datapath: forget 5, tell 5, turn 4
engine: answer 6
node: ask 9, asked 4, forget 6, hear 5, held 9, tell 12, told 4, turn 4
plan: answer 5, answers 6, place 8, turn 4
runtime: ask 4
signal: ask 4, room 4
store: room 9
`

// outsideOfC are words of coinedInC that name something else elsewhere: chains have pairs of
// instances, which are each other's partners.
var outsideOfC = []string{"pair", "partner"}

// TestPlainWordsInGo: the two sides of the eBPF programs' maps speak one language.
func TestPlainWordsInGo(t *testing.T) {
	most := map[string]int{} // by folder and word
	for _, line := range strings.Split(strings.TrimSpace(coinedInGo), "\n") {
		folder, words, _ := strings.Cut(line, ": ")
		for _, w := range strings.Split(words, ", ") {
			word, n, _ := strings.Cut(w, " ")
			most[folder+" "+word], _ = strconv.Atoi(n)
		}
	}
	files, fset := productFiles(t)
	found := map[string][]string{}
	for _, f := range files {
		folder, _, _ := strings.Cut(f.dir, "/")
		for _, id := range declaredNames(f.ast) {
			for _, word := range camel.FindAllString(id.Name, -1) {
				if word = strings.ToLower(word); coinedInC[word] != "" && !slices.Contains(outsideOfC, word) {
					key := folder + " " + word
					found[key] = append(found[key], fset.Position(id.Pos()).String()+": "+id.Name)
				}
			}
		}
	}
	for _, key := range slices.Sorted(maps.Keys(found)) {
		_, word, _ := strings.Cut(key, " ")
		ratchet(t, fmt.Sprintf("names in %s (say %s)", strings.Replace(key, " ", "/ with the word ", 1), coinedInC[word]), most[key], slack, found[key])
	}
}

// declaredNames are those that a file declares outside the bodies of functions.
func declaredNames(f *ast.File) (names []*ast.Ident) {
	for _, d := range f.Decls {
		if fn, ok := d.(*ast.FuncDecl); ok {
			names = append(names, fn.Name)
			continue
		}
		ast.Inspect(d, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.FuncLit, *ast.FuncType:
				return false
			case *ast.TypeSpec:
				names = append(names, n.Name)
			case *ast.ValueSpec:
				names = append(names, n.Names...)
			case *ast.Field:
				names = append(names, n.Names...)
			}
			return true
		})
	}
	return names
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

// plainComments are words in comments that make a reader look back, and what to say. The
// numbers are of nodes and servers, with their programs, and may only fall.
var plainComments = []struct {
	words *regexp.Regexp
	say   string
	most  int
}{
	{regexp.MustCompile(`(?i)\bthat one\b`), "the noun", 32},
	{regexp.MustCompile(`(?i)\banew\b`), "again", 86},
	{regexp.MustCompile(`(?i)\bwhoever\b`), "the noun, or a caller", 64},
	{regexp.MustCompile(`(?i)\bsomebody\b`), "the noun, or a user", 56},
	{regexp.MustCompile(`(?i)\bthose that\b`), "the noun", 159},
}

// longSentences is how many files have comments with more than sentenceWords words a sentence.
const (
	longSentences = 16
	sentenceWords = 22
)

// TestPlainComments: a comment is understood at the first reading.
func TestPlainComments(t *testing.T) {
	found := make([][]string, len(plainComments))
	var long []string
	for file, comments := range commentsOfProduct(t) {
		words, sentences := 0, 0
		for _, text := range comments {
			for i, p := range plainComments {
				for range p.words.FindAllString(text, -1) {
					first, _, _ := strings.Cut(text, "\n")
					found[i] = append(found[i], file+": "+first)
				}
			}
			words += len(strings.Fields(text))
			sentences += max(1, len(sentenceEnd.FindAllString(text, -1)))
		}
		if words > sentenceWords*sentences {
			long = append(long, fmt.Sprintf("%s: %d", file, words/sentences))
		}
	}
	for i, p := range plainComments {
		slices.Sort(found[i])
		ratchet(t, fmt.Sprintf("comments with %q (say %s)", p.words, p.say), p.most, slack, found[i])
	}
	slices.Sort(long)
	ratchet(t, fmt.Sprintf("files with more than %d words a sentence in comments (cut them)", sentenceWords), longSentences, slack, long)
}

var sentenceEnd = regexp.MustCompile(`[.!?](\s|$)`)

// commentsOfProduct are the comments of nodes and servers, and of the eBPF programs, by file.
func commentsOfProduct(t *testing.T) map[string][]string {
	t.Helper()
	files, _ := productFiles(t)
	all := map[string][]string{}
	for _, f := range files {
		for _, c := range f.ast.Comments {
			name := path.Join(f.dir, f.name)
			all[name] = append(all[name], c.Text())
		}
	}
	for _, pattern := range []string{"bpf/*.[ch]", "bpf/lib/*.h"} {
		names, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range names {
			text, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			all[name] = commentInC.FindAllString(string(text), -1)
		}
	}
	return all
}
