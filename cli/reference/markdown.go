package reference

import (
	"fmt"
	"strings"
)

const resourcesHead = `# Resources

Every file is YAML (or JSON) with one or more resources, separated by ` + "`---`" + `:

` + "```yaml" + `
apiVersion: %s
kind: Chain
metadata: {name: web, tenant: acme}
spec: {…}
` + "```" + `

Reading is strict: an unknown field, a wrong unit or a duplicate is an error that
names file, line and column. Whatever ` + "`status`" + ` and the server's fields of
` + "`metadata`" + ` say in a file is ignored. ` + "`onpath schema`" + ` prints a JSON Schema for
editors; [onpath.schema.json](../../api/manifest/onpath.schema.json) is the same file.

This page is made from the types in the root package; ` + "`go generate ./...`" + ` rebuilds it.

`

// forms say in words how types with a text form of their own are written.
var forms = map[string]string{
	"CPU": "CPU: `500m`, `2`", "Size": "bytes: `256Mi`, `1Gi`", "Rate": "bit rate: `1Gbit`", "Duration": "duration: `100ms`, `60s`",
	"PortRange": "port or range: `80`, `8000-8999`", "Protocol": "`tcp`, `udp`, `icmp` or a number", "Prefix": "address or prefix",
	"netip.Addr": "address", "netip.AddrPort": "address:port", "netip.Prefix": "prefix", "time.Time": "time", "Ref": "name or `tenant/name`",
	"string": "text", "bool": "`true` or `false`", "int": "number", "int64": "number", "uint16": "number", "uint32": "number", "float64": "number",
}

// Markdown describes all resources: each kind with the structures it is made of.
func (s *Source) Markdown(readOnly func(kind string) bool) string {
	var b strings.Builder
	fmt.Fprintf(&b, resourcesHead, s.APIVersion)
	for _, k := range s.Kinds {
		fmt.Fprintf(&b, "- [%s](#%s)\n", k, strings.ToLower(k))
	}
	b.WriteString("- [Words](#words)\n")
	m := &markdown{src: s, out: &b, seen: map[string]bool{"Condition": true}}
	b.WriteString("\n## metadata\n\n")
	m.table(s.Types["Metadata"])
	for _, k := range s.Kinds {
		fmt.Fprintf(&b, "\n## %s\n\n%s\n", k, s.Types[k].Doc)
		if readOnly(k) {
			b.WriteString("Read-only: onpath writes it.\n")
		}
		m.seen[k] = true
		m.structure(k + "Spec")
		if s.Types[k+"Status"] != nil {
			m.structure(k + "Status")
		}
	}
	b.WriteString("\n## Condition\n\n" + s.Types["Condition"].Doc + "\n\n")
	m.table(s.Types["Condition"])
	m.words()
	return b.String()
}

type markdown struct {
	src   *Source
	out   *strings.Builder
	seen  map[string]bool
	enums []string
}

// structure writes a structure, and after it those that it is the first to name.
func (m *markdown) structure(name string) {
	t := m.src.Types[name]
	if t == nil || m.seen[name] {
		return
	}
	m.seen[name] = true
	fmt.Fprintf(m.out, "\n### %s\n\n%s\n\n", name, t.Doc)
	m.table(t)
	for _, f := range t.Fields {
		inner := m.src.Types[element(f.Type)]
		if inner == nil || m.seen[inner.Name] || forms[inner.Name] != "" {
			continue
		}
		if inner.Under == "struct" {
			m.structure(inner.Name)
		} else if len(inner.Values) > 0 {
			m.seen[inner.Name] = true
			m.enums = append(m.enums, inner.Name)
		}
	}
}

func (m *markdown) table(t *Type) {
	m.out.WriteString("| field | value | |\n|---|---|---|\n")
	for _, f := range t.Fields {
		doc := strings.ReplaceAll(f.Doc, "|", "\\|")
		if !f.Optional && !strings.HasSuffix(t.Name, "Status") {
			doc = strings.TrimSpace("**Required.** " + doc)
		}
		fmt.Fprintf(m.out, "| `%s` | %s | %s |\n", f.Name, m.value(f.Type), doc)
	}
}

// value says what is written for a type.
func (m *markdown) value(name string) string {
	name = strings.TrimPrefix(name, "*")
	if form, ok := forms[name]; ok {
		return form
	}
	if e, ok := strings.CutPrefix(name, "[]"); ok {
		return "list of " + m.value(e)
	}
	if e, ok := strings.CutPrefix(name, "map[string]"); ok {
		return "mapping to " + m.value(e)
	}
	t := m.src.Types[name]
	switch {
	case t == nil:
		return name
	case t.Name == "Endpoints":
		return "`any` or [Endpoints](#endpoints)"
	case t.Name == "ScalingMetric":
		return "`pushed`, `packets`, `bytes`, `dropped` or [ScalingMetric](#scalingmetric)"
	case len(t.Values) > 0:
		var words []string
		for _, v := range t.Values {
			words = append(words, "`"+v.Literal+"`")
		}
		return strings.Join(words, ", ")
	case t.Under == "struct":
		return fmt.Sprintf("[%s](#%s)", name, strings.ToLower(name))
	}
	return m.value(t.Under)
}

// words explains the words of all enumerations met.
func (m *markdown) words() {
	m.out.WriteString("\n## Words\n")
	for _, name := range m.enums {
		t := m.src.Types[name]
		fmt.Fprintf(m.out, "\n### %s\n\n%s\n\n", name, t.Doc)
		for _, v := range t.Values {
			if v.Doc == "" {
				fmt.Fprintf(m.out, "- `%s`\n", v.Literal)
				continue
			}
			fmt.Fprintf(m.out, "- `%s`: %s\n", v.Literal, v.Doc)
		}
	}
}

// element is the name of the type that a pointer, list or mapping is of.
func element(name string) string {
	name = strings.TrimPrefix(name, "*")
	name = strings.TrimPrefix(name, "[]")
	return strings.TrimPrefix(name, "map[string]")
}
