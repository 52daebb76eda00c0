package plan

import (
	"cmp"
	"slices"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/plan/ownership"
)

// divided are rules of a tenant's chain by the tenant's title to what they match: a rule
// stands once for each part of the tenant's addresses that it has packets of.
type divided struct {
	onpath.Rule
	rank     ownership.Rank
	priority int
	late     bool // behind those of its priority that begin at a from end
}

// divide adds what a rule matches in each part of a tenant's addresses.
func divide(out []divided, parts []ownership.Part, r onpath.Rule, priority int, late bool) []divided {
	for i := range parts {
		m, whole := r.Match, parts[i].Bits == 0 && coversAll(&parts[i], r.Match)
		if !whole {
			var ok bool
			if m, ok = overlap(r.Match, parts[i].Match()); !ok {
				continue
			}
			whole = slices.Equal(m.Src, r.Match.Src) && slices.Equal(m.Dst, r.Match.Dst)
		}
		x := r
		x.Match = m
		out = append(out, divided{x, parts[i].Rank, priority, late})
		if whole {
			break // parts behind it have nothing left
		}
	}
	return out
}

// coversAll reports whether a part with a prefix of length 0 has all packets of a match.
func coversAll(p *ownership.Part, m onpath.Match) bool {
	return versions(m)&^families(p.Prefixes) == 0
}

// byTitle puts the rules of several tenants' chains into order: by title, of one tenant by
// priority, and within that as they came.
func byTitle(list []divided) []onpath.Rule {
	slices.SortStableFunc(list, func(a, b divided) int {
		late := func(d divided) int {
			if d.late {
				return 1
			}
			return 0
		}
		return cmp.Or(a.rank.Compare(b.rank), cmp.Compare(b.priority, a.priority), cmp.Compare(late(a), late(b)))
	})
	out := make([]onpath.Rule, len(list))
	for i := range list {
		out[i] = list[i].Rule
	}
	return out
}

// severalTenants reports whether paths of a tier that steer are of more than one tenant.
func severalTenants(paths []*path, tier onpath.Tier) bool {
	first := ""
	for _, p := range paths {
		if p.tier != tier || !p.steers || startsAtInstances(p) {
			continue
		}
		if first != "" && p.key.tenant != first {
			return true
		}
		first = p.key.tenant
	}
	return false
}

// tenantRules are the rules of the tenants' classifier where several tenants have chains.
func (w *world) tenantRules(paths []*path, n *node) []onpath.Rule {
	var all []divided
	for _, p := range paths {
		if p.tier != onpath.TierTenant || !p.steers || startsAtInstances(p) {
			continue
		}
		own, from := w.partsOf(p.key.tenant), len(all)
		both, forward, reverse := p.rulesAt(n)
		for _, r := range slices.Concat(both, forward) {
			all = divide(all, own, r, p.priority(), false)
		}
		for _, r := range reverse {
			all = divide(all, own, r, p.priority(), true)
		}
		if !p.present { // its rules are as a node has them, divided before
			all = append(all[:from], distinct(all[from:])...)
		}
		for i := range all[from:] {
			if x := &all[from+i]; len(n.c.hosts) > 0 {
				x.rank = x.rank.BothWays(p.key.tenant)
			}
		}
	}
	return byTitle(all)
}

// distinct leaves out rules that stand in the list already.
func distinct(list []divided) (out []divided) {
	for _, d := range list {
		if !slices.ContainsFunc(out, func(o divided) bool { return o.rank == d.rank && o.late == d.late && sameRule(o.Rule, d.Rule) }) {
			out = append(out, d)
		}
	}
	return out
}

// partsOf are the parts of a tenant's addresses.
func (w *world) partsOf(tenant string) []ownership.Part {
	if _, there := lookUp[*onpath.Tenant](w, onpath.KindTenant, name{"", tenant}); !there {
		tenant = onpath.DefaultTenant // which is refused as such
	}
	return w.titles().Parts(tenant)
}

// addresses are those that the operator gave a tenant, with those of claims that it proved.
func (w *world) addresses(t *onpath.Tenant) []onpath.Prefix {
	list := slices.Clone(t.Spec.Addresses)
	for _, h := range w.titles().Of(t.Metadata.Name) {
		if h.Method == onpath.ByPassword && !slices.Contains(list, onpath.Prefix{Prefix: h.Prefix}) {
			list = append(list, onpath.Prefix{Prefix: h.Prefix})
		}
	}
	return list
}

// checkClaims refuses claims by password for addresses of onpath itself: nodes answer
// there, or instances do.
func (w checker) checkClaims() (errs onpath.Errors) {
	for _, c := range listed[*onpath.PrefixClaim](w.world) {
		p := c.Spec.Prefix.Prefix
		if c.Spec.Method != onpath.ByPassword {
			continue
		}
		ours := slices.ContainsFunc(slices.Concat(w.set.PrivatePools, w.set.PublicPools), p.Overlaps) ||
			slices.ContainsFunc(w.nodeOrder, func(n *node) bool { return slices.ContainsFunc(n.addresses(), p.Contains) })
		if ours {
			errs = append(errs, fault(c, onpath.CodeForbidden, "spec.prefix", "claim what is yours",
				"%s is an address of onpath itself", c.Spec.Prefix))
		}
	}
	return errs
}

// ruleCount is how many plain rules a chain has in a classifier: more where tenants have
// several prefixes.
func (w *world) ruleCount(c *chain) int {
	if c.tier != onpath.TierTenant || len(w.chains) == 0 || !w.several() {
		return plainRules(c.forward) + plainRules(c.reverse)
	}
	n := 0
	for _, m := range slices.Concat(c.forward, c.reverse) {
		for _, d := range divide(nil, w.partsOf(c.key.tenant), onpath.Rule{Match: m}, 0, false) {
			n = min(n+d.Match.PlainRules(), onpath.MaxTableRules+1)
		}
	}
	return n
}

// several reports whether more than one tenant has chains.
func (w *world) several() bool {
	first := ""
	for _, c := range w.chains {
		if c.tier == onpath.TierTenant && first != "" && c.key.tenant != first {
			return true
		}
		if c.tier == onpath.TierTenant {
			first = c.key.tenant
		}
	}
	return false
}

// floor is the rank below which nothing of the list lies: of the part in which each match
// lies wholly, the worst.
func floor(list []onpath.Match, parts []ownership.Part) (r ownership.Rank) {
	for i, m := range list {
		d := divide(nil, parts, onpath.Rule{Match: m}, 0, false)
		if len(d) > 0 && (i == 0 || r.Compare(d[len(d)-1].rank) < 0) {
			r = d[len(d)-1].rank
		}
	}
	return r
}

// takes is traffic of two chains of different tenants that the first one gets.
func (w *world) takes(t, c *chain) (onpath.Match, bool) {
	own := w.partsOf(c.key.tenant)
	for _, m := range c.forward {
		for _, n := range slices.Concat(t.forward, t.reverse) {
			both, ok := overlap(m, n)
			if !ok || toItself(both) {
				continue
			}
			for _, d := range divide(nil, w.partsOf(t.key.tenant), onpath.Rule{Match: both}, 0, false) {
				if f := floor([]onpath.Match{d.Match}, own); d.rank.Compare(f) < 0 {
					return d.Match, true
				}
			}
		}
	}
	return onpath.Match{}, false
}
