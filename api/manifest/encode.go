package manifest

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"strconv"

	"go.yaml.in/yaml/v3"

	"github.com/onpath/onpath"
)

// Encode writes objects as YAML documents, fields in the order of their types,
// with what the server set (status, version): Load forgets that again, so the
// output can be edited and applied.
func Encode(w io.Writer, objects ...onpath.Object) error {
	if len(objects) == 0 {
		return nil // an encoder without a document fails
	}
	out := yaml.NewEncoder(w)
	out.SetIndent(2)
	for _, o := range objects {
		n, err := toNode(o)
		if err != nil {
			return err
		}
		if err := out.Encode(n); err != nil {
			return fmt.Errorf("write %s: %w", onpath.KeyOf(o), err)
		}
	}
	return out.Close()
}

// EncodeValue writes any value that has a JSON form as YAML.
func EncodeValue(w io.Writer, value any) error {
	n, err := toNode(value)
	if err != nil {
		return err
	}
	out := yaml.NewEncoder(w)
	out.SetIndent(2)
	if err := out.Encode(n); err != nil {
		return fmt.Errorf("write YAML: %w", err)
	}
	return out.Close()
}

// toNode takes the way through JSON, which is YAML too and keeps the order of
// fields and every type's own text form.
func toNode(value any) (*yaml.Node, error) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(value); err != nil {
		return nil, fmt.Errorf("encode: %w", err)
	}
	var n yaml.Node
	if err := yaml.Unmarshal(b.Bytes(), &n); err != nil {
		return nil, fmt.Errorf("encode: %w", err)
	}
	blockStyle(&n)
	return &n, nil
}

// blockStyle turns JSON's braces and quotes into plain YAML; lists of single
// values stay on one line, and file modes are octal as people write them.
func blockStyle(n *yaml.Node) {
	n.Style = 0
	if n.Kind == yaml.SequenceNode && len(n.Content) <= 8 && allScalars(n.Content) {
		n.Style = yaml.FlowStyle
	}
	for i, c := range n.Content {
		if n.Kind == yaml.MappingNode && i%2 == 1 && n.Content[i-1].Value == "mode" && c.Tag == "!!int" {
			if mode, err := strconv.ParseUint(c.Value, 10, 32); err == nil {
				c.Value = fmt.Sprintf("%#o", mode)
			}
		}
		blockStyle(c)
	}
}

func allScalars(list []*yaml.Node) bool {
	for _, n := range list {
		if n.Kind != yaml.ScalarNode || len(n.Value) > 60 || bytes.ContainsRune([]byte(n.Value), '\n') {
			return false
		}
	}
	return true
}
