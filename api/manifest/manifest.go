// Package manifest reads resources from YAML and JSON files as people write
// them, strictly: an unknown field, a wrong type or a duplicate is an error
// with file, line, column and what was probably meant. It also writes objects
// as YAML, and holds the JSON Schema that editors use.
//
// It runs in the client. Files named by fromFile are read here and sent as
// content; paths of local images are made absolute for the client that pushes them.
package manifest

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/onpath/onpath"
)

// Limits of what is read. They stand far above what people write and far below
// what would hurt.
const (
	MaxFile      = 4 << 20 // bytes of one file
	MaxDocuments = 10_000  // in one Load
	MaxDepth     = 64      // of nesting
	MaxNodes     = 200_000 // values of one file, aliases expanded
	maxErrors    = 100     // reported for one file
)

// Document is one object and where it was written.
type Document struct {
	Object onpath.Object
	File   string
	Line   int
	Column int

	// Cut is the place of the value in whose middle the file may end, file:line:column:
	// a text or word behind which not even a line ends. "" for whole files.
	Cut string

	// Notes say what is worth knowing of the files that it names.
	Notes []string

	// fields maps the path of each field as errors name it to its place.
	fields map[string]position
	// order among the documents of one Load.
	order int
}

type position struct{ line, column int }

// Place is file:line:column of the beginning of the document.
func (d *Document) Place() string { return d.PlaceOf("") }

// PlaceOf is file:line:column of a field, or of the nearest thing around it
// that was written; "" where the document is of no file.
func (d *Document) PlaceOf(field string) string {
	if d.File == "" {
		return ""
	}
	p := d.position(field)
	return fmt.Sprintf("%s:%d:%d", d.File, p.line, p.column)
}

func (d *Document) position(field string) position {
	for field != "" {
		if p, ok := d.fields[field]; ok {
			return p
		}
		field = field[:max(strings.LastIndexAny(field, ".["), 0)]
	}
	return position{d.Line, d.Column}
}

// Objects are the objects of docs.
func Objects(docs []*Document) []onpath.Object {
	list := make([]onpath.Object, len(docs))
	for i, d := range docs {
		list[i] = d.Object
	}
	return list
}

// Locate adds places to the errors in err that are about objects of docs, and
// puts them into the order of the input. What is wrong with a field, such as a
// reference to nothing, is wrong input: its code becomes CodeInvalid. Other
// errors stay as they are.
func Locate(docs []*Document, err error) error {
	var es onpath.Errors
	if !errors.As(err, &es) {
		var e *onpath.Error
		if !errors.As(err, &e) {
			return err
		}
		es = onpath.Errors{e}
	}
	byKey := map[string]*Document{}
	for _, d := range docs {
		byKey[onpath.KeyOf(d.Object).String()] = d
	}
	list := make([]located, 0, len(es))
	for _, e := range es {
		c := *e
		at := located{order: MaxDocuments + 1} // behind everything that has a place
		if d := byKey[c.Object]; d != nil {
			p := d.position(c.Field)
			at.order, at.position = d.order, p
			if c.Place == "" {
				c.Place = d.PlaceOf(c.Field)
			}
			if c.Field != "" && slices.Contains(inputCodes, c.Code) {
				c.Code = onpath.CodeInvalid
			}
		}
		at.err = &c
		list = append(list, at)
	}
	return inOrder(list)
}

// inputCodes say of a field that the file has to be changed.
var inputCodes = []onpath.Code{onpath.CodeNotFound, onpath.CodeForbidden, onpath.CodeUnsupported}

// located is an error and its place in the order of the input: that of the
// documents (0 within one file), then of lines.
type located struct {
	err   *onpath.Error
	order int
	position
}

func inOrder(list []located) onpath.Errors {
	slices.SortStableFunc(list, func(a, b located) int {
		return cmp.Or(cmp.Compare(a.order, b.order), cmp.Compare(a.line, b.line), cmp.Compare(a.column, b.column))
	})
	es := make(onpath.Errors, len(list))
	for i, l := range list {
		es[i] = l.err
	}
	return es
}
