package onpath_test

import (
	"fmt"
	"go/ast"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

const (
	mostRootTypes   = 313
	mostPacketParts = 102 // fields of struct pkt
	mostLongFuncs   = 12  // functions of more than longFunc lines
	mostOneWord     = 60  // of a hundred names of functions and methods
	mostFiles       = 30  // Go files of a folder, tests apart

	longFunc = 70

	// slack is what a count may be over its number, so that changes made side by side do not
	// stop each other.
	slack = 3
)

// manyFiles are the folders of more than mostFiles files. The numbers may only fall.
var manyFiles = map[string]int{
	".":                     67,
	"bench":                 43,
	"cli":                   67,
	"datapath/datapathtest": 38,
	"datapath/ebpf":         45,
	"plan":                  62,
}

// rawClocks are the uses of the machine's clock outside the files clock.go, by the folder at
// the top. The numbers may only fall.
var rawClocks = map[string]int{
	"accel":     3,
	"api":       41,
	"cli":       48,
	"control":   17,
	"datapath":  48,
	"engine":    14,
	"functions": 5,
	"internal":  16,
	"measure":   8,
	"node":      44,
	"runtime":   56,
	"store":     16,
}

// ratchetNumber fails where a number is over what it may be, and says where it is under it.
func ratchetNumber(t *testing.T, what string, most, is, slack int, do string) {
	t.Helper()
	switch {
	case is > most+slack:
		t.Errorf("%s: %d, and there may be %d at most: %s", what, is, most, do)
	case is < most:
		t.Logf("%s: lower the number from %d to %d", what, most, is)
	}
}

// TestFieldsOfPacket: struct pkt is one scratch space that all stages of the program write.
func TestFieldsOfPacket(t *testing.T) {
	text, err := os.ReadFile("bpf/lib/packet.h")
	if err != nil {
		t.Fatal(err)
	}
	_, body, ok := strings.Cut(commentInC.ReplaceAllString(string(text), ""), "struct pkt {")
	body, _, ended := strings.Cut(body, "\n};")
	if !ok || !ended {
		t.Fatal("bpf/lib/packet.h has no struct pkt")
	}
	fields := strings.Count(body, ";") - strings.Count(body, "}") + strings.Count(body, ",")
	ratchetNumber(t, "bpf/lib/packet.h: fields of struct pkt", mostPacketParts, fields, 0,
		"give it to the struct of what one stage decides, or pass it as a parameter")
}

func TestLongFunctions(t *testing.T) {
	files, fset := productFiles(t)
	var long []string
	for _, f := range files {
		for _, d := range f.ast.Decls {
			if fn, ok := d.(*ast.FuncDecl); ok {
				if n := fset.Position(fn.End()).Line - fset.Position(fn.Pos()).Line + 1; n > longFunc {
					long = append(long, fmt.Sprintf("%s: %s: %d", fset.Position(fn.Pos()), fn.Name.Name, n))
				}
			}
		}
	}
	ratchet(t, fmt.Sprintf("functions of more than %d lines (take a step of it out, with a name)", longFunc), mostLongFuncs, slack, long)
}

// TestOneWordNames: a name of verb and noun is found by a search; "add" is not.
func TestOneWordNames(t *testing.T) {
	files, _ := productFiles(t)
	one, all, often := 0, 0, map[string]int{}
	for _, f := range files {
		for _, d := range f.ast.Decls {
			fn, ok := d.(*ast.FuncDecl)
			if !ok || fn.Name.Name == "init" || fn.Name.Name == "main" {
				continue
			}
			all++
			if len(camel.FindAllString(fn.Name.Name, -1)) == 1 {
				one++
				often[fn.Name.Name]++
			}
		}
	}
	names := slices.SortedFunc(maps.Keys(often), func(a, b string) int { return often[b] - often[a] })
	ratchetNumber(t, "names of functions of one word, of a hundred", mostOneWord, one*100/all, 0,
		fmt.Sprintf("name them by verb and noun; the most frequent are %v", names[:20]))
}

func TestFilesOfFolders(t *testing.T) {
	files, _ := parseAll(t)
	count := map[string]int{}
	for _, f := range files {
		if !strings.HasSuffix(f.name, "_test.go") {
			count[f.dir]++
		}
	}
	for _, dir := range slices.Sorted(maps.Keys(count)) {
		if most := manyFiles[dir]; most > 0 || count[dir] > mostFiles {
			ratchetNumber(t, dir+"/: Go files", max(mostFiles, most), count[dir], slack, "a group of them that belongs together is a package of its own")
		}
	}
}

var clockNames = []string{"Now", "Since", "Until", "Sleep", "After", "AfterFunc", "Tick", "NewTicker", "NewTimer"}

// TestRawClocks: time is a parameter, so that tests need not wait. A package that reads the
// machine's clock does so in its file clock.go.
func TestRawClocks(t *testing.T) {
	files, fset := productFiles(t)
	found := map[string][]string{}
	for _, f := range files {
		if f.name == "clock.go" || f.name == "clocks.go" {
			continue
		}
		top, _, _ := strings.Cut(f.dir, "/")
		ast.Inspect(f.ast, func(n ast.Node) bool {
			if s, ok := n.(*ast.SelectorExpr); ok && slices.Contains(clockNames, s.Sel.Name) && isNamed(s.X, "time") {
				found[top] = append(found[top], fset.Position(s.Pos()).String())
			}
			return true
		})
	}
	for _, top := range slices.Sorted(maps.Keys(found)) {
		ratchet(t, "raw clocks in "+top+"/ (take the clock as a parameter, or read it in the package's clock.go)", rawClocks[top], slack, found[top])
	}
}

// The files of the module that comments may name.
var fileInComment = regexp.MustCompile(`[\w./-]*\b\w+\.(go|md|ts|bpf\.c)\b`)

// TestFilesInComments: a comment that names a file names one that is there.
func TestFilesInComments(t *testing.T) {
	files, fset := parseAll(t)
	known := knownFiles(t)
	for _, f := range files {
		for _, g := range f.ast.Comments {
			for _, c := range g.List {
				for _, name := range fileInComment.FindAllString(c.Text, -1) {
					if !known[strings.TrimLeft(name, "./")] && !strings.Contains(name, "github.com") {
						t.Errorf("%s: there is no file %s: name the file, or the function, that is meant", fset.Position(c.Pos()), name)
					}
				}
			}
		}
	}
}

// TestDocsNameWhatTheyDocument: a doc that begins with a name begins with that of what it
// documents.
func TestDocsNameWhatTheyDocument(t *testing.T) {
	files, fset := parseAll(t)
	check := func(name string, doc *ast.CommentGroup) {
		if doc == nil {
			return
		}
		text := doc.Text()
		if strings.Contains(text, "Deprecated:") {
			t.Errorf("%s: %s is deprecated: delete it", fset.Position(doc.Pos()), name)
		}
		first := firstWord.FindStringSubmatch(text)
		if first == nil || first[1] == name {
			return
		}
		if isName := first[1][0] >= 'a' && first[1][0] <= 'z' || len(camel.FindAllString(first[1], -1)) > 1 && strings.ToUpper(first[1]) != first[1]; isName {
			t.Errorf("%s: the doc of %s begins with %q: begin with the name, or with a capital letter", fset.Position(doc.Pos()), name, first[1])
		}
	}
	for _, f := range files {
		for _, d := range f.ast.Decls {
			switch d := d.(type) {
			case *ast.FuncDecl:
				check(d.Name.Name, d.Doc)
			case *ast.GenDecl:
				if d.Tok == token.IMPORT || d.Lparen.IsValid() {
					continue
				}
				for _, s := range d.Specs {
					switch s := s.(type) {
					case *ast.TypeSpec:
						check(s.Name.Name, d.Doc)
					case *ast.ValueSpec:
						if len(s.Names) == 1 {
							check(s.Names[0].Name, d.Doc)
						}
					}
				}
			}
		}
	}
}

var firstWord = regexp.MustCompile(`^(\w+)[ :]`)

// knownFiles are the files of the module, by each end of their path.
func knownFiles(t *testing.T) map[string]bool {
	t.Helper()
	known := map[string]bool{}
	err := filepath.WalkDir(".", func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && p != "." && (strings.HasPrefix(d.Name(), ".") || d.Name() == "bin" || d.Name() == "node_modules") {
			return filepath.SkipDir
		}
		for rest, more := filepath.ToSlash(p), true; more; _, rest, more = strings.Cut(rest, "/") {
			known[rest] = true
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return known
}
