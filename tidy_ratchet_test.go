package onpath_test

import (
	"fmt"
	"go/ast"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"
)

// The ratchets: what there may be at most of something that makes the next change
// dearer. Each number may only fall. Whoever lowers what is there lowers the number.
const (
	mostLong     = 96 // lines of more than longLine characters, a tab being four
	mostCompared = 38 // comparisons with the text of a message
	mostCircles  = 0  // pairs of headers of the eBPF program that need each other

	longLine = 140
)

// unshipped are folders of which nothing is part of a node or a server: the exams, the
// models, the benchmarks, the lab, the demonstration.
var unshipped = []string{"datapath/datapathtest", "datapath/fake", "runtime/runtimetest", "runtime/fake", "store/storetest", "store/mem",
	"bench", "lab", "demo", "test", "cli/reference", "internal/testprogram", "internal/bpfobject/functionbench", "internal/bpfobject/spoilt"}

// ratchet fails where more is found than there may be, and says where less is.
func ratchet(t *testing.T, what string, most, slack int, found []string) {
	t.Helper()
	switch {
	case len(found) > most+slack:
		t.Errorf("%d %s, and there may be %d at most:\n%s", len(found), what, most, strings.Join(found, "\n"))
	case len(found) < most:
		t.Logf("%d %s: lower the number from %d", len(found), what, most)
	}
}

// productFiles are the Go files of nodes and servers.
func productFiles(t *testing.T) (files []goFile, fset *token.FileSet) {
	t.Helper()
	all, fset := parseAll(t)
	for _, f := range all {
		if !strings.HasSuffix(f.name, "_test.go") && !withinAny(f.dir, unshipped) {
			files = append(files, f)
		}
	}
	return files, fset
}

func TestLongLines(t *testing.T) {
	files, _ := productFiles(t)
	var names []string
	for _, f := range files {
		names = append(names, filepath.Join(f.dir, f.name))
	}
	for _, pattern := range []string{"bpf/*.[ch]", "bpf/lib/*.h", "sdk/*.h", "functions/*/*.c"} {
		more, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		names = append(names, more...)
	}
	var long []string
	for _, name := range names {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		for i, line := range strings.Split(string(text), "\n") {
			if n := utf8.RuneCountInString(strings.ReplaceAll(line, "\t", "    ")); n > longLine {
				long = append(long, fmt.Sprintf("%s:%d: %d", name, i+1, n))
			}
		}
	}
	ratchet(t, fmt.Sprintf("lines of more than %d characters", longLine), mostLong, slack, long)
}

// cutting are the functions by which one text is looked for in another, of packages
// strings and bytes.
var cutting = []string{"Contains", "ContainsAny", "Count", "HasPrefix", "HasSuffix", "Index", "LastIndex", "Cut", "CutPrefix", "CutSuffix", "EqualFold",
	"Split", "Fields", "TrimPrefix", "TrimSuffix", "Compare"}

// matching begin the names of the methods by which a regular expression looks for itself.
var matching = []string{"Match", "Find", "ReplaceAll"}

// TestMessagesAreNoProtocol: what one part tells another stands in a field or a code,
// not in words that are for people.
func TestMessagesAreNoProtocol(t *testing.T) {
	files, fset := productFiles(t)
	var found []string
	for _, f := range files {
		for _, d := range f.ast.Decls {
			kept := messagesKept(d)
			isWords := func(e ast.Expr) bool { return hasWords(e, kept) }
			ast.Inspect(d, func(n ast.Node) bool {
				bad := false
				switch n := n.(type) {
				case *ast.BinaryExpr:
					bad = (n.Op == token.EQL || n.Op == token.NEQ) &&
						(isMessage(n.X) && isText(n.Y) || isMessage(n.Y) && isText(n.X) || isWords(n.X) && !isEmpty(n.Y) || isWords(n.Y) && !isEmpty(n.X))
				case *ast.SwitchStmt:
					bad = n.Tag != nil && (isMessage(n.Tag) || isWords(n.Tag))
				case *ast.CallExpr:
					s, ok := n.Fun.(*ast.SelectorExpr)
					if !ok || !slices.ContainsFunc(n.Args, func(e ast.Expr) bool { return isMessage(e) || isWords(e) }) {
						break
					}
					bad = (isNamed(s.X, "strings") || isNamed(s.X, "bytes")) && slices.Contains(cutting, s.Sel.Name) ||
						slices.ContainsFunc(matching, func(m string) bool { return strings.HasPrefix(s.Sel.Name, m) }) ||
						isNamed(s.X, "slices") && s.Sel.Name == "Contains"
				}
				if bad {
					found = append(found, fset.Position(n.Pos()).String())
				}
				return true
			})
		}
	}
	ratchet(t, "comparisons with a message's text (say it by a code, a field or a type of error)", mostCompared, slack, found)
}

// messagesKept are the variables of a declaration that are made from the text of an error.
func messagesKept(d ast.Decl) map[string]bool {
	kept := map[string]bool{}
	ast.Inspect(d, func(n ast.Node) bool {
		if a, ok := n.(*ast.AssignStmt); ok && len(a.Lhs) == len(a.Rhs) {
			for i, e := range a.Rhs {
				id, ok := a.Lhs[i].(*ast.Ident)
				if call, isCall := e.(*ast.CallExpr); ok && isCall && hasWords(call, nil) && !isPrinted(call) {
					kept[id.Name] = true
				}
			}
		}
		return true
	})
	return kept
}

// isPrinted: the text of an error becomes a part of another one.
func isPrinted(call *ast.CallExpr) bool {
	s, ok := call.Fun.(*ast.SelectorExpr)
	return ok && !isNamed(s.X, "strings") && s.Sel.Name != "Error"
}

// hasWords: the text of an error is in e, or one of the variables that keep it.
func hasWords(e ast.Expr, kept map[string]bool) bool {
	switch e := e.(type) {
	case *ast.Ident:
		return kept[e.Name]
	case *ast.CallExpr:
		if s, ok := e.Fun.(*ast.SelectorExpr); ok && s.Sel.Name == "Error" && len(e.Args) == 0 {
			return true
		} else if ok && isNamed(s.X, "strings") {
			return slices.ContainsFunc(e.Args, func(a ast.Expr) bool { return hasWords(a, kept) })
		}
	}
	return false
}

func isEmpty(e ast.Expr) bool {
	lit, ok := e.(*ast.BasicLit)
	return ok && lit.Value == `""`
}

func isNamed(e ast.Expr, name string) bool {
	id, ok := e.(*ast.Ident)
	return ok && id.Name == name
}

// isMessage: something's field Message.
func isMessage(e ast.Expr) bool {
	s, ok := e.(*ast.SelectorExpr)
	return ok && s.Sel.Name == "Message"
}

// isText: what a message is compared with, unless that only asks whether there is one,
// or whether it has changed.
func isText(e ast.Expr) bool {
	return !isEmpty(e) && !isMessage(e)
}

// TestHeadersHaveNoCircles: a header of the eBPF program that declares a function which
// a header that builds on it defines needs that one, too.
func TestHeadersHaveNoCircles(t *testing.T) {
	headers, err := filepath.Glob("bpf/lib/*.h")
	if err != nil || len(headers) == 0 {
		t.Fatalf("%d headers: %v", len(headers), err)
	}
	declared := regexp.MustCompile(`(?m)^[a-z_][^;{}()=#]*?\b(\w+)\([^;{}]*\)\s*;`)
	defined := regexp.MustCompile(`(?m)^[a-z_][^;{}()=#]*?\b(\w+)\([^;{}]*\)\s*\n?\{`)
	include := regexp.MustCompile(`(?m)^#include "(?:lib/)?(\w+\.h)"`)
	texts, home := map[string]string{}, map[string]string{}
	for _, h := range headers {
		text, err := os.ReadFile(h)
		if err != nil {
			t.Fatal(err)
		}
		name := filepath.Base(h)
		texts[name] = string(text)
		for _, m := range defined.FindAllStringSubmatch(string(text), -1) {
			home[m[1]] = name
		}
	}
	needs := map[string][]string{}
	for name, text := range texts {
		for _, m := range include.FindAllStringSubmatch(text, -1) {
			needs[name] = append(needs[name], m[1])
		}
		for _, m := range declared.FindAllStringSubmatch(text, -1) {
			if h := home[m[1]]; h != "" && h != name {
				needs[name] = append(needs[name], h)
			}
		}
	}
	var circles []string
	for name := range needs {
		for _, other := range needs[name] {
			if name < other && reaches(needs, other, name, map[string]bool{}) {
				circles = append(circles, name+" and "+other)
			}
		}
	}
	slices.Sort(circles)
	ratchet(t, "circles of headers", mostCircles, 0, slices.Compact(circles))
}

func reaches(needs map[string][]string, from, to string, seen map[string]bool) bool {
	if from == to {
		return true
	}
	seen[from] = true
	return slices.ContainsFunc(needs[from], func(n string) bool { return !seen[n] && reaches(needs, n, to, seen) })
}
