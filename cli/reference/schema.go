package reference

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"strings"
)

// SchemaID names the schema; editors that fetch schemas by it find none, and
// use the file they were given.
const SchemaID = "https://onpath.dev/schema/v1alpha1.json"

type object = map[string]any

// ownForms are types with a text form of their own.
var ownForms = map[string]object{
	"CPU":            {"type": []string{"string", "number"}, "pattern": `^[0-9]+(\.[0-9]+)?m?$`, "examples": []string{"500m", "2"}},
	"Size":           {"type": []string{"string", "integer"}, "pattern": `^[0-9]+(\.[0-9]+)?([KMGT]i|[kKMGT])?$`, "examples": []string{"256Mi", "1Gi"}},
	"Rate":           {"type": "string", "pattern": `^[0-9]+(\.[0-9]+)?[TGMk]?bit$`, "examples": []string{"1Gbit", "100Mbit"}},
	"Percent":        {"type": "string", "pattern": `^[0-9]+(\.[0-9]+)?%$`, "examples": []string{"5%"}},
	"Duration":       {"type": "string", "pattern": `^([0-9]+(\.[0-9]+)?(ns|us|µs|ms|s|m|h))+$`, "examples": []string{"100ms", "60s"}},
	"Port":           {"type": "integer", "minimum": 1, "maximum": 65535},
	"PortRange":      {"type": []string{"string", "integer"}, "pattern": `^[0-9]+(-[0-9]+)?$`, "minimum": 0, "maximum": 65535, "examples": []string{"80", "8000-8999"}},
	"Protocol":       {"type": []string{"string", "integer"}, "pattern": `^(tcp|udp|icmp|[0-9]{1,3})$`, "minimum": 0, "maximum": 255, "examples": []string{"tcp", "udp", "icmp"}},
	"Money":          {"type": []string{"string", "number"}, "pattern": `^-?[0-9]+(\.[0-9]{1,6})?$`, "examples": []string{"0.036", "12.50"}},
	"ServedPort":     {"type": "string", "pattern": `^(tcp|udp)/[0-9]+$`, "examples": []string{"tcp/80", "udp/5060"}},
	"Note":           {"type": "string"},
	"Prefix":         {"type": "string", "examples": []string{"198.51.100.10", "198.51.100.0/24", "2001:db8::/32"}},
	"netip.Addr":     {"type": "string", "examples": []string{"10.255.0.7", "2001:db8::7"}},
	"netip.AddrPort": {"type": "string", "examples": []string{"10.255.0.7:4799"}},
	"netip.Prefix":   {"type": "string", "examples": []string{"10.255.0.7/24"}},
	"time.Time":      {"type": "string", "format": "date-time"},
	"ObjectCode":     {"type": "string", "contentEncoding": "base64"},
	"PublicKey":      {"type": "string", "contentEncoding": "base64"},
	"string":         {"type": "string"},
	"bool":           {"type": "boolean"},
	"int":            {"type": "integer"},
	"int64":          {"type": "integer"},
	"uint16":         {"type": "integer", "minimum": 0, "maximum": 65535},
	"uint32":         {"type": "integer", "minimum": 0},
	"float64":        {"type": "number"},
}

// Schema is the JSON Schema (draft 2020-12) of all resources that people write.
func (s *Source) Schema(readOnly func(kind string) bool) ([]byte, error) {
	g := &schema{src: s, defs: object{}}
	var names []string
	var branches []object
	for _, k := range s.Kinds {
		if readOnly(k) {
			continue
		}
		names = append(names, k)
		g.defs[k] = g.resource(k)
		branches = append(branches, object{
			"if":   object{"properties": object{"kind": object{"const": k}}, "required": []string{"kind"}},
			"then": object{"$ref": "#/$defs/" + k},
		})
	}
	root := object{
		"$schema": "https://json-schema.org/draft/2020-12/schema", "$id": SchemaID,
		"title": "onpath resource", "type": "object", "$defs": g.defs,
		"required": []string{"apiVersion", "kind", "metadata"},
		"properties": object{
			"apiVersion": object{"const": s.APIVersion},
			"kind":       object{"enum": names},
		},
		"allOf": branches,
	}
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", " ")
	if err := enc.Encode(root); err != nil {
		return nil, err
	}
	return b.Bytes(), g.err
}

type schema struct {
	src  *Source
	defs object
	err  error
}

// resource is the schema of one kind.
func (g *schema) resource(kind string) object {
	t := g.src.Types[kind]
	if t == nil {
		g.err = fmt.Errorf("no type %s for the kind of that name", kind)
		return nil
	}
	o := g.structure(t)
	p := o["properties"].(object)
	p["apiVersion"], p["kind"] = object{"const": g.src.APIVersion}, object{"const": kind}
	required := []string{"apiVersion", "kind", "metadata"}
	if spec := g.src.Types[kind+"Spec"]; spec != nil && len(needed(spec)) > 0 {
		required = append(required, "spec")
	}
	o["required"] = required
	return o
}

func (g *schema) structure(t *Type) object {
	p := object{}
	for _, f := range t.Fields {
		p[f.Name] = g.field(f)
	}
	o := object{"type": "object", "additionalProperties": false, "properties": p}
	if t.Doc != "" {
		o["description"] = t.Doc
	}
	if list := needed(t); len(list) > 0 {
		o["required"] = list
	}
	return o
}

// needed are the fields that must be written. Nothing of a status is.
func needed(t *Type) (list []string) {
	if strings.HasSuffix(t.Name, "Status") || t.Name == "Condition" {
		return nil
	}
	for _, f := range t.Fields {
		if !f.Optional {
			list = append(list, f.Name)
		}
	}
	return list
}

func (g *schema) field(f Field) object {
	o := g.of(f.Type)
	if f.Doc != "" {
		c := object{"description": f.Doc}
		for k, v := range o {
			c[k] = v
		}
		c["description"] = f.Doc
		return c
	}
	return o
}

// of is the schema of a Go type as written.
func (g *schema) of(name string) object {
	name = strings.TrimPrefix(name, "*")
	if o, ok := ownForms[name]; ok {
		return o
	}
	if e, ok := strings.CutPrefix(name, "[]"); ok {
		return object{"type": "array", "items": g.of(e)}
	}
	if e, ok := strings.CutPrefix(name, "map[string]"); ok {
		return object{"type": "object", "additionalProperties": g.of(e)}
	}
	t := g.src.Types[name]
	switch {
	case t == nil:
		g.err = fmt.Errorf("no schema for type %s", name)
		return nil
	case t.OwnForm && wordOrObject[name].words == nil && len(t.Values) == 0:
		g.err = fmt.Errorf("type %s reads a form of its own: add the form to ownForms", name)
		return nil
	case t.Under != "struct" && len(t.Values) == 0:
		return g.of(t.Under)
	}
	if _, done := g.defs[name]; !done {
		g.defs[name] = object{} // against recursion
		g.defs[name] = g.define(t)
	}
	return object{"$ref": "#/$defs/" + name}
}

func (g *schema) define(t *Type) object {
	if len(t.Values) > 0 {
		var words []string
		for _, v := range t.Values {
			words = append(words, v.Literal)
		}
		return object{"type": "string", "enum": words, "description": t.Doc}
	}
	o := g.structure(t)
	if form := wordOrObject[t.Name]; form.words != nil {
		maps.Copy(o, form.bounds)
		return object{"oneOf": []object{{"enum": form.words}, o}}
	}
	return o
}

// wordOrObject are types that are one of the words, or an object within the bounds.
var wordOrObject = map[string]struct {
	words  []string
	bounds object
}{
	"Endpoints":     {[]string{"any"}, object{"minProperties": 1, "maxProperties": 1}},
	"ScalingMetric": {[]string{"pushed", "packets", "bytes", "dropped"}, object{"required": []string{"url", "query"}}},
}
