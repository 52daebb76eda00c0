package plan

import (
	"bytes"
	"net/netip"
	"slices"

	"github.com/onpath/onpath"
)

// checkOverlaps refuses traffic that two chains of one tenant, tier and priority claim
// in one cloudlet. The newer of the two is refused, the other goes on. Between tenants
// plan/ownership decides.
//
// Both are compared in their forward orientation, as whoever starts a flow sees
// them: a chain from a to b and one from b to a share packets but no flows, as
// forward rules stand before reverse rules of the same priority.
func (w checker) checkOverlaps() {
	for _, c := range w.chains {
		c.span()
	}
	for _, p := range w.mayOverlap() {
		older, newer := w.chains[p[0]], w.chains[p[1]]
		if w.younger(older, newer) {
			older, newer = newer, older
		}
		if m, ok := contest(older, newer); ok {
			newer.yield(older, m)
		}
	}
}

// yield refuses the chain for traffic that an older one has.
func (c *chain) yield(older *chain, m onpath.Match) {
	c.fail(onpath.CodeInvalid, "spec.priority", "give one of the two a higher priority, or narrow its select",
		"chain %s selects the same traffic with the same priority %d: %s", older.key, c.priority(), words(m))
}

// span notes between which addresses the chain's traffic lies.
func (c *chain) span() {
	c.reach, c.origin = reachOf(c.forward), spansOf(c.forward, func(m *onpath.Match) []netip.Prefix { return m.Src })
}

// mayMeet tells most chains apart by their addresses: traffic of both is of one IP
// version, and within the spans of both ends.
func (c *chain) mayMeet(o *chain) bool {
	for v := range c.reach {
		if c.reach[v].meets(&o.reach[v]) && c.origin[v].meets(&o.origin[v]) {
			return true
		}
	}
	return false
}

// mayFace likewise of traffic that is of one in its direction and of the other against it.
func (c *chain) mayFace(o *chain) bool {
	for v := range c.reach {
		if c.reach[v].meets(&o.origin[v]) && c.origin[v].meets(&o.reach[v]) {
			return true
		}
	}
	return false
}

// span is a range of addresses of one IP version, as 128-bit numbers.
type span struct {
	lo, hi [16]byte
	some   bool
}

func (s *span) meets(t *span) bool {
	return s.some && t.some && bytes.Compare(s.lo[:], t.hi[:]) <= 0 && bytes.Compare(t.lo[:], s.hi[:]) <= 0
}

// reachOf are the destinations of matches.
func reachOf(list []onpath.Match) [2]span {
	return spansOf(list, func(m *onpath.Match) []netip.Prefix { return m.Dst })
}

// spansOf are one end's addresses, from the lowest to the highest, of IPv4 and of IPv6.
func spansOf(list []onpath.Match, end func(*onpath.Match) []netip.Prefix) (out [2]span) {
	for i := range list {
		prefixes := end(&list[i])
		if len(prefixes) == 0 {
			prefixes = everywhere
		}
		for _, p := range prefixes {
			lo := p.Masked().Addr().As16()
			hi, s := lo, &out[1]
			if p.Addr().Is4() {
				s = &out[0]
			}
			for bit := 128 - p.Addr().BitLen() + p.Bits(); bit < 128; bit++ {
				hi[bit/8] |= 0x80 >> (bit % 8)
			}
			if !s.some || bytes.Compare(lo[:], s.lo[:]) < 0 {
				s.lo = lo
			}
			if !s.some || bytes.Compare(hi[:], s.hi[:]) > 0 {
				s.hi = hi
			}
			s.some = true
		}
	}
	return out
}

var everywhere = []netip.Prefix{netip.MustParsePrefix("0.0.0.0/0"), netip.MustParsePrefix("::/0")}

// younger reports whether a, not b, is the one to be refused: the one that is
// being changed, else the one that came later.
func (w checker) younger(a, b *chain) bool {
	if x, y := w.changed[onpath.KeyOf(a.obj)], w.changed[onpath.KeyOf(b.obj)]; x != y {
		return x
	}
	return b.obj.Metadata.Created.Before(a.obj.Metadata.Created)
}

// contest is traffic that two chains claim.
func contest(a, b *chain) (onpath.Match, bool) {
	if !mayContest(a, b) {
		return onpath.Match{}, false
	}
	if !apart(a, b) {
		return inCommon(a.forward, b.forward)
	}
	for _, m := range a.forward {
		for _, n := range b.forward {
			if x, ok := overlap(m, n); ok && !toItself(x) && !a.host.c.ambiguous(x.Src) && !a.host.c.ambiguous(x.Dst) {
				return x, true
			}
		}
	}
	return onpath.Match{}, false
}

// apart reports whether two chains are each entered at a machine of its own, where an
// address that both machines have means the one there.
func apart(a, b *chain) bool {
	return a.host != nil && b.host != nil && a.host != b.host && a.host.c == b.host.c
}

// ambiguous reports whether several hosts have each of the addresses.
func (c *cloudlet) ambiguous(list []netip.Prefix) bool {
	return len(list) > 0 && !slices.ContainsFunc(list, func(p netip.Prefix) bool { return !p.IsSingleIP() || !c.shared[p.Addr()] })
}

// mayContest reports whether two chains are possible, and have flows that begin at the
// same places.
func mayContest(a, b *chain) bool {
	if a.off() != "" || b.off() != "" || len(a.errs) > 0 || len(b.errs) > 0 {
		return false
	}
	if !slices.ContainsFunc(a.cloudlets, func(n string) bool { return slices.Contains(b.cloudlets, n) }) {
		return false
	}
	return (a.from.deployment == name{}) == (b.from.deployment == name{}) // one starts at an edge, the other at instances
}

// inCommon is traffic that both lists select, and whether there is any.
func inCommon(list, other []onpath.Match) (onpath.Match, bool) {
	for _, m := range list {
		for _, n := range other {
			if x, ok := overlap(m, n); ok && !toItself(x) {
				return x, true
			}
		}
	}
	return onpath.Match{}, false
}

// toItself reports whether the match is of packets from one host to itself,
// which no network sees: a chain from a host to any and one from any to it are
// none the worse for it.
func toItself(m onpath.Match) bool {
	return len(m.Src) == 1 && len(m.Dst) == 1 && m.Src[0] == m.Dst[0] && m.Src[0].IsSingleIP()
}
