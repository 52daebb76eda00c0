package plan

import (
	"bytes"
	"net/netip"
	"slices"

	"github.com/onpath/onpath"
)

// checkOverlaps refuses traffic that two chains of one tier and priority claim
// in one cloudlet. The newer of the two is refused, the other goes on.
//
// Both are compared in their forward orientation, as whoever starts a flow sees
// them: a chain from a to b and one from b to a share packets but no flows, as
// forward rules stand before reverse rules of the same priority.
func (w *world) checkOverlaps() {
	reach := make([][2]span, len(w.chains))
	for i, c := range w.chains {
		reach[i] = reachOf(c.forward)
	}
	for i, a := range w.chains {
		for j, b := range w.chains[i+1:] {
			if b.tier != a.tier || b.priority() != a.priority() {
				break // ordered by both
			}
			if r := &reach[i+1+j]; !reach[i][0].meets(&r[0]) && !reach[i][1].meets(&r[1]) {
				continue
			}
			older, newer := a, b
			if w.younger(a, b) {
				older, newer = b, a
			}
			m, ok := contest(older, newer)
			if !ok {
				continue
			}
			newer.fail(onpath.CodeInvalid, "spec.priority", "give one of the two a higher priority, or narrow its select",
				"chain %s selects the same traffic with the same priority %d: %s", older.key, newer.priority(), words(m))
		}
	}
}

// span is a range of addresses of one IP version, as 128-bit numbers.
type span struct {
	lo, hi [16]byte
	some   bool
}

func (s *span) meets(t *span) bool {
	return s.some && t.some && bytes.Compare(s.lo[:], t.hi[:]) <= 0 && bytes.Compare(t.lo[:], s.hi[:]) <= 0
}

// reachOf are the destinations of matches, from the lowest to the highest, of IPv4 and
// of IPv6: most chains are told apart by them.
func reachOf(list []onpath.Match) (out [2]span) {
	for i := range list {
		dst := list[i].Dst
		if len(dst) == 0 {
			dst = everywhere
		}
		for _, p := range dst {
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
func (w *world) younger(a, b *chain) bool {
	if x, y := w.changed[onpath.KeyOf(a.obj)], w.changed[onpath.KeyOf(b.obj)]; x != y {
		return x
	}
	return b.obj.Metadata.Created.Before(a.obj.Metadata.Created)
}

// contest is traffic that two chains claim.
func contest(a, b *chain) (onpath.Match, bool) {
	none := onpath.Match{}
	if a.obj.Spec.Disabled || b.obj.Spec.Disabled || len(a.errs) > 0 || len(b.errs) > 0 {
		return none, false
	}
	if !slices.ContainsFunc(a.cloudlets, func(n string) bool { return slices.Contains(b.cloudlets, n) }) {
		return none, false
	}
	if (a.from.deployment == name{}) != (b.from.deployment == name{}) {
		return none, false // one starts at an edge, the other at instances
	}
	for _, m := range a.forward {
		for _, n := range b.forward {
			if x, ok := overlap(m, n); ok && !toItself(x) {
				return x, true
			}
		}
	}
	return none, false
}

// toItself reports whether the match is of packets from one host to itself,
// which no network sees: a chain from a host to any and one from any to it are
// none the worse for it.
func toItself(m onpath.Match) bool {
	return len(m.Src) == 1 && len(m.Dst) == 1 && m.Src[0] == m.Dst[0] && m.Src[0].IsSingleIP()
}
