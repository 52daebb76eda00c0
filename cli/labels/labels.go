// Package labels reads selectors of labels, as they are written behind -l.
package labels

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// Selector chooses objects by their labels; all its terms must hold. The zero one
// chooses all.
type Selector []term

// term holds if the label's value is one of values, or, for not, if it is none of them
// or absent. Without values it asks whether the label is there.
type term struct {
	key    string
	values []string
	not    bool
}

var (
	name  = `[A-Za-z0-9](?:[A-Za-z0-9._/-]*[A-Za-z0-9])?`
	value = `(?:` + name + `)?`

	has   = regexp.MustCompile(`^(!?)\s*(` + name + `)$`)
	is    = regexp.MustCompile(`^(` + name + `)\s*(=|==|!=)\s*(` + value + `)$`)
	among = regexp.MustCompile(`^(` + name + `)\s+(in|notin)\s*\(([^()]*)\)$`)
)

// Parse reads terms with commas between: KEY=VALUE, KEY!=VALUE, KEY, !KEY,
// KEY in (A,B), KEY notin (A,B).
func Parse(s string) (Selector, error) {
	var list Selector
	for _, part := range split(s) {
		part = strings.TrimSpace(part)
		if m := has.FindStringSubmatch(part); m != nil {
			list = append(list, term{key: m[2], not: m[1] != ""})
		} else if m := is.FindStringSubmatch(part); m != nil {
			list = append(list, term{key: m[1], values: []string{m[3]}, not: m[2] == "!="})
		} else if m := among.FindStringSubmatch(part); m != nil {
			values := strings.Split(m[3], ",")
			for i := range values {
				values[i] = strings.TrimSpace(values[i])
			}
			list = append(list, term{key: m[1], values: values, not: m[2] == "notin"})
		} else {
			return nil, fmt.Errorf("%q is no selector of labels; write KEY=VALUE, KEY!=VALUE, KEY, !KEY or 'KEY in (A,B)', "+
				"with commas between", part)
		}
	}
	return list, nil
}

// split cuts at commas outside parentheses.
func split(s string) (parts []string) {
	depth, from := 0, 0
	for i, r := range s {
		switch {
		case r == '(':
			depth++
		case r == ')':
			depth--
		case r == ',' && depth == 0:
			parts, from = append(parts, s[from:i]), i+1
		}
	}
	return append(parts, s[from:])
}

// Matches reports whether all terms hold.
func (s Selector) Matches(labels map[string]string) bool {
	for _, t := range s {
		v, ok := labels[t.key]
		if t.values != nil {
			ok = ok && slices.Contains(t.values, v)
		}
		if ok == t.not {
			return false
		}
	}
	return true
}
