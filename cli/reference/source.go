// Package reference writes the reference documentation: resources as Markdown
// and JSON Schema from the types and comments of the root package, and the
// command line from its commands. It runs in tests and `go generate` only.
package reference

import (
	"cmp"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"reflect"
	"regexp"
	"strconv"
	"strings"
)

// Source is what the root package's text says about its types.
type Source struct {
	Types map[string]*Type
	// Kinds are the names of the resources, in their order.
	Kinds []string
	// APIVersion is what every resource file names.
	APIVersion string
}

// Type is one named type.
type Type struct {
	Name, Doc string
	// Under is the type it stands for ("string", "int64"); "struct" for structs.
	Under  string
	Fields []Field
	Values []Value
	// OwnForm is true where a method of the type reads it from text or JSON.
	OwnForm bool
}

// Field is one field of a struct as JSON has it.
type Field struct {
	Name, Doc string
	Type      string // as written in Go: "[]Selector", "*Duration"
	Optional  bool   // left out where it is zero
}

// Value is one constant of a type.
type Value struct{ Literal, Doc string }

// Parse reads the package in dir.
func Parse(dir fs.FS) (*Source, error) {
	s := &Source{Types: map[string]*Type{}}
	names, err := fs.Glob(dir, "*.go")
	if err != nil {
		return nil, err
	}
	var files []*ast.File
	for _, name := range names {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		text, err := fs.ReadFile(dir, name)
		if err != nil {
			return nil, err
		}
		f, err := parser.ParseFile(token.NewFileSet(), name, text, parser.ParseComments)
		if err != nil {
			return nil, fmt.Errorf("parse %s: %w", name, err)
		}
		files = append(files, f)
		s.types(f)
	}
	for _, f := range files {
		s.constants(f)
		s.ownForms(f)
	}
	if t := s.Types["Kind"]; t != nil {
		for _, v := range t.Values {
			s.Kinds = append(s.Kinds, v.Literal)
		}
	}
	return s, nil
}

func (s *Source) types(f *ast.File) {
	for _, d := range f.Decls {
		g, ok := d.(*ast.GenDecl)
		if !ok || g.Tok != token.TYPE {
			continue
		}
		for _, spec := range g.Specs {
			t := spec.(*ast.TypeSpec)
			doc := t.Doc
			if doc == nil {
				doc = g.Doc
			}
			n := &Type{Name: t.Name.Name, Doc: clean(doc.Text()), Under: expr(t.Type)}
			if st, ok := t.Type.(*ast.StructType); ok {
				n.Under, n.Fields = "struct", fields(st)
			}
			s.Types[n.Name] = n
		}
	}
}

// ownForms marks the types that f gives a form of their own.
func (s *Source) ownForms(f *ast.File) {
	for _, d := range f.Decls {
		m, ok := d.(*ast.FuncDecl)
		if !ok || m.Recv == nil || m.Name.Name != "UnmarshalText" && m.Name.Name != "UnmarshalJSON" {
			continue
		}
		if t := s.Types[strings.TrimPrefix(expr(m.Recv.List[0].Type), "*")]; t != nil {
			t.OwnForm = true
		}
	}
}

// fields are those with a JSON name; the fields of TypeMeta, which is embedded
// everywhere, are left out.
func fields(st *ast.StructType) (list []Field) {
	written := map[string]string{} // by the name in Go
	for _, f := range st.Fields.List {
		if f.Tag == nil || len(f.Names) == 0 {
			continue
		}
		tag, _ := strconv.Unquote(f.Tag.Value)
		name, options, _ := strings.Cut(reflect.StructTag(tag).Get("json"), ",")
		if name == "" || name == "-" {
			continue
		}
		doc := clean(f.Doc.Text())
		if doc == "" {
			doc = clean(f.Comment.Text())
		}
		list = append(list, Field{Name: name, Doc: doc, Type: expr(f.Type), Optional: strings.HasPrefix(options, "omit")})
		written[f.Names[0].Name] = name
	}
	for i := range list {
		list[i].Doc = goWord.ReplaceAllStringFunc(list[i].Doc, func(w string) string { return cmp.Or(written[w], w) })
		list[i].Doc = strings.ReplaceAll(list[i].Doc, "Spec.", "spec.")
	}
	return list
}

// goWord may be the name of a field in Go, of which readers know the name in files.
var goWord = regexp.MustCompile(`\b[A-Z][A-Za-z]*\b`)

// constants adds string constants to their types, and finds the API version.
func (s *Source) constants(f *ast.File) {
	for _, d := range f.Decls {
		g, ok := d.(*ast.GenDecl)
		if !ok || g.Tok != token.CONST {
			continue
		}
		for _, spec := range g.Specs {
			v := spec.(*ast.ValueSpec)
			if len(v.Values) != 1 {
				continue
			}
			lit, ok := v.Values[0].(*ast.BasicLit)
			if !ok || lit.Kind != token.STRING {
				continue
			}
			text, _ := strconv.Unquote(lit.Value)
			if v.Names[0].Name == "APIVersion" {
				s.APIVersion = text
			}
			if id, ok := v.Type.(*ast.Ident); ok && s.Types[id.Name] != nil {
				t := s.Types[id.Name]
				t.Values = append(t.Values, Value{text, clean(v.Comment.Text())})
			}
		}
	}
}

// expr is a type as written.
func expr(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.Ident:
		return e.Name
	case *ast.StarExpr:
		return "*" + expr(e.X)
	case *ast.ArrayType:
		return "[]" + expr(e.Elt)
	case *ast.MapType:
		return "map[" + expr(e.Key) + "]" + expr(e.Value)
	case *ast.SelectorExpr:
		return expr(e.X) + "." + e.Sel.Name
	}
	return ""
}

// clean puts a comment onto one line.
func clean(doc string) string { return strings.Join(strings.Fields(doc), " ") }
