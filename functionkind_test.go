package onpath_test

import (
	"go/ast"
	"path"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/onpath/onpath"
)

// kindFields are the fields of FunctionSpec that say what to run.
func kindFields() (fields []reflect.StructField) {
	for f := range reflect.TypeFor[onpath.FunctionSpec]().Fields() {
		if f.Type.Kind() == reflect.Pointer {
			fields = append(fields, f)
		}
	}
	return fields
}

// TestFunctionKinds: each such field is in the table, under its name.
func TestFunctionKinds(t *testing.T) {
	for _, f := range kindFields() {
		var s onpath.FunctionSpec
		reflect.ValueOf(&s).Elem().FieldByIndex(f.Index).Set(reflect.New(f.Type.Elem()))
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		if got := s.Kind(); string(got) != name {
			t.Errorf("a function with %s is of kind %q, must be %q", f.Name, got, name)
		}
		if s.With(onpath.Env{"a": "b"}, nil); reflect.ValueOf(s).FieldByIndex(f.Index).Elem().IsZero() == false {
			t.Errorf("With changes the %s that it is called of", f.Name)
		}
		if s.Shape("a") == s.Shape("b") {
			t.Errorf("the shape of a function with %s does not tell functions apart", f.Name)
		}
	}
}

// TestKindsAreTraits: only the root and the drivers look into a kind's field; all others
// go by its traits, so that a new kind changes none of them.
func TestKindsAreTraits(t *testing.T) {
	fields := map[string]bool{}
	for _, f := range kindFields() {
		fields[f.Name] = true
	}
	files, fset := parseAll(t)
	for _, f := range files {
		if f.dir == "." || within(f.dir, "runtime") || within(f.dir, "test") || strings.HasSuffix(f.name, "_test.go") {
			continue
		}
		ast.Inspect(f.ast, func(n ast.Node) bool {
			s, ok := n.(*ast.SelectorExpr)
			if ok && fields[s.Sel.Name] && !isPackage(f.ast, s.X) {
				t.Errorf("%s: .%s: ask for the traits of the function (functionkind.go)", fset.Position(n.Pos()), s.Sel.Name)
			}
			return true
		})
	}
}

// isPackage reports whether an expression is the name of a package that the file imports.
func isPackage(f *ast.File, x ast.Expr) bool {
	id, ok := x.(*ast.Ident)
	return ok && id.Obj == nil && slices.ContainsFunc(f.Imports, func(i *ast.ImportSpec) bool {
		return i.Name == nil && path.Base(strings.Trim(i.Path.Value, `"`)) == id.Name
	})
}

// TestCPUByDefault: what has a process is given CPU unless its author says how much; what the
// data path runs takes none of the node's.
func TestCPUByDefault(t *testing.T) {
	ebpf := onpath.FunctionSpec{EBPF: &onpath.EBPFSpec{Object: "firewall"}}
	asks := ebpf
	asks.Resources.CPU = 10
	for what, c := range map[string]struct {
		spec onpath.FunctionSpec
		want onpath.CPU
	}{
		"container":             {onpath.FunctionSpec{Container: &onpath.ContainerSpec{Image: "host", Command: []string{"sleep"}}}, onpath.DefaultCPU},
		"ebpf":                  {ebpf, 0},
		"ebpf that asks for it": {asks, 10},
	} {
		f := &onpath.Function{Spec: c.spec}
		f.APIVersion, f.Kind = onpath.APIVersion, onpath.KindFunction
		f.Metadata.Name, f.Metadata.Tenant = "f", "default"
		if err := f.Validate(); err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		if f.Spec.Resources.CPU != c.want {
			t.Errorf("%s: %s, want %s", what, f.Spec.Resources.CPU, c.want)
		}
	}
}
