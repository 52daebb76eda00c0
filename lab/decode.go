package lab

import (
	"fmt"
	"slices"
	"strings"

	"github.com/onpath/onpath"
	"go.yaml.in/yaml/v3"
)

// decoder walks a YAML tree and collects errors with their places. Values are
// read by hand rather than into structs, because a lab's file has short forms,
// and because each error should say what to write instead.
type decoder struct {
	file string
	errs onpath.Errors
}

// maxErrors ends the walk of a file that is wrong throughout.
const maxErrors = 50

func (d *decoder) fail(n *yaml.Node, field, remedy, format string, args ...any) {
	if len(d.errs) >= maxErrors {
		return
	}
	place := d.file
	if n != nil {
		place = fmt.Sprintf("%s:%d:%d", d.file, n.Line, n.Column)
	}
	d.errs = append(d.errs, &onpath.Error{
		Code: onpath.CodeInvalid, Place: place, Field: field,
		Message: fmt.Sprintf(format, args...), Remedy: remedy,
	})
}

// resolve follows an alias to what it stands for.
func resolve(n *yaml.Node) *yaml.Node {
	for i := 0; n.Kind == yaml.AliasNode && i < 8; i++ {
		n = n.Alias
	}
	return n
}

// entry is one key of a mapping and the function that reads its value.
type entry struct {
	key  string
	read func(n *yaml.Node, field string)
}

// mapping reads a mapping whose keys are known. Null stands for an empty one.
func (d *decoder) mapping(n *yaml.Node, field string, entries ...entry) {
	names := make([]string, len(entries))
	for i, e := range entries {
		names[i] = e.key
	}
	d.pairs(n, field, func(key, value *yaml.Node) {
		i := slices.Index(names, key.Value)
		if i < 0 {
			remedy := "known are " + strings.Join(names, ", ")
			if near := onpath.Nearest(key.Value, names); near != "" {
				remedy = "did you mean " + near + "?"
			}
			d.fail(key, field, remedy, "unknown key %s", quoted(key.Value))
			return
		}
		if isNull(value) {
			d.fail(value, below(field, key.Value), "give it a value or take it out", "is empty")
			return
		}
		entries[i].read(value, below(field, key.Value))
	})
}

// pairs calls visit for each key of a mapping; twice the same key is an error.
func (d *decoder) pairs(n *yaml.Node, field string, visit func(key, value *yaml.Node)) {
	n = resolve(n)
	if isNull(n) {
		return
	}
	if n.Kind != yaml.MappingNode {
		d.fail(n, field, "write key: value", "is %s where a mapping is expected", kindOf(n))
		return
	}
	seen := map[string]int{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key := resolve(n.Content[i])
		if key.Kind != yaml.ScalarNode {
			d.fail(key, field, "", "a key must be a word")
			continue
		}
		if line, twice := seen[key.Value]; twice {
			d.fail(key, field, "take one out", "%s stands here twice; the first is in line %d", quoted(key.Value), line)
			continue
		}
		seen[key.Value] = key.Line
		visit(key, resolve(n.Content[i+1]))
	}
}

// list calls visit for each element of a sequence.
func (d *decoder) list(n *yaml.Node, field string, visit func(n *yaml.Node, field string)) {
	n = resolve(n)
	if n.Kind != yaml.SequenceNode {
		d.fail(n, field, "write [first, second]", "is %s where a list is expected", kindOf(n))
		return
	}
	for i, e := range n.Content {
		visit(resolve(e), fmt.Sprintf("%s[%d]", field, i))
	}
}

// scalar is a word or number as it is written.
func (d *decoder) scalar(n *yaml.Node, field string) (string, bool) {
	n = resolve(n)
	if n.Kind != yaml.ScalarNode || isNull(n) {
		d.fail(n, field, "", "is %s where a single value is expected", kindOf(n))
		return "", false
	}
	if strings.ContainsRune(n.Value, 0) {
		d.fail(n, field, "", "contains a zero byte")
		return "", false
	}
	return n.Value, true
}

// text reads a value that unmarshals itself from text, such as onpath.Rate.
func (d *decoder) text(n *yaml.Node, field string, to interface{ UnmarshalText([]byte) error }) bool {
	s, ok := d.scalar(n, field)
	if !ok {
		return false
	}
	if err := to.UnmarshalText([]byte(s)); err != nil {
		d.fail(n, field, "", "%s", err)
		return false
	}
	return true
}

// boolean reads on, off, true, false, yes, no.
func (d *decoder) boolean(to *bool) func(*yaml.Node, string) {
	return func(n *yaml.Node, field string) {
		s, ok := d.scalar(n, field)
		if !ok {
			return
		}
		switch s {
		case "on", "true", "yes":
			*to = true
		case "off", "false", "no":
			*to = false
		default:
			d.fail(n, field, "write on or off", "%s is neither on nor off", quoted(s))
		}
	}
}

// words reads a list of strings.
func (d *decoder) words(to *[]string) func(*yaml.Node, string) {
	return func(n *yaml.Node, field string) {
		d.list(n, field, func(n *yaml.Node, field string) {
			if s, ok := d.scalar(n, field); ok {
				*to = append(*to, s)
			}
		})
	}
}

// dictionary reads a mapping from words to words.
func (d *decoder) dictionary(to *map[string]string) func(*yaml.Node, string) {
	return func(n *yaml.Node, field string) {
		*to = map[string]string{}
		d.pairs(n, field, func(key, value *yaml.Node) {
			if s, ok := d.scalar(value, below(field, key.Value)); ok {
				(*to)[key.Value] = s
			}
		})
	}
}

func isNull(n *yaml.Node) bool { return n.Kind == yaml.ScalarNode && n.Tag == "!!null" }

func kindOf(n *yaml.Node) string {
	switch n.Kind {
	case yaml.MappingNode:
		return "a mapping"
	case yaml.SequenceNode:
		return "a list"
	case yaml.ScalarNode:
		if isNull(n) {
			return "empty"
		}
		return quoted(n.Value)
	}
	return "something else"
}

func below(field, key string) string {
	if field == "" {
		return key
	}
	return field + "." + key
}

// quoted is s in quotes, shortened if it is long.
func quoted(s string) string {
	if r := []rune(s); len(r) > 60 {
		s = string(r[:57]) + "…"
	}
	return fmt.Sprintf("%q", s)
}
