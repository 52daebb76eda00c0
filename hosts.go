package onpath

import "net/netip"

// Hosts is a named set of end points.
type Hosts struct {
	TypeMeta
	Metadata Metadata  `json:"metadata"`
	Spec     HostsSpec `json:"spec"`
}

// HostsSpec says who the end points are: addresses, or the machine of a node.
type HostsSpec struct {
	// Addresses are the end points' own; an entry is an address or a prefix.
	Addresses []Prefix `json:"addresses,omitempty"`
	// FromFile names a file with more addresses, one a line, which the client reads and
	// sends as Addresses.
	FromFile string `json:"fromFile,omitempty"`
	// Virtual are what clients dial and an element rewrites to Addresses.
	Virtual []Prefix `json:"virtual,omitempty"`
	// Node names a node whose own traffic is meant (uplink attach: host): what comes
	// from and goes to any address of its machine, but loopback's and link-local ones
	// (Node status.addresses).
	Node string `json:"node,omitempty"`
}

// Prefix is an IP prefix; in text, a bare address is that one host.
type Prefix struct{ netip.Prefix }

// UnmarshalText reads an address or prefix.
func (p *Prefix) UnmarshalText(b []byte) error {
	v, err := ParsePrefix(string(b))
	if err != nil {
		return err
	}
	p.Prefix = v
	return nil
}

// MarshalText writes a one-host prefix as a bare address.
func (p Prefix) MarshalText() ([]byte, error) { return []byte(p.String()), nil }

// String writes a one-host prefix as a bare address.
func (p Prefix) String() string {
	if p.IsSingleIP() {
		return p.Addr().String()
	}
	return p.Prefix.String()
}

// Meta implements Object.
func (h *Hosts) Meta() *Metadata { return &h.Metadata }

// ObjectKind implements Object.
func (h *Hosts) ObjectKind() Kind { return KindHosts }
