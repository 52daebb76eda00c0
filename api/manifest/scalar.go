package manifest

import (
	"encoding"
	"fmt"
	"math"
	"reflect"
	"regexp"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

func isNull(n *yaml.Node) bool {
	return n.Kind == yaml.ScalarNode && n.Tag == "!!null"
}

// scalar decodes a single value.
func (d *decoder) scalar(n *yaml.Node, v reflect.Value, path string) {
	at := position{n.Line, n.Column}
	if strings.HasPrefix(n.Tag, "!") && !strings.HasPrefix(n.Tag, "!!") || n.Tag == "!!binary" {
		d.add(at, path, "take the tag out", "the tag %s is not understood", n.Tag)
		return
	}
	if u, ok := v.Addr().Interface().(encoding.TextUnmarshaler); ok {
		if err := u.UnmarshalText([]byte(n.Value)); err != nil {
			d.badText(n, path, err)
		}
		return
	}
	if handled, err := viaJSON(n.Value, v); handled {
		if err != nil {
			d.badText(n, path, err)
		}
		return
	}
	switch v.Kind() {
	case reflect.String:
		d.text(n, v, path)
	case reflect.Bool:
		var b bool
		if n.Tag != "!!bool" || n.Decode(&b) != nil {
			d.add(at, path, "write true or false", "%s is neither true nor false", shown(n))
		}
		v.SetBool(b)
	case reflect.Int, reflect.Int32, reflect.Int64, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		d.integer(n, v, path)
	case reflect.Float64:
		var f float64
		if n.Tag != "!!int" && n.Tag != "!!float" || n.Decode(&f) != nil || math.IsInf(f, 0) || math.IsNaN(f) {
			d.add(at, path, "write one such as 0.5", "%s is not a number", shown(n))
		}
		v.SetFloat(f)
	default:
		d.wrongType(n, v, path)
	}
}

// badText reports that a value's own parser refused it; the parser's words name
// the value already.
func (d *decoder) badText(n *yaml.Node, path string, err error) {
	message := err.Error()
	if len(n.Value) > 200 {
		message = strings.ReplaceAll(message, n.Value, n.Value[:80]+"…")
	}
	if strings.HasPrefix(message, "parsing time ") || strings.HasPrefix(message, "Time.UnmarshalText") { // time's
		message = shown(n) + " is not a time (write 2026-03-29T01:30:00Z, or with its offset from UTC, 2026-03-29T03:30:00+02:00)"
	}
	if strings.HasPrefix(message, "ParseAddr(") { // netip's
		message = shown(n) + " is not an IP address (write 10.255.0.7 or 2001:db8::7)"
	}
	d.add(position{n.Line, n.Column}, path, "", "%s", message)
}

// text takes only what YAML holds for text: 8080 and true would come out
// differently in other programs.
func (d *decoder) text(n *yaml.Node, v reflect.Value, path string) {
	switch n.Tag {
	case "!!str", "!!timestamp":
		v.SetString(n.Value)
	default:
		d.add(position{n.Line, n.Column}, path, "write it in quotes: "+strconv.Quote(n.Value),
			"%s is %s where text is wanted", shown(n), describe(n))
	}
}

// digits is a whole number, however large.
var digits = regexp.MustCompile(`^[+-]?[0-9]+$`)

func (d *decoder) integer(n *yaml.Node, v reflect.Value, path string) {
	at := position{n.Line, n.Column}
	var i int64
	var u uint64
	switch {
	case n.Tag == "!!float" && digits.MatchString(n.Value):
		d.add(at, path, nearer(n, v), "%s is out of range", n.Value)
	case n.Tag == "!!str" && digits.MatchString(n.Value):
		d.add(at, path, "take the quotes away: "+n.Value, "%s is text where a whole number is wanted", shown(n))
	case n.Tag != "!!int":
		d.add(at, path, "write one such as 3", "%s is not a whole number", shown(n))
	case v.CanInt() && (n.Decode(&i) != nil || v.OverflowInt(i)), v.CanUint() && (n.Decode(&u) != nil || v.OverflowUint(u)):
		d.add(at, path, nearer(n, v), "%s is out of range", shown(n))
	case v.CanInt():
		v.SetInt(i)
	default:
		v.SetUint(u)
	}
}

// nearer is what to do about a number that its field cannot hold.
func nearer(n *yaml.Node, v reflect.Value) string {
	switch negative := strings.HasPrefix(n.Value, "-"); {
	case negative && v.CanUint():
		return "write 0 or more"
	case negative:
		return "write a larger number"
	}
	return "write a smaller number"
}

func (d *decoder) wrongType(n *yaml.Node, v reflect.Value, path string) {
	wanted := "a single value"
	if _, single := v.Addr().Interface().(encoding.TextUnmarshaler); !single {
		switch v.Kind() {
		case reflect.Struct, reflect.Map:
			wanted = "a mapping (name: value)"
		case reflect.Slice:
			wanted = "a list ([a, b], or lines with - before them)"
		case reflect.String:
			wanted = "text"
		case reflect.Bool:
			wanted = "true or false"
		case reflect.Int, reflect.Int64, reflect.Uint16, reflect.Uint32:
			wanted = "a whole number"
		}
	}
	d.add(position{n.Line, n.Column}, path, "", "is %s where %s is wanted", describe(n), wanted)
}

// describe names what sort of value n is.
func describe(n *yaml.Node) string {
	switch n.Kind {
	case yaml.MappingNode:
		return "a mapping"
	case yaml.SequenceNode:
		return "a list"
	case yaml.AliasNode:
		return "an alias"
	}
	switch n.Tag {
	case "!!int", "!!float":
		return "a number"
	case "!!bool":
		return "a truth value"
	case "!!null":
		return "nothing"
	}
	return "text"
}

// shown is a value in quotes, shortened if it is long.
func shown(n *yaml.Node) string {
	s := n.Value
	if n.Kind != yaml.ScalarNode {
		return describe(n)
	}
	if r := []rune(s); len(r) > 60 {
		s = string(r[:57]) + "…"
	}
	return fmt.Sprintf("%q", s)
}
