package onpath_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
)

const module = "github.com/onpath/onpath"

// rules is the house: which folder must not import which, and why. A folder
// stands for all below it. Tests may cross folders; programs may not.
var rules = []struct {
	from string   // folder, "." is the root package alone
	not  []string // folders, or std: and a package of the standard library
	why  string
}{
	{".", []string{"*"}, "the root package is the contract between all parts and does no I/O"},
	{"plan", []string{"*"}, "plan decides from a snapshot; whatever it imported could make it impure"},
	{"plan", []string{"std:net", "std:net/http", "std:os", "std:log", "std:log/slog", "std:io/fs", "std:math/rand", "std:math/rand/v2", "std:crypto/rand"}, "plan has no clock, no network, no logger and no randomness of its own"},
	{"signal", []string{"*"}, "signalling is machines that are told what came and what time it is; whatever they imported could make them impure"},
	{"signal", []string{"std:net", "std:net/http", "std:os", "std:log", "std:log/slog", "std:io/fs", "std:math/rand", "std:math/rand/v2", "std:crypto/rand"}, "signal has no clock, no network, no logger and no randomness of its own"},
	{"control", []string{"node", "datapath", "runtime", "lab", "api", "cli", "cmd", "demo"}, "the server's loops reach nodes through the session and nothing else"},
	{"store", []string{"control", "api", "plan", "node", "cli", "cmd"}, "a store keeps objects and knows nobody who uses it"},
	{"node", []string{"control", "plan", "store", "lab", "cli", "cmd", "datapath", "runtime", "demo"}, "the agent is the other role; it knows drivers by their interface"},
	{"api", []string{"control", "plan", "store/etcd", "node", "datapath", "runtime", "lab", "cli", "cmd", "demo"}, "the API decides nothing"},
	{"api/router", apiParts, "what the parts of the API stand on knows none of them"},
	{"api/rights", append([]string{"api/router"}, apiParts...), "who may do what is decided before any part is asked"},
	{"runtime", []string{"datapath", "node", "control", "plan", "api", "store", "lab", "cli", "cmd"}, "a runtime runs processes; who wants them is not its business"},
	{"datapath", []string{"runtime", "node", "control", "plan", "api", "store", "lab", "cli", "cmd"}, "the data path takes a configuration and nothing else"},
	{"datapath/ebpf", []string{"datapath/fake"}, "drivers do not know each other"},
	{"datapath/fake", []string{"datapath/ebpf"}, "drivers do not know each other"},
	{"accel", []string{"control", "plan", "node", "api", "store", "datapath", "runtime", "lab", "cli", "cmd"}, "the relay takes a route for each connection and decides none"},
	{"measure", []string{"control", "plan", "node", "api", "store", "datapath", "runtime", "lab", "cli", "cmd"}, "measuring takes targets and tells values; who asked is not its business"},
	{"runtime", []string{"functions"}, "a driver knows no function that it runs"},
	{"engine", []string{"control", "plan", "node", "api", "store", "datapath", "runtime", "lab", "cli", "cmd", "demo"},
		"an engine runs other people's code and knows nobody"},
	{"functions", []string{"api", "control", "plan", "node", "store", "datapath", "runtime", "internal", "lab", "cli", "cmd", "demo"}, "functions stand on the root package and sdk/, as those of others could"},
	{"sdk", []string{"functions", "api", "control", "plan", "node", "store", "datapath", "runtime", "internal", "lab", "cli", "cmd", "demo"}, "sdk/ is what functions are made with, and knows none"},
	{"lab", []string{"control", "plan", "node", "api", "store", "datapath", "runtime", "cli", "cmd"}, "the lab emulates networks and must not know what runs in them"},
	{"demo", []string{"control", "plan", "node", "store", "datapath", "runtime", "cmd"}, "the demonstration uses the program and the API as a user does"},
	{"web", []string{"*"}, "the pages speak to the API as any client does"},
	{"internal", []string{"api", "control", "plan", "node", "store", "datapath", "runtime", "lab", "cli", "cmd", "demo"}, "small helpers are below the parts, not above"},
}

// apiParts are the parts of the API: each registers its routes, and knows no other.
var apiParts = []string{"api/change", "api/join", "api/nodes", "api/questions", "api/registry", "api/reservations", "api/resources", "api/streams"}

// leaves are folders that nothing imports but those that by names, and why.
var leaves = map[string]struct {
	by  []string
	why string
}{
	"bench":    {[]string{"cli"}, "measurements look at the parts, which must not know that they are measured"},
	"cmd":      {nil, "the program is made of the parts, not the other way round"},
	"demo":     {[]string{"bench", "cli", "test"}, "the demonstration and its stage stand on the parts"},
	"web":      {[]string{"cli"}, "pages are carried by the program and know the API alone"},
	"examples": {[]string{"demo"}, "examples are for people; only the demonstration carries them inside the program"},
	"test":     {nil, "tests that cross folders stand on all of them"},
}

// shared are folders in leaves that tests may import, and why.
var shared = map[string]string{
	"bench/traffic": "floods in tests come from the same source",
	"bench/fleet":   "pages are looked at with as many nodes",
	"bench/ruleset": "what is measured with rule sets is tested with the same ones",
}

func TestLeaves(t *testing.T) {
	files, fset := parseAll(t)
	for _, f := range files {
		for _, imp := range f.ast.Imports {
			p, _ := strconv.Unquote(imp.Path.Value)
			local, _ := strings.CutPrefix(p, module+"/")
			for folder, leaf := range leaves {
				if test := strings.HasSuffix(f.name, "_test.go"); test && shared[local] != "" {
					continue
				}
				if within(local, folder) && !within(f.dir, folder) && !withinAny(f.dir, leaf.by) {
					t.Errorf("%s imports %s: %s", fset.Position(imp.Pos()), p, leaf.why)
				}
			}
		}
	}
}

// banned names hide what a package is for.
var banned = map[string]bool{"util": true, "utils": true, "common": true, "helpers": true, "manager": true, "misc": true}

type goFile struct {
	dir  string // slash path from the module's root
	name string
	ast  *ast.File
}

// tree is what the module's Go files say, parsed once for all tests.
type tree struct {
	files []goFile
	fset  *token.FileSet
}

var parsed = sync.OnceValues(parseTree)

func parseAll(t *testing.T) (files []goFile, fset *token.FileSet) {
	t.Helper()
	all, err := parsed()
	if err != nil {
		t.Fatal(err)
	}
	return slices.Clone(all.files), all.fset
}

func parseTree() (tree, error) {
	all := tree{fset: token.NewFileSet()}
	err := filepath.WalkDir(".", func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			if n := d.Name(); p != "." && (strings.HasPrefix(n, ".") || n == "bin" || n == "testdata" || n == "deps") {
				return filepath.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(p, ".go") {
			return nil
		}
		f, err := parser.ParseFile(all.fset, p, nil, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		all.files = append(all.files, goFile{dir: filepath.ToSlash(filepath.Dir(p)), name: filepath.Base(p), ast: f})
		return nil
	})
	return all, err
}

func within(dir, folder string) bool {
	return dir == folder || strings.HasPrefix(dir, folder+"/")
}

func withinAny(dir string, folders []string) bool {
	return slices.ContainsFunc(folders, func(f string) bool { return within(dir, f) })
}

func TestForbiddenImports(t *testing.T) {
	files, fset := parseAll(t)
	for _, f := range files {
		if strings.HasSuffix(f.name, "_test.go") {
			continue
		}
		for _, imp := range f.ast.Imports {
			p, _ := strconv.Unquote(imp.Path.Value)
			local, inModule := strings.CutPrefix(p, module+"/")
			if inModule && slices.Contains(apiParts, f.dir) && slices.Contains(apiParts, local) {
				t.Errorf("%s imports %s: parts of the API do not know each other; the server gives each what it needs", fset.Position(imp.Pos()), p)
			}
			if d := driverOf(local); inModule && d != "" && driverOf(f.dir) != "" && d != driverOf(f.dir) && d != "runtimetest" {
				t.Errorf("%s imports %s: drivers do not know each other", fset.Position(imp.Pos()), p)
			}
			for _, r := range rules {
				if r.from == "." && f.dir != "." || r.from != "." && !within(f.dir, r.from) {
					continue
				}
				may := within(local, r.from)
				for _, not := range r.not {
					bad := inModule && within(local, not) && !may || "std:"+p == not
					if not == "*" { // all of the module but the root, and all outside the standard library
						bad = inModule && !within(local, r.from) || !inModule && p != module && strings.Contains(strings.Split(p, "/")[0], ".")
					}
					if bad {
						t.Errorf("%s imports %s: %s", fset.Position(imp.Pos()), p, r.why)
					}
				}
			}
		}
	}
}

// driverOf is the name of the driver of functions that a folder belongs to, if any.
func driverOf(dir string) string {
	rest, ok := strings.CutPrefix(dir, "runtime/")
	name, _, _ := strings.Cut(rest, "/")
	if !ok {
		return ""
	}
	return name
}

// TestPlanHasNoClock: what plan knows of time is in the snapshot.
func TestPlanHasNoClock(t *testing.T) {
	clock := []string{"Now", "Since", "Until", "Sleep", "After", "AfterFunc", "Tick", "NewTicker", "NewTimer"}
	files, fset := parseAll(t)
	for _, f := range files {
		if !within(f.dir, "plan") || strings.HasSuffix(f.name, "_test.go") {
			continue
		}
		ast.Inspect(f.ast, func(n ast.Node) bool {
			if s, ok := n.(*ast.SelectorExpr); ok && slices.Contains(clock, s.Sel.Name) {
				if x, ok := s.X.(*ast.Ident); ok && x.Name == "time" {
					t.Errorf("%s: time.%s: plan gets the time as a parameter", fset.Position(n.Pos()), s.Sel.Name)
				}
			}
			return true
		})
	}
}

// TestIncludes: the eBPF programs are made of their own headers, the authors' (sdk),
// the compiler's, the kernel's and libbpf's.
func TestIncludes(t *testing.T) {
	include := regexp.MustCompile(`(?m)^#include (\S+)`)
	may := regexp.MustCompile(`^(<(stddef\.h|linux/[a-z0-9_]+\.h|bpf/bpf_[a-z]+\.h)>|"((lib/)?[a-z0-9_]+|\.\./abi|\.\./\.\./sdk/onpath)\.h")$`)
	files, err := filepath.Glob("bpf/*.[ch]")
	more, err2 := filepath.Glob("bpf/lib/*.h")
	if err != nil || err2 != nil || len(files) == 0 || len(more) == 0 {
		t.Fatalf("%d and %d files: %v, %v", len(files), len(more), err, err2)
	}
	for _, p := range append(files, more...) {
		text, err := os.ReadFile(p)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range include.FindAllStringSubmatch(string(text), -1) {
			if !may.MatchString(m[1]) {
				t.Errorf("%s includes %s", p, m[1])
			}
		}
	}
}

// TestFunctionsAreRecipes: who copies one of containers needs nothing of this module. What
// the node does beside an ebpf function is Go code in its folder, and one Go file beside the
// folders carries what modules were compiled to inside the program.
func TestFunctionsAreRecipes(t *testing.T) {
	files, _ := parseAll(t)
	for _, f := range files {
		if within(f.dir, "functions") && f.dir != "functions" && !strings.HasPrefix(f.dir, "functions/ebpf-") {
			t.Errorf("%s/%s: a function is a recipe, without Go code", f.dir, f.name)
		}
	}
}

func TestPackageCommentsAndNames(t *testing.T) {
	files, _ := parseAll(t)
	commented := map[string]bool{}
	for _, f := range files {
		if strings.HasSuffix(f.name, "_test.go") {
			continue
		}
		if banned[path.Base(f.dir)] {
			t.Errorf("%s: %q says nothing about what it is for", f.dir, path.Base(f.dir))
		}
		commented[f.dir] = commented[f.dir] || f.ast.Doc != nil
	}
	for dir, ok := range commented {
		if !ok {
			t.Errorf("%s: no package comment", dir)
		}
	}
}

func TestInterfacesAreSmall(t *testing.T) {
	files, fset := parseAll(t)
	for _, f := range files {
		ast.Inspect(f.ast, func(n ast.Node) bool {
			if it, ok := n.(*ast.InterfaceType); ok && it.Methods.NumFields() > 10 {
				t.Errorf("%s: an interface of %d methods; ten are enough", fset.Position(n.Pos()), it.Methods.NumFields())
			}
			return true
		})
	}
}

// TestArchitectureIsTrue: each folder that ARCHITECTURE.md's table names
// exists, with the file where a reader begins, and each folder at the top is named.
func TestArchitectureIsTrue(t *testing.T) {
	text, err := os.ReadFile("ARCHITECTURE.md")
	if err != nil {
		t.Fatal(err)
	}
	named := map[string]bool{}
	for _, m := range regexp.MustCompile("(?m)^\\| `([a-zA-Z/]+)/`").FindAllStringSubmatch(string(text), -1) {
		named[m[1]] = true
		if st, err := os.Stat(m[1]); err != nil || !st.IsDir() {
			t.Errorf("ARCHITECTURE.md names %s/, which is not there", m[1])
		}
	}
	begins := regexp.MustCompile("(?m)^\\| [^|]+ \\| [^|]+ \\| `([^`]+)`").FindAllStringSubmatch(string(text), -1)
	if len(begins) < len(named)-1 { // a licence needs no beginning
		t.Errorf("ARCHITECTURE.md says of %d folders where to begin to read, must be %d", len(begins), len(named)-1)
	}
	for _, m := range begins {
		if _, err := os.Stat(m[1]); err != nil {
			t.Errorf("ARCHITECTURE.md: %v", err)
		}
	}
	entries, err := os.ReadDir(".")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if n := e.Name(); e.IsDir() && !strings.HasPrefix(n, ".") && n != "bin" && !named[n] {
			t.Errorf("ARCHITECTURE.md does not name %s/", n)
		}
	}
}

// TestContributingIsTrue: what CONTRIBUTING.md's table of changes names is there.
func TestContributingIsTrue(t *testing.T) {
	text, err := os.ReadFile("CONTRIBUTING.md")
	if err != nil {
		t.Fatal(err)
	}
	rows := 0
	for _, m := range regexp.MustCompile("(?m)^\\| [^|]+ \\| ([^|]+) \\|$").FindAllStringSubmatch(string(text), -1) {
		paths := regexp.MustCompile("`([a-z][a-zA-Z0-9_/.-]*(?:/|\\.[a-z]+))`").FindAllStringSubmatch(m[1], -1)
		if len(paths) > 0 {
			rows++
		}
		for _, p := range paths {
			if _, err := os.Stat(p[1]); err != nil {
				t.Errorf("CONTRIBUTING.md: %v", err)
			}
		}
	}
	if rows < 20 {
		t.Errorf("the table has %d rows with paths, must be 20 at least", rows)
	}
}

// TestLicences: C files, which kernels load as GPL, say that they may be used so.
func TestLicences(t *testing.T) {
	const line = "/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */\n"
	found := 0
	err := filepath.WalkDir(".", func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && (d.Name() == ".git" || d.Name() == "bin") {
			return filepath.SkipDir
		}
		if ext := filepath.Ext(p); ext != ".c" && ext != ".h" {
			return nil
		}
		found++
		text, err := os.ReadFile(p)
		if err == nil && !strings.HasPrefix(string(text), line) {
			t.Errorf("%s does not begin with %s", p, line)
		}
		return err
	})
	if err != nil || found == 0 {
		t.Errorf("%d C files (%v)", found, err)
	}
}
