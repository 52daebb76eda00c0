package onpath

import (
	"bytes"
	"crypto/ed25519"
	"encoding/base64"
	"fmt"
	"net/netip"
	"slices"
	"time"
)

// LeasesSpec is what an operator lends to publishers who ask by signalling on the way of
// their users' traffic (NetServ §2.1, §3.2). The node decides alone.
type LeasesSpec struct {
	// Share is the part of the node's capacity that all leases together may have; default
	// 10%. Publishers that are no tenants get a tenth of it.
	Share Percent `json:"share,omitempty"`
	// Publishers: tenants | any. Tenants sign with a key of their Tenant object. With any,
	// whoever has a key may ask, for traffic to addresses that it proves by a password
	// (NetServ §3.2). Default tenants.
	Publishers Publishers `json:"publishers,omitempty"`
	// Ports are those that a request may ask for. Default all.
	Ports []PortRange `json:"ports,omitempty"`
	// Servers is how many publishers at a time may have modules that serve, each at addresses
	// of the server's publicPools that are reserved for it. Default 0: none.
	Servers int `json:"servers,omitempty"`
	// DryRun: requests are checked and answered, and nothing is installed.
	DryRun bool `json:"dryRun,omitempty"`
}

// Publishers says who may ask for leases.
type Publishers string

// The groups of publishers.
const (
	PublisherTenants Publishers = "tenants"
	PublisherAny     Publishers = "any"
)

// DefaultLeaseShare is LeasesSpec.Share where it is 0.
const DefaultLeaseShare = Percent(0.1)

// PublicKey is an Ed25519 key; as text it is base64.
type PublicKey []byte

// MarshalText implements encoding.TextMarshaler.
func (k PublicKey) MarshalText() ([]byte, error) { return base64.StdEncoding.AppendEncode(nil, k), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (k *PublicKey) UnmarshalText(b []byte) error {
	out, err := base64.StdEncoding.AppendDecode(nil, b)
	if err != nil || len(out) != ed25519.PublicKeySize {
		return fmt.Errorf("%q is no Ed25519 key in base64; onpath signal key prints one", b)
	}
	*k = out
	return nil
}

// LeaseSlots is how many publishers may have leases on a node at once.
const LeaseSlots = 8

// MaxLeaseTTL is the longest time of a lease; a further request prolongs it.
const MaxLeaseTTL = 24 * time.Hour

// LeaseResources is what one leased module counts for, leaseServes what one counts for that
// serves: each connection and each fetch has buffers.
var (
	LeaseResources = Resources{CPU: 200, Memory: 32 << 20}
	leaseServes    = Resources{CPU: 400, Memory: 160 << 20}
)

// Resources are what the lease counts for.
func (l *LeaseSpec) Resources() Resources {
	if len(l.Serves) > 0 {
		return leaseServes
	}
	return LeaseResources
}

// LeaseDisk is what the blobs of a publisher's modules may have on a node.
const LeaseDisk = Size(256 << 20)

// LeasePlan is what a node needs to admit leases by itself, also without a server.
type LeasePlan struct {
	Spec       LeasesSpec  `json:"spec"`
	Slots      []LeaseSlot `json:"slots"`
	Publishers []Publisher `json:"publishers,omitempty"` // by tenant
}

// Now is a slot as the plan has it now.
func (p *LeasePlan) Now(s LeaseSlot) LeaseSlot {
	if at := slices.IndexFunc(p.Slots, func(o LeaseSlot) bool { return o.Path == s.Path }); at >= 0 {
		return p.Slots[at]
	}
	return s
}

// LeaseSlot are ids and addresses for one publisher's engine, reserved for the node.
type LeaseSlot struct {
	Vport     VportID        `json:"vport"`
	Path      PathID         `json:"path"`
	Addresses []netip.Prefix `json:"addresses,omitempty"`
	// Serves are addresses of public pools, at which the publisher's modules may serve.
	Serves []netip.Addr `json:"serves,omitempty"`
	// MTU is the largest packet, in bytes, that reaches servers from either gateway of a pair;
	// 0: any.
	MTU int `json:"mtu,omitempty"`
	// Peer is the node that has the slot; "": this one.
	Peer string `json:"peer,omitempty"`
}

// Publisher is a tenant that has keys.
type Publisher struct {
	Tenant string      `json:"tenant"`
	Keys   []PublicKey `json:"keys"`
	// Addresses are those whose traffic it may select; nil: any.
	Addresses []Prefix `json:"addresses,omitempty"`
	MaxFlows  int      `json:"maxFlows,omitempty"`
}

// Has reports whether a key is the tenant's.
func (p *Publisher) Has(key []byte) bool {
	return slices.ContainsFunc(p.Keys, func(k PublicKey) bool { return bytes.Equal(k, key) })
}

// Lease is a module that a publisher had installed on a node by a signed message. The node
// reports it, and onpath writes it.
type Lease struct {
	TypeMeta
	Metadata Metadata    `json:"metadata"` // tenant: the publisher's; operator, if that is none
	Spec     LeaseSpec   `json:"spec"`
	Status   LeaseStatus `json:"status,omitzero"`
}

// LeaseSpec is what was asked for and admitted.
type LeaseSpec struct {
	Node string `json:"node"`
	// Publisher is the tenant, or a name made of the key of one that is none.
	Publisher string `json:"publisher"`
	Known     bool   `json:"known,omitempty"` // it is a tenant
	// Key signed the request: the lease goes when its tenant gives the key up.
	Key    PublicKey `json:"key,omitempty"`
	Module string    `json:"module"`
	URL    string    `json:"url"`
	SHA256 string    `json:"sha256"`
	User   string    `json:"user,omitempty"`
	// Packets to and from To, by protocol and the port at that end; zero: all.
	To         []Prefix `json:"to"`
	Protocol   Protocol `json:"protocol,omitempty"`
	Port       uint16   `json:"port,omitempty"`
	Properties []string `json:"properties,omitempty"`
	// Serves are the ports at which the module serves, at each of Addresses.
	Serves    []ServedPort `json:"serves,omitempty"`
	Addresses []netip.Addr `json:"addresses,omitempty"`
	// ServesOnly: the module is given no packets but those to its ports; To says nothing.
	ServesOnly bool `json:"servesOnly,omitempty"`
	// Fetch are the hosts from which the module may fetch.
	Fetch []string  `json:"fetch,omitempty"`
	Since time.Time `json:"since"`
	Until time.Time `json:"until"`
	// Vport is where the publisher's engine is at the node.
	Vport VportID `json:"vport,omitempty"`
}

// LeaseStatus is how the module is.
type LeaseStatus struct {
	State   InstanceState `json:"state,omitempty"`
	Message string        `json:"message,omitempty"`
}

// LeaseReport is one lease as its node sees it.
type LeaseReport struct {
	Name string `json:"name"` // unique on all nodes
	LeaseSpec
	LeaseStatus
}

// Meta implements Object.
func (l *Lease) Meta() *Metadata { return &l.Metadata }

// ObjectKind implements Object.
func (l *Lease) ObjectKind() Kind { return KindLease }

// Validate implements Object.
func (l *Lease) Validate() error { return begin(l, &l.TypeMeta).err() }

// Servers says by protocol, address and port where the module serves: tcp 203.0.113.5:80.
func (l *LeaseSpec) Servers() (out []string) {
	for _, p := range l.Serves {
		for _, a := range l.Addresses {
			out = append(out, fmt.Sprintf("%s %s", p.Protocol, netip.AddrPortFrom(a, p.Port)))
		}
	}
	return out
}

// Served is what comes to the module's servers, a match for each, in the order of Servers.
func (l *LeaseSpec) Served() (out []Match) {
	for _, p := range l.Serves {
		for _, a := range l.Addresses {
			out = append(out, Match{Protocol: protocolNumbers(p.Protocol), Dst: []netip.Prefix{netip.PrefixFrom(a, a.BitLen())},
				DstPorts: []PortRange{{First: p.Port, Last: p.Port}}})
		}
	}
	return out
}

// Forward is what the module is given, from users to where To is; Reversed is its answers.
func (l *LeaseSpec) Forward() Match {
	m := Match{Protocol: protocolNumbers(l.Protocol)}
	for _, p := range l.To {
		m.Dst = append(m.Dst, p.Prefix)
	}
	if l.Port != 0 {
		m.DstPorts = []PortRange{{First: l.Port, Last: l.Port}}
	}
	return m
}

// Reversed is Forward with both ends exchanged.
func (l *LeaseSpec) Reversed() Match {
	m := l.Forward()
	return m.answers()
}

// answers is a match of no sources with both ends exchanged.
func (m *Match) answers() Match { return Match{Protocol: m.Protocol, Src: m.Dst, SrcPorts: m.DstPorts} }

func protocolNumbers(p Protocol) []uint8 {
	switch p {
	case "tcp":
		return []uint8{6}
	case "udp":
		return []uint8{17}
	case "icmp":
		return []uint8{1, 58}
	}
	return nil
}

// Overlaps reports whether some packet matches both.
func (m *Match) Overlaps(o *Match) bool {
	return (m.Family == 0 || o.Family == 0 || m.Family == o.Family) &&
		overlap(m.Protocol, o.Protocol, func(a, b uint8) bool { return a == b }) &&
		overlap(m.Src, o.Src, netip.Prefix.Overlaps) && overlap(m.Dst, o.Dst, netip.Prefix.Overlaps) &&
		overlap(m.SrcPorts, o.SrcPorts, PortRange.overlaps) && overlap(m.DstPorts, o.DstPorts, PortRange.overlaps)
}

func (p PortRange) overlaps(o PortRange) bool { return p.First <= o.Last && o.First <= p.Last }

// overlap reports whether two lists have something in common; an empty one has everything.
func overlap[T any](a, b []T, both func(T, T) bool) bool {
	return len(a) == 0 || len(b) == 0 || slices.ContainsFunc(a, func(x T) bool {
		return slices.ContainsFunc(b, func(y T) bool { return both(x, y) })
	})
}

// Selects names the chain of the plan that takes packets of a match, if one does.
func (c *DatapathConfig) Selects(m *Match) (chain string, ok bool) {
	for i := range c.Tables {
		t := &c.Tables[i]
		if t.ID != ClassifierTable(TierOperator) && t.ID != ClassifierTable(TierTenant) {
			continue
		}
		for j := range t.Rules {
			if r := &t.Rules[j]; r.Action.Kind != ActionExit && r.Match.Overlaps(m) {
				return c.chainOf(r.Path), true
			}
		}
	}
	return "", false
}

func (c *DatapathConfig) chainOf(id PathID) string {
	for i := range c.Paths {
		if c.Paths[i].ID == id {
			return c.Paths[i].Chain
		}
	}
	return fmt.Sprintf("path %d", id)
}

func (v *validation) leases(n *NodeSpec) {
	l := n.Leases
	if l == nil {
		return
	}
	byDefault(&l.Share, DefaultLeaseShare)
	if !(l.Share > 0 && l.Share <= 1) {
		v.add("spec.leases.share", "write a share, such as 10%", "%s is not above 0%% and up to 100%%", l.Share)
	}
	enum(v, "spec.leases.publishers", &l.Publishers, PublisherTenants, PublisherTenants, PublisherAny)
	v.number("spec.leases.servers", l.Servers, 0, LeaseSlots)
	if !slices.ContainsFunc(n.Uplinks, func(u Uplink) bool { return u.Attach == AttachRouter || u.Attach == AttachArm }) {
		v.add("spec.leases", "give the node an uplink with attach: router, or take leases out",
			"signalling messages are only seen at uplinks between which packets are routed")
	}
}
