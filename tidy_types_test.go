package onpath_test

import (
	"fmt"
	"go/ast"
	"go/token"
	"go/types"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
)

// size is how large a type is: the methods of its method set, with those of what it
// embeds, its fields and its mutexes.
type size struct{ methods, fields, locks int }

const (
	wideMethods = 40 // a type with more stands in wideTypes
	wideEmbed   = 20 // a type with more is not embedded, but where wideEmbeds says so
)

// wideTypes are the types of more than wideMethods methods. Each number may only fall, and
// no type may be added.
var wideTypes = map[string]size{
	"onpath.validation":             {62, 2, 0},
	"api/client.Client":             {57, 8, 0},
	"bench.poolWork":                {78, 6, 0},
	"bench.Run":                     {75, 7, 0},
	"cli.applyFlags":                {58, 11, 0},
	"cli.global":                    {47, 4, 0},
	"cli.labFlags":                  {54, 5, 0},
	"datapath/datapathtest.flood":   {110, 10, 0},
	"datapath/datapathtest.testbed": {106, 7, 0},
	"datapath/ebpf.Driver":          {124, 29, 1},
	"datapath/fake.Node":            {205, 37, 0},
	"lab.Lab":                       {58, 3, 0},
	"plan.resolver":                 {91, 4, 0},
	"plan.checker":                  {88, 1, 0},
	"plan.departures":               {78, 3, 0},
	"plan.pathfinder":               {87, 2, 0},
	"plan.nodeplans":                {83, 4, 0},
	"plan.rollout":                  {101, 4, 0},
	"plan.teller":                   {96, 4, 0},
	"plan.tracer":                   {48, 9, 0},
	"plan.world":                    {67, 25, 0},
	"plan/scale.Scaler":             {43, 12, 0},
	"plan/verify.walker":            {43, 6, 0},
	"runtime/container.Driver":      {56, 17, 1},
}

// wideEmbeds are the embedded types of more than wideEmbed methods, as "type embeds type".
// Embedding shares all fields and locks. The list may only become shorter.
var wideEmbeds = map[string]bool{
	"onpath.Prefix embeds net/netip.Prefix":                            true,
	"accel.socket embeds os.File":                                      true,
	"bench.churnSite embeds bench.site":                                true,
	"bench.deployment embeds bench.site":                               true,
	"bench.poolWork embeds bench.Run":                                  true,
	"bench.testbed embeds demo.Testbed":                                true,
	"cli.applyFlags embeds cli.global":                                 true,
	"cli.labFlags embeds cli.global":                                   true,
	"control/translog.Public embeds control/translog.Log":              true,
	"datapath/datapathtest.flood embeds datapath/datapathtest.testbed": true,
	"datapath/datapathtest.generator embeds math/rand/v2.Rand":         true,
	"cli/functest.generator embeds math/rand/v2.Rand":                  true,
	"lab.inside embeds github.com/vishvananda/netlink.Handle":          true,
	"plan.checker embeds plan.world":                                   true,
	"plan.departures embeds plan.world":                                true,
	"plan.nodeplans embeds plan.world":                                 true,
	"plan.pathfinder embeds plan.world":                                true,
	"plan.resolver embeds plan.world":                                  true,
	"plan.rollout embeds plan.world":                                   true,
	"plan.teller embeds plan.world":                                    true,
}

// smallForeign are the types of other modules and of the standard library that are
// embedded: 20 methods or fewer each. Any other is held to be a wide one.
var smallForeign = map[string]bool{"io.Reader": true, "io.Writer": true, "io.Closer": true, "io.ReadCloser": true, "io.ReadSeeker": true,
	"net.Conn": true, "net.Listener": true, "net/http.ResponseWriter": true, "net/http.RoundTripper": true, "net/url.Values": true,
	"sync.Mutex": true, "github.com/google/nftables.Rule": true, "github.com/containerd/containerd/v2/core/diff.Comparer": true}

// TestMethodsOfTypes: a type with many methods shares its fields among all of them.
// Embedding counts: a new name for the same fields is not a smaller type.
func TestMethodsOfTypes(t *testing.T) {
	found := map[string]size{}
	for _, d := range declared(t) {
		n, ok := d.object.Type().(*types.Named)
		if !ok || types.IsInterface(n) {
			continue
		}
		s := size{methods: types.NewMethodSet(types.NewPointer(n)).Len()}
		if s.methods <= wideMethods {
			continue
		}
		s.fields, s.locks = fieldsAndLocks(d.spec.Type)
		often := 0
		if withinAny(d.dir, unshipped) { // a case of an exam may bring a step of its own
			often = slack
		}
		found[d.name] = s
		most, ok := wideTypes[d.name]
		if !ok {
			t.Errorf("%s: %s has %d methods; %d are the most for a new type: give a part of it its own type, fields and lock",
				d.place, d.name, s.methods, wideMethods)
			continue
		}
		for _, c := range []struct {
			what            string
			is, most, slack int
			do              string
		}{
			{"methods", s.methods, most.methods, often, "make it a function, or a method of a part with its own lock"},
			{"fields", s.fields, most.fields, slack, "give it to a part of its own"},
			{"mutexes", s.locks, most.locks, 0, "move what it guards to a part of its own"},
		} {
			ratchetNumber(t, d.place+": "+d.name+": "+c.what, c.most, c.is, c.slack, c.do)
		}
	}
	for name := range wideTypes {
		if _, ok := found[name]; !ok {
			t.Logf("%s has %d methods or fewer, or is gone: take it out of wideTypes", name, wideMethods)
		}
	}
}

// TestEmbedding: who embeds a wide type can use all of it.
func TestEmbedding(t *testing.T) {
	all, err := typeChecked()
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]bool{}
	for _, p := range all.packages {
		for _, f := range p.files {
			for _, e := range embedsOf(f.ast) {
				wide, name := all.width(f.ast, p, e.what)
				if wide <= wideEmbed {
					continue
				}
				key := typeName(p.dir, e.by) + " embeds " + name
				found[key] = true
				if !wideEmbeds[key] {
					t.Errorf("%s: %q: it has more than %d methods; name the field, and give it an interface of what is used",
						all.fset.Position(e.what.Pos()), key, wideEmbed)
				}
			}
		}
	}
	for key := range wideEmbeds {
		if !found[key] {
			t.Logf("%q is gone: take it out of wideEmbeds", key)
		}
	}
}

type embed struct {
	by   string // the type, or the function in which a type without a name stands
	what ast.Expr
}

// embedsOf are the embedded fields of a file's structs.
func embedsOf(f *ast.File) (all []embed) {
	for _, d := range f.Decls {
		by := ""
		if fn, ok := d.(*ast.FuncDecl); ok {
			by = fn.Name.Name
		}
		ast.Inspect(d, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.TypeSpec:
				by = n.Name.Name
			case *ast.StructType:
				for _, field := range n.Fields.List {
					if len(field.Names) == 0 {
						all = append(all, embed{by, field.Type})
					}
				}
			}
			return true
		})
	}
	return all
}

func fieldsAndLocks(e ast.Expr) (fields, locks int) {
	s, ok := e.(*ast.StructType)
	if !ok {
		return 0, 0
	}
	ast.Inspect(s, func(n ast.Node) bool {
		if sel, ok := n.(*ast.SelectorExpr); ok && isNamed(sel.X, "sync") && (sel.Sel.Name == "Mutex" || sel.Sel.Name == "RWMutex") {
			locks++
		}
		return true
	})
	return s.Fields.NumFields(), locks
}

// checked is the module with its types. Bodies of functions are not looked into, and
// packages outside the module are empty: no method of theirs is counted.
type checked struct {
	fset     *token.FileSet
	packages map[string]*checkedPackage // by folder
	foreign  map[string]*types.Package
}

type checkedPackage struct {
	dir   string
	files []goFile
	types *types.Package
}

var typeChecked = sync.OnceValues(func() (*checked, error) {
	all, err := parsed()
	if err != nil {
		return nil, err
	}
	c := &checked{fset: all.fset, packages: map[string]*checkedPackage{}, foreign: map[string]*types.Package{}}
	for _, f := range all.files {
		if strings.HasSuffix(f.name, "_test.go") {
			continue
		}
		p := c.packages[f.dir]
		if p == nil {
			p = &checkedPackage{dir: f.dir}
			c.packages[f.dir] = p
		}
		p.files = append(p.files, f)
	}
	for _, p := range c.packages {
		if _, err := c.Import(importPath(p.dir)); err != nil {
			return nil, err
		}
	}
	return c, nil
})

// typeName is what a type is called in these lists; the root is onpath.
func typeName(dir, name string) string {
	if dir == "." {
		dir = "onpath"
	}
	return dir + "." + name
}

func importPath(dir string) string {
	if dir == "." {
		return module
	}
	return module + "/" + dir
}

// Import implements types.Importer.
func (c *checked) Import(name string) (*types.Package, error) {
	dir := strings.TrimPrefix(strings.TrimPrefix(name, module), "/")
	if name == module {
		dir = "."
	}
	p := c.packages[dir]
	if p == nil || !within(name, module) {
		if c.foreign[name] == nil {
			c.foreign[name] = types.NewPackage(name, path.Base(name))
			c.foreign[name].MarkComplete()
		}
		return c.foreign[name], nil
	}
	if p.types == nil {
		var files []*ast.File
		for _, f := range p.files {
			files = append(files, f.ast)
		}
		config := types.Config{Importer: c, IgnoreFuncBodies: true, Error: func(error) {}} // names of foreign packages are missing
		p.types, _ = config.Check(name, c.fset, files, nil)
		if p.types == nil {
			return nil, fmt.Errorf("%s has no types", name)
		}
	}
	return p.types, nil
}

// width is how many methods an embedded type has, and its name.
func (c *checked) width(f *ast.File, p *checkedPackage, e ast.Expr) (int, string) {
	switch e := e.(type) {
	case *ast.StarExpr:
		return c.width(f, p, e.X)
	case *ast.IndexExpr:
		return c.width(f, p, e.X)
	case *ast.Ident:
		return methodsOf(p.types.Scope().Lookup(e.Name)), typeName(p.dir, e.Name)
	case *ast.SelectorExpr:
		from := importOf(f, e.X.(*ast.Ident).Name)
		if dir := strings.TrimPrefix(from, module+"/"); c.packages[dir] != nil {
			return methodsOf(c.packages[dir].types.Scope().Lookup(e.Sel.Name)), typeName(dir, e.Sel.Name)
		}
		if from == module {
			return methodsOf(c.packages["."].types.Scope().Lookup(e.Sel.Name)), typeName(".", e.Sel.Name)
		}
		if name := from + "." + e.Sel.Name; !smallForeign[name] {
			return wideEmbed + 1, name
		}
	}
	return 0, ""
}

func methodsOf(o types.Object) int {
	if o == nil {
		return 0
	}
	if types.IsInterface(o.Type()) {
		return types.NewMethodSet(o.Type()).Len()
	}
	return types.NewMethodSet(types.NewPointer(o.Type())).Len()
}

// importOf is the path of what a file calls by a name.
func importOf(f *ast.File, name string) string {
	for _, imp := range f.Imports {
		p, _ := strconv.Unquote(imp.Path.Value)
		if imp.Name != nil && imp.Name.Name == name || imp.Name == nil && (path.Base(p) == name || path.Base(path.Dir(p)) == name) {
			return p
		}
	}
	return "?"
}

type declaredType struct {
	name, dir, place string
	spec             *ast.TypeSpec
	object           *types.TypeName
}

// declared are the types that the module's packages declare, sorted by name.
func declared(t *testing.T) (list []declaredType) {
	t.Helper()
	all, err := typeChecked()
	if err != nil {
		t.Fatal(err)
	}
	for _, dir := range slices.Sorted(maps.Keys(all.packages)) {
		p := all.packages[dir]
		for _, f := range p.files {
			for _, d := range f.ast.Decls {
				g, ok := d.(*ast.GenDecl)
				if !ok || g.Tok != token.TYPE {
					continue
				}
				for _, s := range g.Specs {
					spec := s.(*ast.TypeSpec)
					if o, ok := p.types.Scope().Lookup(spec.Name.Name).(*types.TypeName); ok {
						list = append(list, declaredType{typeName(dir, spec.Name.Name), dir, all.fset.Position(spec.Pos()).String(), spec, o})
					}
				}
			}
		}
	}
	return list
}

// TestTypesOfTheRoot: the root is what people write and the contracts of the node.
func TestTypesOfTheRoot(t *testing.T) {
	n := 0
	for _, d := range declared(t) {
		if strings.HasPrefix(d.name, "onpath.") && d.object.Exported() {
			n++
		}
	}
	ratchetNumber(t, "exported types of the root", mostRootTypes, n, slack, "a type that one part alone uses stands in that part")
}

// giants are types that have been cut into parts, by the folder in which the parts are put
// together, and the ways by which parts still reach back. The numbers may only fall.
var giants = map[string]struct {
	name string
	most int
}{
	"api": {"Server", 0}, "control": {"Controller", 0}, "node": {"Agent", 0},
}

// TestPartsReachNothingBack: what a part is given is neither the type that puts the parts
// together, nor a method of it, nor a function that uses it: by these a part would reach its
// fields and its lock.
func TestPartsReachNothingBack(t *testing.T) {
	files, fset := parseAll(t)
	for _, dir := range slices.Sorted(maps.Keys(giants)) {
		giant, methods := giants[dir], methodNames(files, dir, giants[dir].name)
		var found []string
		for _, f := range files {
			if f.dir != dir || strings.HasSuffix(f.name, "_test.go") {
				continue
			}
			for _, d := range f.ast.Decls {
				fn, ok := d.(*ast.FuncDecl)
				if !ok || fn.Body == nil {
					continue
				}
				self := namesOf(fn, giant.name)
				for _, e := range givenToParts(f.ast, fn.Body, dir) {
					if reachesBack(e, self, methods) {
						found = append(found, fset.Position(e.Pos()).String())
					}
				}
			}
		}
		ratchet(t, fmt.Sprintf("ways of parts back to %s.%s (give the part an interface of another part, or a value)", dir, giant.name),
			giant.most, 0, found)
	}
}

// namesOf are the receiver, parameters and variables of a function that are of a type.
func namesOf(fn *ast.FuncDecl, typ string) map[string]bool {
	names := map[string]bool{}
	fields := fn.Type.Params.List
	if fn.Recv != nil {
		fields = append(slices.Clone(fields), fn.Recv.List...)
	}
	for _, field := range fields {
		for _, n := range field.Names {
			names[n.Name] = names[n.Name] || receiver(field.Type) == typ
		}
	}
	ast.Inspect(fn.Body, func(n ast.Node) bool {
		if a, ok := n.(*ast.AssignStmt); ok && len(a.Lhs) == len(a.Rhs) {
			for i, e := range a.Rhs {
				u, isPointer := e.(*ast.UnaryExpr)
				id, isName := a.Lhs[i].(*ast.Ident)
				if isPointer && isName {
					if lit, ok := u.X.(*ast.CompositeLit); ok && lit.Type != nil && receiver(lit.Type) == typ {
						names[id.Name] = true
					}
				}
			}
		}
		return true
	})
	return names
}

// givenToParts are the arguments of functions, and the values of structs, of the packages
// below a folder.
func givenToParts(f *ast.File, body *ast.BlockStmt, dir string) (given []ast.Expr) {
	ofPart := func(e ast.Expr) bool {
		s, ok := e.(*ast.SelectorExpr)
		if !ok {
			return false
		}
		x, ok := s.X.(*ast.Ident)
		if !ok {
			return false
		}
		from := importOf(f, x.Name)
		return strings.HasPrefix(from, module+"/"+dir+"/") && from != module+"/api/router" // on which all stand
	}
	ast.Inspect(body, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.CallExpr:
			if ofPart(n.Fun) {
				given = append(given, n.Args...)
			}
		case *ast.CompositeLit:
			if n.Type != nil && ofPart(n.Type) {
				for _, e := range n.Elts {
					if kv, ok := e.(*ast.KeyValueExpr); ok {
						e = kv.Value
					}
					given = append(given, e)
				}
			}
		}
		return true
	})
	return given
}

// reachesBack reports whether a value is one of the names, a method of it, or a function that
// mentions it.
func reachesBack(e ast.Expr, names, methods map[string]bool) bool {
	switch e := e.(type) {
	case *ast.Ident:
		return names[e.Name]
	case *ast.SelectorExpr:
		x, ok := e.X.(*ast.Ident)
		return ok && names[x.Name] && methods[e.Sel.Name]
	case *ast.FuncLit:
		back := false
		ast.Inspect(e.Body, func(n ast.Node) bool {
			if id, ok := n.(*ast.Ident); ok && names[id.Name] {
				back = true
			}
			return !back
		})
		return back
	}
	return false
}

// receiver is the name of a receiver's type.
func receiver(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.StarExpr:
		return receiver(e.X)
	case *ast.IndexExpr:
		return receiver(e.X)
	case *ast.Ident:
		return e.Name
	}
	return "?"
}

// methodNames are those of the methods that a folder declares of a type.
func methodNames(files []goFile, dir, typ string) map[string]bool {
	names := map[string]bool{}
	for _, f := range files {
		for _, d := range f.ast.Decls {
			if fn, ok := d.(*ast.FuncDecl); ok && f.dir == dir && fn.Recv != nil && receiver(fn.Recv.List[0].Type) == typ {
				names[fn.Name.Name] = true
			}
		}
	}
	return names
}
