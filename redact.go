package onpath

import "slices"

// Note is a text about something of a tenant's, or of nobody's. On the wire it is
// the text.
type Note struct {
	Text string
	// About is what it speaks of, as "tenant/name"; "": nothing that has an owner.
	About string
}

// String implements fmt.Stringer.
func (n Note) String() string { return n.Text }

// MarshalText implements encoding.TextMarshaler.
func (n Note) MarshalText() ([]byte, error) { return []byte(n.Text), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (n *Note) UnmarshalText(text []byte) error { n.Text = string(text); return nil }

// OwnedBy reports whether what is named "tenant/name" is a tenant's. "" is
// everybody's.
func OwnedBy(name, tenant string) bool {
	if name == "" {
		return true
	}
	owner, _ := Ref(name).Resolve("")
	return owner == tenant
}

// notYours stands for what belongs to another tenant.
const notYours = "not yours"

// Redact leaves of other tenants' hops only that they are there.
func (t *Trace) Redact(tenant string) {
	foreign := func(name string) bool { return !OwnedBy(name, tenant) }
	t.Chains = slices.DeleteFunc(t.Chains, foreign)
	t.Warnings = slices.DeleteFunc(t.Warnings, func(n Note) bool { return foreign(n.About) })
	for _, hops := range [][]TraceHop{t.Forward, t.Reverse} {
		for i := range hops {
			h := &hops[i]
			if foreign(h.Chain) || h.Kind == HopElement && h.Chain == "" && foreign(h.Name) {
				*h = TraceHop{Kind: h.Kind, Live: h.Live, Message: notYours}
			} else if h.Kind != HopElement {
				h.Counters = nil // of all tenants' packets
			}
		}
	}
}

// Redact leaves out what is said of other tenants' chains and instances, and of the
// network as a whole.
func (p *Verification) Redact(tenant string) {
	p.Rest, p.Notes = nil, nil
	for i := range p.Chains {
		x := p.Chains[i].Counterexample
		if x == nil {
			continue
		}
		for k := range x.Way {
			if !OwnedBy(x.Way[k].About, tenant) {
				x.Way[k] = Note{Text: notYours}
			}
		}
		for k := range x.Promised {
			if !OwnedBy(x.Promised[k], tenant) {
				x.Promised[k] = notYours
			}
		}
		if !OwnedBy(x.Instance, tenant) {
			x.Instance = notYours
		}
		if slices.ContainsFunc(x.About, func(name string) bool { return !OwnedBy(name, tenant) }) {
			x.Message = "leaves the promised way at something that is " + notYours
		}
	}
}
