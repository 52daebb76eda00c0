package onpath

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// Bounds of what an object may say. They stand above what one machine or one
// cloudlet can hold, and below what would hurt the store or the planner.
const (
	MaxName           = 63   // characters of a DNS label
	MaxDeploymentName = 57   // an instance's name is its deployment's and "-xxxxx"
	MaxInstances      = 1000 // of a deployment, in each cloudlet
	MaxPriority       = 1_000_000
	MaxWeight         = 1000
	MaxFileBytes      = 512 << 10 // all files of one object together
	MinMTU            = 1280      // bytes; IPv6 needs that much
	MaxMTU            = 65535

	maxLabels    = 64
	maxPrefixes  = 10_000  // of one list
	maxHosts     = 100_000 // addresses of a Hosts
	maxSelectors = 1024
	maxPorts     = 256
	maxUplinks   = 64
	maxStrings   = 1024 // entries of a command, an environment, …
	maxString    = 32 << 10
)

var (
	dnsLabel  = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`)
	labelKey  = regexp.MustCompile(`^[A-Za-z0-9]([-A-Za-z0-9_./]*[A-Za-z0-9])?$`)
	eventName = regexp.MustCompile(`^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$`)
)

// validation collects the errors of one object, in the order of its fields.
type validation struct {
	object string
	errs   Errors
}

// begin checks what all objects have and returns the collector for the rest.
func begin(o Object, t *TypeMeta) *validation {
	v := &validation{}
	kind := o.ObjectKind()
	if t.APIVersion == "" {
		t.APIVersion = APIVersion
	}
	if t.Kind == "" {
		t.Kind = kind
	}
	m := o.Meta()
	if kind.Tenanted() && m.Tenant == "" {
		m.Tenant = DefaultTenant
	}
	if v.object = KeyOf(o).String(); m.Name == "" || len(m.Name) > 253 {
		v.object = strings.ToLower(string(kind)) // no name to call it by
	}
	if t.APIVersion != APIVersion {
		v.add("apiVersion", "write "+APIVersion, "%q is not a version that this onpath knows", t.APIVersion)
	}
	if t.Kind != kind {
		v.add("kind", "write "+string(kind), "%q is not the kind of this object", t.Kind)
	}
	v.metadata(kind, m)
	return v
}

func (v *validation) metadata(kind Kind, m *Metadata) {
	switch {
	case m.Name == "":
		v.add("metadata.name", "give the object a name", "is missing")
	case kind == KindEvent:
		if len(m.Name) > 253 || !eventName.MatchString(m.Name) {
			v.add("metadata.name", "", "%s is not the name of an event", quote(m.Name))
		}
	case kind == KindDeployment && len(m.Name) > MaxDeploymentName:
		v.add("metadata.name", "shorten it", "%s has %d characters; a deployment's name has at most %d, because its instances' names add six",
			quote(m.Name), len(m.Name), MaxDeploymentName)
	default:
		v.name("metadata.name", m.Name)
	}
	if kind.Tenanted() {
		v.name("metadata.tenant", m.Tenant)
	} else if m.Tenant != "" {
		v.add("metadata.tenant", "take it out", "a %s belongs to the operator and has no tenant", strings.ToLower(string(kind)))
	}
	v.labels("metadata.labels", m.Labels)
	if name, ok := m.Labels["name"]; kind == KindNode && ok && name != m.Name {
		v.add("metadata.labels[name]", "take it out", "the label name always is the node's name")
	}
}

// add notes one error. remedy may be empty.
func (v *validation) add(field, remedy, format string, args ...any) {
	v.errs = append(v.errs, &Error{
		Code: CodeInvalid, Object: v.object, Field: field, Remedy: remedy,
		Message: fmt.Sprintf(format, args...),
	})
}

// err is the result of a Validate.
func (v *validation) err() error { return v.errs.Err() }

// name checks a DNS label (RFC 1123) of at most MaxName characters.
func (v *validation) name(field, s string) bool {
	if s == "" {
		v.add(field, "give a name", "is missing")
		return false
	}
	if len(s) <= MaxName && dnsLabel.MatchString(s) {
		return true
	}
	if low := strings.ToLower(s); low != s && len(s) <= MaxName && dnsLabel.MatchString(low) {
		v.add(field, "write "+low, "%s is not a name: names are lower-case", quote(s))
		return false
	}
	v.add(field, "", "%s is not a name: 1 to %d lower-case letters, digits and hyphens, no hyphen first or last", quote(s), MaxName)
	return false
}

// names checks a set of names and puts it into order.
func (v *validation) names(field string, list []string) []string {
	for i, s := range list {
		at := index(field, i)
		if v.name(at, s) && slices.Contains(list[:i], s) {
			v.add(at, "take it out", "%q stands here twice", s)
		}
	}
	return sorted(list, strings.Compare)
}

// ref checks a reference and writes it in its short form if it stays within
// tenant own. It reports whether it is well-formed.
func (v *validation) ref(field string, r *Ref, what, own string) bool {
	tenant, name, ok := strings.Cut(string(*r), "/")
	if !ok {
		tenant, name = own, string(*r)
	}
	if !isName(tenant) || !isName(name) {
		v.add(field, "write its name, or tenant/name", "%s does not name a %s", quote(string(*r)), what)
		return false
	}
	if tenant == own {
		*r = Ref(name)
	}
	return true
}

func isName(s string) bool { return len(s) <= MaxName && dnsLabel.MatchString(s) }

// labels checks names and values of labels.
func (v *validation) labels(field string, labels map[string]string) {
	if len(labels) > maxLabels {
		v.add(field, "", "%d labels are too many; at most %d", len(labels), maxLabels)
		return
	}
	for _, k := range sortedKeys(labels) {
		if len(k) > MaxName || !labelKey.MatchString(k) {
			v.add(key(field, k), "", "%s is not the name of a label: 1 to %d letters, digits and -_./", quote(k), MaxName)
		}
		if l := labels[k]; len(l) > MaxName || (l != "" && !labelKey.MatchString(l)) {
			v.add(key(field, k), "", "%s is not the value of a label: at most %d letters, digits and -_./", quote(l), MaxName)
		}
	}
}

// number checks low ≤ n ≤ high.
func (v *validation) number(field string, n, low, high int) {
	if n < low || n > high {
		v.add(field, fmt.Sprintf("write %d to %d", low, high), "%d is out of range", n)
	}
}

// quantity checks low ≤ n ≤ high for amounts with units.
func quantity[T interface {
	~int64
	String() string
}](v *validation, field string, n, low, high T) {
	if n < low || n > high {
		v.add(field, fmt.Sprintf("write %s to %s", low, high), "%s is out of range", n)
	}
}

// enum checks that *s is one of allowed; empty becomes byDefault, or is an
// error if there is none.
func enum[T ~string](v *validation, field string, s *T, byDefault T, allowed ...T) bool {
	if *s == "" && byDefault != "" {
		*s = byDefault
		return true
	}
	if slices.Contains(allowed, *s) {
		return true
	}
	words := make([]string, len(allowed))
	for i, a := range allowed {
		words[i] = string(a)
	}
	if *s == "" {
		v.add(field, "write one of "+strings.Join(words, ", "), "is missing")
		return false
	}
	v.add(field, meant(string(*s), words), "%s is not one of %s", quote(string(*s)), strings.Join(words, ", "))
	return false
}

// meant is the remedy "did you mean …?", if there is one.
func meant(word string, words []string) string {
	if w := Nearest(word, words); w != "" {
		return "did you mean " + w + "?"
	}
	return ""
}

// text checks free text of at most limit bytes: valid UTF-8 without NUL.
func (v *validation) text(field, s string, limit int) {
	switch {
	case len(s) > limit:
		v.add(field, "", "has %d bytes; at most %d", len(s), limit)
	case !utf8.ValidString(s) || strings.ContainsRune(s, 0):
		v.add(field, "write it in UTF-8", "is not text")
	}
}

// quote is s in quotes, shortened if it is long.
func quote(s string) string {
	if utf8.RuneCountInString(s) > 80 {
		s = string([]rune(s)[:77]) + "…"
	}
	return strconv.Quote(s)
}

func index(field string, i int) string { return field + "[" + strconv.Itoa(i) + "]" }
func key(field, k string) string       { return field + "[" + k + "]" }

func sortedKeys[T any](m map[string]T) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

// sorted is the list as a set: in order and without repeats.
func sorted[T any](list []T, compare func(a, b T) int) []T {
	if len(list) == 0 {
		return nil
	}
	s := slices.Clone(list)
	slices.SortFunc(s, compare)
	return slices.CompactFunc(s, func(a, b T) bool { return compare(a, b) == 0 })
}

// byDefault sets *p to d if it is zero.
func byDefault[T comparable](p *T, d T) {
	var zero T
	if *p == zero {
		*p = d
	}
}
