package manifest

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"reflect"

	"go.yaml.in/yaml/v3"

	"github.com/onpath/onpath"
)

// ReadStrict reads one YAML file into v, a pointer to a struct with json tags,
// as strictly as resources are read. The document has no object, but tells where
// fields stand. An error is an onpath.Errors with places.
func ReadStrict(path string, v any) (*Document, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, onpath.Errors{unreadable(path, err)}
	}
	defer f.Close()
	data, err := readLimited(f, path)
	var e *onpath.Error
	if errors.As(err, &e) {
		return nil, onpath.Errors{e}
	}
	return Strict(data, path, v)
}

// Strict is ReadStrict for text in memory; name stands in places. Empty text
// leaves v as it is.
func Strict(data []byte, name string, v any) (*Document, error) {
	doc := &Document{File: name, Line: 1, Column: 1, fields: map[string]position{}}
	if e := checkText(data, name); e != nil {
		return nil, onpath.Errors{e}
	}
	in := yaml.NewDecoder(bytes.NewReader(data))
	var n, second yaml.Node
	if err := decodeNode(in, &n); errors.Is(err, io.EOF) {
		return doc, nil
	} else if err != nil {
		return nil, inOrder([]located{syntaxError(data, name, err)})
	}
	if err := decodeNode(in, &second); !errors.Is(err, io.EOF) {
		return nil, onpath.Errors{invalid(fmt.Sprintf("%s:%d:1", name, max(second.Line, 1)), "there is more than one document", "keep one")}
	}
	if len(n.Content) == 0 || isNull(n.Content[0]) {
		return doc, nil
	}
	nodes := 0
	d := &decoder{doc: doc, nodes: &nodes}
	d.value(n.Content[0], reflect.ValueOf(v).Elem(), "", 0)
	return doc, inOrder(d.errs).Err()
}
