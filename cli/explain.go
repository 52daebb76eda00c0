package cli

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/api/manifest"
	"github.com/onpath/onpath/cli/table"
)

func newExplain(g *global) *cobra.Command {
	return &cobra.Command{
		Use: "explain [KIND[.FIELD…]]", Short: "Show what a kind and its fields mean", GroupID: groupUse,
		Long: `Show what a kind of objects, or a field of it, means, which values it takes, and
the fields within. Without an argument: the kinds.`,
		Example: examples("onpath explain chain", "onpath explain chain.spec.through", "onpath explain node.spec.uplinks.attach"),
		Args:    cobra.MaximumNArgs(1), ValidArgsFunction: completeField,
		RunE: func(c *cobra.Command, args []string) error {
			if err := g.checkOutput(); err != nil {
				return err
			}
			if len(args) == 0 {
				args = []string{""}
			}
			f, err := explainField(args[0])
			if err != nil {
				return err
			}
			return g.print(c, f, f.write)
		},
	}
}

// explained is a kind or a field of one.
type explained struct {
	Path     string      `json:"path"`
	Type     string      `json:"type"`
	Meaning  string      `json:"meaning,omitempty"`
	Values   []string    `json:"values,omitempty"`
	Examples []string    `json:"examples,omitempty"`
	Required bool        `json:"required,omitempty"`
	Fields   []explained `json:"fields,omitempty"`
}

// schemaNode is what is used here of JSON Schema.
type schemaNode struct {
	Ref         string                 `json:"$ref"`
	Description string                 `json:"description"`
	Type        any                    `json:"type"`
	Enum        []any                  `json:"enum"`
	Const       any                    `json:"const"`
	Examples    []any                  `json:"examples"`
	Required    []string               `json:"required"`
	Properties  map[string]*schemaNode `json:"properties"`
	Items       *schemaNode            `json:"items"`
	Values      json.RawMessage        `json:"additionalProperties"`
	OneOf       []*schemaNode          `json:"oneOf"`
	Defs        map[string]*schemaNode `json:"$defs"`
}

func readSchema() (*schemaNode, error) {
	root := &schemaNode{}
	return root, json.Unmarshal(manifest.Schema, root)
}

// resolve is a node without references, with the description that stands nearest.
func (root *schemaNode) resolve(n *schemaNode) *schemaNode {
	for n.Ref != "" {
		to := *root.Defs[strings.TrimPrefix(n.Ref, "#/$defs/")]
		if n.Description != "" {
			to.Description = n.Description
		}
		n = &to
	}
	return n
}

// inner is where the fields within a node stand: in it, in the items of a list, in the
// values of a map, in one of several forms.
func (root *schemaNode) inner(n *schemaNode) *schemaNode {
	n = root.resolve(n)
	switch {
	case n.Properties != nil:
	case n.Items != nil:
		return root.inner(n.Items)
	case n.Values != nil && n.Values[0] == '{':
		values := &schemaNode{}
		if json.Unmarshal(n.Values, values) == nil {
			return root.inner(values)
		}
	case len(n.OneOf) > 0:
		for _, form := range n.OneOf {
			if in := root.inner(form); in.Properties != nil {
				return in
			}
		}
	}
	return n
}

// kind is what a node may be, in words.
func (root *schemaNode) kind(n *schemaNode) string {
	n = root.resolve(n)
	switch {
	case n.Items != nil:
		return "list of " + root.kind(n.Items)
	case n.Properties != nil:
		return "object"
	case n.Values != nil && n.Values[0] == '{':
		return "map"
	case n.Const != nil:
		return fmt.Sprintf("%q", n.Const)
	case len(n.OneOf) > 0:
		var forms []string
		for _, f := range n.OneOf {
			forms = append(forms, root.kind(f))
		}
		return strings.Join(forms, " or ")
	}
	switch t := n.Type.(type) {
	case string:
		return t
	case []any:
		var forms []string
		for _, form := range t {
			forms = append(forms, fmt.Sprint(form))
		}
		return strings.Join(forms, " or ")
	}
	return "string"
}

// explain describes a node, and the fields within if deep.
func (root *schemaNode) explain(path string, n *schemaNode, deep bool) explained {
	n = root.resolve(n)
	e := explained{Path: path, Type: root.kind(n), Meaning: n.Description}
	for _, v := range n.Enum {
		e.Values = append(e.Values, fmt.Sprint(v))
	}
	for _, v := range n.Examples {
		e.Examples = append(e.Examples, fmt.Sprint(v))
	}
	if !deep {
		return e
	}
	in := root.inner(n)
	if e.Meaning == "" {
		e.Meaning = in.Description
	}
	for _, name := range slices.Sorted(maps.Keys(in.Properties)) {
		f := root.explain(name, in.Properties[name], false)
		f.Required = slices.Contains(in.Required, name)
		e.Fields = append(e.Fields, f)
	}
	return e
}

// explainField finds KIND.FIELD.FIELD…; "" are the kinds.
func explainField(path string) (explained, error) {
	root, err := readSchema()
	if err != nil {
		return explained{}, err
	}
	if path == "" {
		e := explained{Path: "kinds", Type: "onpath/v1alpha1"}
		for _, k := range onpath.Kinds() {
			if n := root.Defs[string(k)]; n != nil {
				e.Fields = append(e.Fields, root.explain(strings.ToLower(string(k)), n, false))
			}
		}
		return e, nil
	}
	words := strings.Split(strings.ReplaceAll(path, "[]", ""), ".")
	kind, err := parseKind(words[0])
	if err != nil {
		return explained{}, err
	}
	n, at := root.Defs[string(kind)], strings.ToLower(string(kind))
	if n == nil {
		return explained{}, badUsage("%s are written by onpath itself; onpath describe %s NAME shows one", kind.Plural(), at)
	}
	for _, w := range words[1:] {
		in := root.inner(n)
		next, ok := in.Properties[w]
		if !ok {
			return explained{}, noField(at, w, slices.Sorted(maps.Keys(in.Properties)))
		}
		n, at = next, at+"."+w
	}
	return root.explain(at, n, true), nil
}

func noField(at, word string, there []string) error {
	if len(there) == 0 {
		return badUsage("%s has no fields within", at)
	}
	if w := onpath.Nearest(word, there); w != "" {
		return badUsage("%s has no field %q; did you mean %s?", at, word, w)
	}
	return badUsage("%s has no field %q; there are %s", at, word, strings.Join(there, ", "))
}

func (e explained) write(w io.Writer) error {
	fmt.Fprintf(w, "%s: %s\n", e.Path, e.Type)
	if e.Meaning != "" {
		fmt.Fprintln(w, table.Fill(e.Meaning, helpWidth))
	}
	for head, list := range map[string][]string{"values": e.Values, "examples": e.Examples} {
		if len(list) > 0 {
			fmt.Fprintf(w, "%s: %s\n", head, strings.Join(list, ", "))
		}
	}
	if len(e.Fields) == 0 {
		return nil
	}
	fmt.Fprintln(w)
	t := table.New("FIELD", "TYPE", "MEANING")
	for _, f := range e.Fields {
		text := f.Meaning
		if len(f.Values) > 0 {
			text = strings.TrimSpace(text + " (" + strings.Join(f.Values, ", ") + ")")
		}
		if f.Required {
			text = strings.TrimSpace("required. " + text)
		}
		t.Row(f.Path, f.Type, text)
	}
	return t.Write(w)
}

// completeField completes KIND.FIELD.FIELD….
func completeField(_ *cobra.Command, args []string, word string) (list []string, _ cobra.ShellCompDirective) {
	const more = cobra.ShellCompDirectiveNoFileComp | cobra.ShellCompDirectiveNoSpace
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	before := strings.LastIndex(word, ".")
	if before < 0 {
		for _, k := range onpath.Kinds() {
			list = append(list, strings.ToLower(string(k)))
		}
		return list, more
	}
	e, err := explainField(word[:before])
	if err != nil {
		return nil, more
	}
	for _, f := range e.Fields {
		if strings.HasPrefix(f.Path, word[before+1:]) {
			list = append(list, word[:before+1]+f.Path)
		}
	}
	return list, more
}

func newSchema(*global) *cobra.Command {
	return &cobra.Command{
		Use:   "schema",
		Short: "Print the JSON Schema of resources, for editors",
		Long: "Print the JSON Schema (draft 2020-12) of resources. Editors with a YAML language\nserver use it to complete and " +
			"check files:\n\n  # yaml-language-server: $schema=./onpath.schema.json",
		Example: examples("onpath schema >onpath.schema.json"),
		GroupID: groupAround,
		Args:    cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			_, err := c.OutOrStdout().Write(manifest.Schema)
			return err
		},
	}
}
