package plan

import (
	"net/netip"
	"slices"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/plan/ownership"
)

// titles says which tenant may select what, now.
func (w *world) titles() *ownership.Table {
	if w.owned == nil {
		w.owned = ownership.New(w.Objects, w.Now)
		if ends := w.owned.Ends(w.Now); !ends.IsZero() {
			w.passed(ends) // its rules go then
		}
	}
	return w.owned
}

// allowed are the addresses whose traffic a tenant may select, joined as far as they
// can be and in order; see selectsAny for none.
func (w *resolver) allowed(tenant string) []netip.Prefix {
	if selectsAny(w.world, tenant) {
		return nil
	}
	list, ok := w.selectable[tenant]
	if !ok {
		for _, h := range w.titles().Of(tenant) {
			list = append(list, h.Prefix)
		}
		list = joined(list)
		if w.selectable == nil {
			w.selectable = map[string][]netip.Prefix{}
		}
		w.selectable[tenant] = list
	}
	return list
}

// checkAddresses takes a chain out of traffic that selects packets which need neither come
// from nor go to one of the tenant's addresses: it could take any other tenant's traffic.
// What instances of the tenant's own begin is its own.
func (w *resolver) checkAddresses(c *chain) {
	if selectsAny(w.world, c.key.tenant) || c.from.deployment != (name{}) {
		return
	}
	allowed := w.allowed(c.key.tenant)
	for _, m := range c.forward {
		if c.checkMatch(m.Src, m.Dst, allowed) {
			return
		}
	}
	for _, m := range c.reverse { // what stands for the from end counts here
		if c.checkMatch(m.Dst, m.Src, allowed) {
			return
		}
	}
}

// selectsAny reports whether a tenant may select any traffic: those that an installation
// begins with, while they have no addresses, and one that is not there, which is refused
// as such.
func selectsAny(w *world, tenant string) bool {
	t, there := lookUp[*onpath.Tenant](w, onpath.KindTenant, name{"", tenant})
	return !there || tenant == onpath.OperatorTenant || tenant == onpath.DefaultTenant && len(t.Spec.Addresses) == 0
}

// checkMatch looks at each IP version by itself: a match is every source with every
// destination of one version, so all its packets have an allowed end if and only if one
// of the two lists lies within. It reports whether the chain is refused.
func (c *chain) checkMatch(from, to, allowed []netip.Prefix) bool {
	for _, all := range everywhere {
		from, to := ofVersion(from, all), ofVersion(to, all)
		a, b := outside(from, allowed), outside(to, allowed)
		if !a.IsValid() || !b.IsValid() {
			continue // an empty list has nothing outside, and no packets
		}
		field, bad := fieldOf("spec.to", c.obj.Spec.To, to), b
		touches := func(p netip.Prefix) bool { return slices.ContainsFunc(allowed, p.Overlaps) }
		if b == all || a != all && slices.ContainsFunc(from, touches) {
			field, bad = fieldOf("spec.from", c.obj.Spec.From, from), a
		}
		c.unproved = fault(c.obj, onpath.CodeForbidden, field,
			"claim it (kind: PrefixClaim), narrow one of the ends to the tenant's addresses, "+
				"or have the operator add the other's to spec.addresses of tenant "+c.key.tenant,
			"tenant %s may select only what comes from or goes to %s; this is from %s to %s, and %s is not within",
			c.key.tenant, orNothing(allowed), some(from), some(to), onpath.Prefix{Prefix: bad})
		return true
	}
	return false
}

func orNothing(allowed []netip.Prefix) string {
	if len(allowed) == 0 {
		return "nothing: it has no addresses"
	}
	return some(allowed)
}

// fieldOf is where the chain says what an end of a match is.
func fieldOf(field string, e onpath.Endpoints, list []netip.Prefix) string {
	switch {
	case e.Hosts != "":
		return field + ".hosts"
	case e.Any && !slices.ContainsFunc(list, func(p netip.Prefix) bool { return p.Bits() == 0 }):
		return "spec.select"
	}
	return field
}

// ofVersion are the prefixes of a match's list that are of one IP version; all of them
// stand for a list that is any.
func ofVersion(list []netip.Prefix, all netip.Prefix) []netip.Prefix {
	if len(list) == 0 {
		return []netip.Prefix{all}
	}
	return slices.DeleteFunc(slices.Clone(list), func(p netip.Prefix) bool { return p.Addr().Is4() != all.Addr().Is4() })
}

// outside is the first prefix that does not lie within a joined list, or none.
func outside(list, allowed []netip.Prefix) netip.Prefix {
	for _, p := range list {
		i, found := slices.BinarySearchFunc(allowed, p, comparePrefix)
		if !found && (i == 0 || !allowed[i-1].Overlaps(p)) {
			return p
		}
	}
	return netip.Prefix{}
}

// joined are prefixes for the same addresses, in order, as few as possible: what lies
// in all of them together lies in one of them.
func joined(list []netip.Prefix) []netip.Prefix {
	var out []netip.Prefix
	for _, p := range tidy(list) {
		out = append(out, p)
		for n := len(out); n > 1 && halves(out[n-2], out[n-1]); n-- {
			out[n-2] = netip.PrefixFrom(out[n-2].Addr(), out[n-2].Bits()-1)
			out = out[:n-1]
		}
	}
	return out
}

// halves reports whether a and b, which comes after it, are the halves of one prefix.
func halves(a, b netip.Prefix) bool {
	return a.Bits() == b.Bits() && a.Bits() > 0 && a != b && netip.PrefixFrom(a.Addr(), a.Bits()-1).Masked() == netip.PrefixFrom(b.Addr(), b.Bits()-1).Masked()
}
