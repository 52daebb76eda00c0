package manifest

import (
	"bytes"
	"encoding"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"reflect"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/onpath/onpath"
)

// parse decodes every document of one file. Documents with errors are left out.
func parse(data []byte, name string) (docs []*Document, errs []located) {
	data = bytes.TrimPrefix(data, []byte("\ufeff"))
	in := yaml.NewDecoder(bytes.NewReader(data))
	nodes := 0
	var lastDoc *Document
	lastPlace := ""
	for order := 0; ; order++ {
		var n yaml.Node
		err := decodeNode(in, &n)
		if errors.Is(err, io.EOF) {
			if lastDoc != nil && lastDoc == docs[len(docs)-1] {
				lastDoc.Cut = lastPlace
			}
			return docs, errs
		}
		if err != nil {
			return docs, append(errs, syntaxError(data, name, err))
		}
		if len(n.Content) == 0 || isNull(n.Content[0]) {
			continue // comments alone
		}
		d := &decoder{doc: &Document{File: name, fields: map[string]position{}}, nodes: &nodes}
		d.document(n.Content[0])
		if len(d.errs) == 0 {
			docs = append(docs, d.doc)
			if last := lastOf(n.Content[0]); cutWithin(data, last) {
				lastDoc, lastPlace = d.doc, fmt.Sprintf("%s:%d:%d", name, last.Line, last.Column)
			}
			continue
		}
		for _, l := range d.errs {
			if len(errs) < maxErrors {
				errs = append(errs, l)
			}
		}
		if nodes > MaxNodes {
			return docs, errs
		}
	}
}

// decodeNode keeps a panic of the parser on hostile input from ending the
// program.
func decodeNode(in *yaml.Decoder, n *yaml.Node) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("the YAML cannot be parsed: %v", r)
		}
	}()
	return in.Decode(n)
}

// decoder fills one object from a node tree and notes where each field stood.
type decoder struct {
	doc   *Document
	nodes *int // visited in this file, to stop alias bombs
	errs  []located
}

func (d *decoder) add(at position, field, remedy, format string, args ...any) {
	e := invalid(fmt.Sprintf("%s:%d:%d", d.doc.File, at.line, at.column), fmt.Sprintf(format, args...), remedy)
	e.Field = field
	d.errs = append(d.errs, located{err: e, position: at})
}

func (d *decoder) document(n *yaml.Node) {
	d.doc.Line, d.doc.Column = n.Line, n.Column
	at := position{n.Line, n.Column}
	if n.Kind != yaml.MappingNode {
		d.add(at, "", "write apiVersion, kind, metadata and spec", "the document is %s, not a resource", describe(n))
		return
	}
	kind := field(n, "kind")
	if kind == nil || isNull(kind) {
		d.add(at, "kind", "write kind: and one of "+kindNames(), "is missing")
		return
	}
	o, err := onpath.New(onpath.Kind(kind.Value))
	if err != nil || kind.Kind != yaml.ScalarNode {
		remedy := "write one of " + kindNames()
		if w := onpath.Nearest(kind.Value, strings.Split(kindNames(), ", ")); w != "" {
			remedy = "did you mean " + w + "?"
		}
		d.add(position{kind.Line, kind.Column}, "kind", remedy, "there is no kind %s", shown(kind))
		return
	}
	if k := o.ObjectKind(); k.ReadOnly() {
		d.add(position{kind.Line, kind.Column}, "kind", "take the document out", "only onpath itself writes objects of kind %s", k)
		return
	}
	if v := field(n, "apiVersion"); v == nil || isNull(v) {
		d.add(at, "apiVersion", "write apiVersion: "+onpath.APIVersion, "is missing")
	}
	d.doc.Object = o
	d.value(n, reflect.ValueOf(o).Elem(), "", 0)
	if m := o.Meta(); m.Name != "" && len(m.Name) <= onpath.MaxName {
		for _, l := range d.errs {
			l.err.Object = onpath.KeyOf(o).String()
		}
	}
}

// kindNames are the kinds that people write.
func kindNames() string {
	var names []string
	for _, k := range onpath.Kinds() {
		if !k.ReadOnly() {
			names = append(names, string(k))
		}
	}
	return strings.Join(names, ", ")
}

func field(n *yaml.Node, name string) *yaml.Node {
	for i := 0; i+1 < len(n.Content); i += 2 {
		if n.Content[i].Value == name {
			return n.Content[i+1]
		}
	}
	return nil
}

// value decodes n into v.
func (d *decoder) value(n *yaml.Node, v reflect.Value, path string, depth int) {
	*d.nodes++
	if *d.nodes > MaxNodes {
		if *d.nodes == MaxNodes+1 {
			d.add(position{n.Line, n.Column}, path, "write it out, or split the file", "more than %d values, aliases expanded", MaxNodes)
		}
		return
	}
	if depth > MaxDepth {
		d.add(position{n.Line, n.Column}, path, "", "is nested more than %d deep", MaxDepth)
		return
	}
	if n.Kind == yaml.AliasNode {
		d.value(n.Alias, v, path, depth+1)
		return
	}
	if _, ok := d.doc.fields[path]; !ok && path != "" {
		d.doc.fields[path] = position{n.Line, n.Column}
	}
	if isNull(n) {
		return // as if it were not written
	}
	if v.Kind() == reflect.Pointer {
		if v.IsNil() {
			v.Set(reflect.New(v.Type().Elem()))
		}
		d.value(n, v.Elem(), path, depth)
		return
	}
	if n.Kind == yaml.ScalarNode {
		d.scalar(n, v, path)
		return
	}
	if _, ok := v.Addr().Interface().(encoding.TextUnmarshaler); ok {
		d.wrongType(n, v, path)
		return
	}
	switch {
	case v.Kind() == reflect.Struct && n.Kind == yaml.MappingNode:
		d.structure(n, v, path, depth)
	case v.Kind() == reflect.Map && n.Kind == yaml.MappingNode:
		d.mapping(n, v, path, depth)
	case v.Kind() == reflect.Slice && n.Kind == yaml.SequenceNode:
		list := reflect.MakeSlice(v.Type(), len(n.Content), len(n.Content))
		for i, c := range n.Content {
			at := fmt.Sprintf("%s[%d]", path, i)
			if isNull(c) {
				d.add(position{c.Line, c.Column}, at, "write a value or take the line out", "is empty")
			}
			d.value(c, list.Index(i), at, depth+1)
		}
		v.Set(list)
	default:
		d.wrongType(n, v, path)
	}
}

func (d *decoder) structure(n *yaml.Node, v reflect.Value, path string, depth int) {
	fields := jsonFields(v.Type())
	d.pairs(n, path, func(k, c *yaml.Node) {
		f, ok := fields[k.Value]
		if !ok {
			d.unknown(k, path, fields)
			return
		}
		d.child(k, c, v.FieldByIndex(f.Index), join(path, k.Value), depth)
	})
}

func (d *decoder) mapping(n *yaml.Node, v reflect.Value, path string, depth int) {
	t := v.Type()
	m := reflect.MakeMapWithSize(t, len(n.Content)/2)
	d.pairs(n, path, func(k, c *yaml.Node) {
		e := reflect.New(t.Elem()).Elem()
		d.child(k, c, e, path+"["+k.Value+"]", depth)
		m.SetMapIndex(reflect.ValueOf(k.Value).Convert(t.Key()), e)
	})
	v.Set(m)
}

// child decodes the value c of key k. A block is placed at its key.
func (d *decoder) child(k, c *yaml.Node, v reflect.Value, path string, depth int) {
	d.doc.fields[path] = position{c.Line, c.Column}
	if c.Kind != yaml.ScalarNode || isNull(c) {
		d.doc.fields[path] = position{k.Line, k.Column}
	}
	d.value(c, v, path, depth+1)
}

// pairs calls each for the keys and values of a mapping, and refuses what is no
// key: duplicates, merges and lists.
func (d *decoder) pairs(n *yaml.Node, path string, each func(k, v *yaml.Node)) {
	lines := map[string]int{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		k, at := n.Content[i], position{n.Content[i].Line, n.Content[i].Column}
		switch {
		case k.Kind == yaml.ScalarNode && k.Tag == "!!merge":
			d.add(at, path, "write the fields out", "merging with << is not understood")
		case k.Kind != yaml.ScalarNode:
			d.add(at, path, "", "%s cannot be the name of a field", describe(k))
		case lines[k.Value] != 0:
			d.add(at, join(path, k.Value), "take one of them out", "is written twice, first in line %d", lines[k.Value])
		default:
			lines[k.Value] = k.Line
			each(k, n.Content[i+1])
		}
		if len(d.errs) > maxErrors {
			return
		}
	}
}

func (d *decoder) unknown(k *yaml.Node, path string, fields map[string]reflect.StructField) {
	names := make([]string, 0, len(fields))
	for f := range fields {
		names = append(names, f)
	}
	slices.Sort(names)
	remedy := "the fields here are " + strings.Join(names, ", ")
	if w := onpath.Nearest(k.Value, names); w != "" {
		remedy = "did you mean " + w + "?"
	}
	d.add(position{k.Line, k.Column}, path, remedy, "unknown field %s", shown(k))
}

// jsonFields maps the JSON names of t's fields to them, embedded ones included.
func jsonFields(t reflect.Type) map[string]reflect.StructField {
	fields := map[string]reflect.StructField{}
	for _, f := range reflect.VisibleFields(t) {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		if f.IsExported() && name != "-" && name != "" {
			fields[name] = f
		}
	}
	return fields
}

func join(path, name string) string {
	if path == "" {
		return name
	}
	return path + "." + name
}

// viaJSON decodes a scalar into a type with its own JSON form.
func viaJSON(s string, v reflect.Value) (handled bool, err error) {
	u, ok := v.Addr().Interface().(json.Unmarshaler)
	if !ok {
		return false, nil
	}
	data, err := json.Marshal(s)
	if err != nil {
		return true, err
	}
	return true, u.UnmarshalJSON(data)
}
