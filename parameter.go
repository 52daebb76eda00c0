package onpath

import (
	"fmt"
	"net/netip"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Parameter is a value that a function can be told: a variable of a container's env, a value of
// the config of the other kinds. A function that declares parameters is told no others.
type Parameter struct {
	Name string `json:"name"`
	// Type: text (default), integer, number, boolean, choice (one of Values), address (IPv4 or
	// IPv6), url (http://HOST:PORT), prefixes, ports and pairs (ADDRESS=ADDRESS; comma-separated), size
	// (64Mi), rate (10Mbit), duration (5s).
	Type string `json:"type,omitempty"`
	// Default holds where neither the function nor the deployment says a value.
	Default *string `json:"default,omitempty"`
	// Required: the function or the deployment has to say a value.
	Required bool `json:"required,omitempty"`
	// Least and Most bound a value of the types that have an order.
	Least  string   `json:"least,omitempty"`
	Most   string   `json:"most,omitempty"`
	Values []string `json:"values,omitempty"`
	// Description is one sentence for people.
	Description string `json:"description,omitempty"`
}

const maxParameters = 64

// parameterType is how values of a type are read.
type parameterType struct {
	name    string
	what    string // one value is
	example string
	// read gives the value's place in the type's order; 0 where it has none.
	read    func(string) (float64, error)
	ordered bool
}

var (
	wholeNumber = regexp.MustCompile(`^-?[0-9]{1,15}$`)
	plainNumber = regexp.MustCompile(`^-?[0-9]{1,15}(\.[0-9]{1,9})?$`)
)

// parameterTypes is the table of all types, a line each.
var parameterTypes = []parameterType{
	{"text", "text", "words", func(string) (float64, error) { return 0, nil }, false},
	{"integer", "an integer", "8", numberLike(wholeNumber), true},
	{"number", "a number", "0.5", numberLike(plainNumber), true},
	{"boolean", "a boolean", "true or false", readBoolean, false},
	{"choice", "a choice", "one of its values", func(string) (float64, error) { return 0, nil }, false},
	{"address", "an address", "198.51.100.10 or 2001:db8::10", readAddress, false},
	{"url", "a URL of HTTP", "http://198.51.100.10 or http://example.com:8080", readURL, false},
	{"prefixes", "a list of prefixes", "198.51.100.0/24,2001:db8::/32", eachOf(readPrefix), false},
	{"ports", "a list of ports", "80,8000-8999", eachOf(readPorts), false},
	{"pairs", "a list of pairs of addresses", "203.0.113.10=198.51.100.10,2001:db8::100=2001:db8::10", eachOf(readPair), false},
	{"size", "a size", "64Mi", readSize, true},
	{"rate", "a rate", "10Mbit", readRate, true},
	{"duration", "a duration", "5s", readDuration, true},
}

func numberLike(form *regexp.Regexp) func(string) (float64, error) {
	return func(s string) (float64, error) {
		if !form.MatchString(s) {
			return 0, strconv.ErrSyntax
		}
		return strconv.ParseFloat(s, 64)
	}
}

func readBoolean(s string) (float64, error) {
	if s != "true" && s != "false" {
		return 0, strconv.ErrSyntax
	}
	return 0, nil
}

func readAddress(s string) (float64, error) {
	a, err := netip.ParseAddr(s)
	if err == nil && (a.Zone() != "" || a.Is4In6()) {
		err = strconv.ErrSyntax
	}
	return 0, err
}

// readURL takes what fetch/1 and $NAME in a module's fetch take.
func readURL(s string) (float64, error) {
	u, err := url.Parse(s)
	if err != nil {
		return 0, err
	}
	_, ok := FetchHost(u.Host)
	if !ok || !strings.HasPrefix(s, "http://") || u.User != nil || strings.ContainsAny(s, " ?#") {
		err = strconv.ErrSyntax
	}
	return 0, err
}

func readPrefix(s string) error {
	var p Prefix
	return p.UnmarshalText([]byte(s))
}

// readPair reads two addresses of one IP version.
func readPair(s string) error {
	one, other, _ := strings.Cut(s, "=")
	for _, a := range []string{one, other} {
		if _, err := readAddress(a); err != nil {
			return err
		}
	}
	if strings.Contains(one, ":") != strings.Contains(other, ":") {
		return strconv.ErrSyntax
	}
	return nil
}

func readPorts(s string) error {
	var p PortRange
	return p.UnmarshalText([]byte(s))
}

// eachOf reads a list with commas; an empty one is a value, too.
func eachOf(read func(string) error) func(string) (float64, error) {
	return func(s string) (float64, error) {
		if s == "" {
			return 0, nil
		}
		for item := range strings.SplitSeq(s, ",") {
			if err := read(item); err != nil {
				return 0, err
			}
		}
		return 0, nil
	}
}

func readSize(s string) (float64, error) {
	var v Size
	err := v.UnmarshalText([]byte(s))
	return float64(v), err
}

// readRate takes the units in any case, as tc does.
func readRate(s string) (float64, error) {
	for _, u := range rateUnits {
		if n := len(s) - len(u.suffix); n > 0 && strings.EqualFold(s[n:], u.suffix) {
			s = s[:n] + u.suffix
			break
		}
	}
	var v Rate
	err := v.UnmarshalText([]byte(s))
	return float64(v), err
}

func readDuration(s string) (float64, error) {
	d, err := time.ParseDuration(s)
	if err == nil && d < 0 {
		err = strconv.ErrRange
	}
	return float64(d), err
}

func typeOf(name string) *parameterType {
	i := slices.IndexFunc(parameterTypes, func(t parameterType) bool { return t.name == name })
	if i < 0 {
		return nil
	}
	return &parameterTypes[i]
}

// fault says what is wrong with a value, and what would be right; "" if nothing is.
func (p *Parameter) fault(value string) (message, remedy string) {
	t := typeOf(p.Type)
	if t == nil {
		return "", "" // said of the parameter
	}
	if p.Type == "choice" && !slices.Contains(p.Values, value) {
		return fmt.Sprintf("%s is none of its values", quote(value)), "write " + alternatives(p.Values, "or")
	}
	n, err := t.read(value)
	if err != nil {
		return fmt.Sprintf("%s is not %s", quote(value), t.what), "write " + t.example
	}
	if low, err := t.read(p.Least); p.Least != "" && err == nil && n < low {
		return fmt.Sprintf("%s is too little", quote(value)), "write " + p.bounds()
	}
	if high, err := t.read(p.Most); p.Most != "" && err == nil && n > high {
		return fmt.Sprintf("%s is too much", quote(value)), "write " + p.bounds()
	}
	return "", ""
}

// bounds are the least and the most in words.
func (p *Parameter) bounds() string {
	switch {
	case p.Most == "":
		return p.Least + " or more"
	case p.Least == "":
		return p.Most + " or less"
	}
	return p.Least + " to " + p.Most
}

// Form is the type with its values or bounds, in words.
func (p *Parameter) Form() string {
	switch {
	case len(p.Values) > 0:
		return alternatives(p.Values, "or")
	case p.Least+p.Most != "":
		return p.Type + ", " + p.bounds()
	}
	return p.Type
}

// checkParameters checks what a function declares, and what it says itself.
func checkParameters(v *validation, s *FunctionSpec) {
	at := "spec.parameters"
	if len(s.Parameters) > maxParameters {
		v.add(at, "", "%d parameters are too many; at most %d", len(s.Parameters), maxParameters)
		return
	}
	seen := map[string]bool{}
	for i := range s.Parameters {
		p := &s.Parameters[i]
		if field := index(at, i); seen[p.Name] {
			v.add(field+".name", "take one of them out", "another parameter is named %s", quote(p.Name))
		} else {
			checkParameter(v, field, p)
		}
		seen[p.Name] = true
	}
	if _, spec := s.kind(); spec != nil && len(v.errs) == 0 {
		for field, env := range spec.values("spec." + string(s.Kind())) {
			for _, e := range checkValues(s.Parameters, env) {
				e.Object, e.Field = v.object, key(field, e.Field)
				v.errs = append(v.errs, e)
			}
		}
	}
}

func checkParameter(v *validation, at string, p *Parameter) {
	if len(p.Name) > 256 || !envName.MatchString(p.Name) {
		v.add(at+".name", "write letters, digits and _, no digit first", "%s is not the name of a value", quote(p.Name))
	}
	byDefault(&p.Type, "text")
	t := typeOf(p.Type)
	if t == nil {
		var names []string
		for _, t := range parameterTypes {
			names = append(names, t.name)
		}
		v.add(at+".type", "write "+alternatives(names, "or"), "%s is not a type", quote(p.Type))
		return
	}
	v.text(at+".description", p.Description, 512)
	if choice := p.Type == "choice"; choice != (len(p.Values) > 0) {
		if choice {
			v.add(at+".values", "write values: [ONE, OTHER]", "is missing: a choice is one of them")
		} else {
			v.add(at+".values", "write type: choice, or take it out", "only a choice has values")
		}
	}
	if len(p.Values) > maxParameters {
		v.add(at+".values", "", "%d values are too many; at most %d", len(p.Values), maxParameters)
	}
	checkBounds(v, at, p, t)
	if p.Default == nil {
		return
	}
	if p.Required {
		v.add(at+".required", "take one of them out", "what has a default is never missing")
	}
	v.text(at+".default", *p.Default, maxString)
	if message, remedy := p.fault(*p.Default); message != "" {
		v.add(at+".default", remedy, "%s", message)
	}
}

func checkBounds(v *validation, at string, p *Parameter, t *parameterType) {
	if !t.ordered && p.Least+p.Most != "" {
		v.add(at, "take least and most out", "values of type %s have no order", t.name)
		return
	}
	var bounds [2]float64
	for i, b := range []struct{ name, text string }{{"least", p.Least}, {"most", p.Most}} {
		if b.text == "" {
			continue
		}
		var err error
		if bounds[i], err = t.read(b.text); err != nil {
			v.add(at+"."+b.name, "write "+t.example, "%s is not of type %s", quote(b.text), t.name)
			return
		}
	}
	if p.Least != "" && p.Most != "" && bounds[0] > bounds[1] {
		v.add(at+".most", "exchange them", "%s is less than the least, %s", quote(p.Most), p.Least)
	}
}

// checkValues finds what is wrong with values of a function that declares parameters. An
// error's Field is the name.
func checkValues(declared []Parameter, env Env) (errs Errors) {
	if len(declared) == 0 {
		return nil
	}
	names := make([]string, len(declared))
	for i := range declared {
		names[i] = declared[i].Name
	}
	for _, name := range sortedKeys(env) {
		i := slices.Index(names, name)
		e := &Error{Code: CodeInvalid, Field: name}
		if i < 0 {
			e.Message, e.Remedy = "the function has no parameter of this name", meant(name, names)
		} else if e.Message, e.Remedy = declared[i].fault(env[name]); e.Message == "" {
			continue
		}
		errs = append(errs, e)
	}
	return errs
}

// CheckParameters finds what is wrong with the values that a deployment adds, by the parameters
// that the function declares: one at a time, and what is missing still. An error's Field is
// "env", with the name of the value in brackets where there is one.
func (s *FunctionSpec) CheckParameters(env Env) Errors {
	errs := checkValues(s.Parameters, env)
	for _, e := range errs {
		e.Field = key("env", e.Field)
	}
	own := s.ownValues()
	for _, p := range s.Parameters {
		_, here := env[p.Name]
		_, there := own[p.Name]
		if p.Required && !here && !there {
			e := &Error{Code: CodeInvalid, Field: "env", Message: p.Name + " is missing", Remedy: "write env: {" + p.Name + ": VALUE}"}
			if p.Description != "" {
				e.Remedy += " (" + strings.TrimSuffix(p.Description, ".") + ")"
			}
			errs = append(errs, e)
		}
	}
	return errs
}

// ownValues are the values in the function itself.
func (s *FunctionSpec) ownValues() (own Env) {
	if _, spec := s.kind(); spec != nil {
		for _, env := range spec.values("") {
			own = merged(own, env)
		}
	}
	return own
}

// defaults are the values of parameters for which nobody says one.
func (s *FunctionSpec) defaults() (env Env) {
	own := s.ownValues()
	for _, p := range s.Parameters {
		if _, ok := own[p.Name]; !ok && p.Default != nil {
			env = merged(env, Env{p.Name: *p.Default})
		}
	}
	return env
}
