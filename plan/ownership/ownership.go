// Package ownership decides whose a packet is. A tenant may select what comes from or
// goes to a prefix that the operator gave it (Tenant.spec.addresses) or that it proved
// (PrefixClaim); where tenants may both select a packet, the one with the longest prefix
// gets it, then the one with that prefix at the packet's destination, then the one that
// has had it for longer (PacketCloud §3.3.1).
package ownership

import (
	"cmp"
	"net/netip"
	"slices"
	"time"

	"github.com/onpath/onpath"
)

// Holding is a prefix whose traffic a tenant may select.
type Holding struct {
	Tenant string
	Prefix netip.Prefix
	Since  time.Time
	Method onpath.ClaimMethod
	Until  time.Time // of a proof that ends; zero: with its cause
}

// Rank says how good a tenant's title to a packet is.
type Rank struct {
	Bits        int  // length of the tenant's prefix that the packet has an end in
	Destination bool // that end is the destination
	Since       time.Time
	Tenant      string
}

// Compare is negative where r stands before o.
func (r Rank) Compare(o Rank) int {
	side := func(r Rank) int {
		if r.Destination {
			return 0
		}
		return 1
	}
	return cmp.Or(cmp.Compare(o.Bits, r.Bits), cmp.Compare(side(r), side(o)), r.Since.Compare(o.Since), cmp.Compare(r.Tenant, o.Tenant))
}

// BothWays is a rank that is the same for a packet and its answer: what two edges that do
// not tell each other of flows decide by. Titles that are as good go by the tenants' names.
func (r Rank) BothWays(tenant string) Rank { return Rank{Bits: r.Bits, Tenant: tenant} }

// Part is what a tenant selects with one rank: packets from, or to, one of the prefixes.
type Part struct {
	Rank
	Prefixes []netip.Prefix
}

// Match are the packets of the part.
func (p *Part) Match() onpath.Match {
	if p.Destination {
		return onpath.Match{Dst: p.Prefixes}
	}
	return onpath.Match{Src: p.Prefixes}
}

// Table holds what every tenant may select.
type Table struct {
	of     map[string][]Holding
	shared map[netip.Prefix]bool // held by several tenants
	parts  map[string][]Part
}

// everything is held by the tenants that an installation begins with.
var everything = []netip.Prefix{netip.MustParsePrefix("0.0.0.0/0"), netip.MustParsePrefix("::/0")}

// New makes the table of a time from Tenants, PrefixClaims and Services; other objects say nothing.
func New(objects map[onpath.Key]onpath.Object, now time.Time) *Table {
	t := &Table{of: map[string][]Holding{}, shared: map[netip.Prefix]bool{}, parts: map[string][]Part{}}
	for _, o := range objects {
		if o, ok := o.(*onpath.Tenant); ok {
			t.tenant(o)
		}
	}
	for _, n := range []string{onpath.DefaultTenant, onpath.OperatorTenant} {
		if len(t.of[n]) == 0 {
			t.give(n, time.Time{}, everything)
		}
	}
	for _, o := range objects {
		if s, ok := o.(*onpath.Service); ok {
			t.service(s)
		}
		if c, ok := o.(*onpath.PrefixClaim); ok && c.Spec.Method == onpath.ByPassword && c.ProvedAt(now) {
			n := c.Metadata.Tenant
			t.of[n] = append(t.of[n], Holding{n, c.Spec.Prefix.Masked(), c.Status.Since, c.Spec.Method, c.Status.Until})
		}
	}
	t.order()
	return t
}

func (t *Table) tenant(o *onpath.Tenant) {
	n := o.Metadata.Name
	list := make([]netip.Prefix, 0, len(o.Spec.Addresses))
	for _, p := range o.Spec.Addresses {
		list = append(list, p.Masked())
	}
	if n == onpath.OperatorTenant || n == onpath.DefaultTenant && len(list) == 0 {
		list = everything
	}
	t.give(n, o.Metadata.Created, list)
}

// service gives its tenant the addresses that the service has.
func (t *Table) service(o *onpath.Service) {
	for _, p := range o.Status.Cloudlets {
		for _, a := range p.Addresses {
			t.give(o.Metadata.Tenant, o.Metadata.Created, []netip.Prefix{netip.PrefixFrom(a, a.BitLen())})
		}
	}
}

func (t *Table) give(tenant string, since time.Time, list []netip.Prefix) {
	for _, p := range list {
		t.of[tenant] = append(t.of[tenant], Holding{Tenant: tenant, Prefix: p, Since: since, Method: onpath.ByOperator})
	}
}

// order puts each tenant's holdings into order, the longest first, and of one prefix the
// oldest alone.
func (t *Table) order() {
	owner := map[netip.Prefix]string{}
	for n, list := range t.of {
		slices.SortFunc(list, func(a, b Holding) int {
			return cmp.Or(cmp.Compare(b.Prefix.Bits(), a.Prefix.Bits()), a.Prefix.Addr().Compare(b.Prefix.Addr()), a.Since.Compare(b.Since))
		})
		t.of[n] = slices.CompactFunc(list, func(a, b Holding) bool { return a.Prefix == b.Prefix })
		for _, h := range t.of[n] {
			if other, ok := owner[h.Prefix]; ok && other != n {
				t.shared[h.Prefix] = true
			}
			owner[h.Prefix] = n
		}
	}
}

// Of are a tenant's holdings, the longest first.
func (t *Table) Of(tenant string) []Holding { return t.of[tenant] }

// rank of a holding at one end of a packet. Since when counts only between tenants that
// hold the same prefix: no other two have one length and an end in common.
func (t *Table) rank(h Holding, destination bool) Rank {
	r := Rank{Bits: h.Prefix.Bits(), Destination: destination}
	if t.shared[h.Prefix] {
		r.Since, r.Tenant = h.Since, h.Tenant
	}
	return r
}

// Parts divide what a tenant may select by rank, the best first. A packet has the rank of
// the first part that it is in.
func (t *Table) Parts(tenant string) []Part {
	if list, ok := t.parts[tenant]; ok {
		return list
	}
	var out []Part
	for _, h := range t.of[tenant] {
		for _, destination := range []bool{true, false} {
			r := t.rank(h, destination)
			i := slices.IndexFunc(out, func(p Part) bool { return p.Rank == r })
			if i < 0 {
				i, out = len(out), append(out, Part{Rank: r})
			}
			out[i].Prefixes = append(out[i].Prefixes, h.Prefix)
		}
	}
	for i := range out {
		slices.SortFunc(out[i].Prefixes, func(a, b netip.Prefix) int {
			return cmp.Or(cmp.Compare(a.Addr().BitLen(), b.Addr().BitLen()), a.Addr().Compare(b.Addr()))
		})
	}
	slices.SortStableFunc(out, func(a, b Part) int { return a.Rank.Compare(b.Rank) })
	t.parts[tenant] = out
	return out
}

// Covering is the longest prefix by which a tenant may select a packet with an end in p.
func (t *Table) Covering(tenant string, p netip.Prefix) (Holding, bool) {
	for _, h := range t.of[tenant] {
		if h.Prefix.Overlaps(p) {
			return h, true
		}
	}
	return Holding{}, false
}

// Ends is the next time after now at which a proof ends; zero: none does.
func (t *Table) Ends(now time.Time) (next time.Time) {
	for _, list := range t.of {
		for _, h := range list {
			if h.Until.After(now) && (next.IsZero() || h.Until.Before(next)) {
				next = h.Until
			}
		}
	}
	return next
}
