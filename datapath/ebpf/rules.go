package ebpf

import (
	"net/netip"
	"slices"

	"github.com/onpath/onpath"
)

// How rules are stored: every table is a row of plain rules (one prefix, one
// protocol, one port range each) in one large array, walked from its base on by
// bpf/lib/classify.h. A table that changes gets a new place first.

// plainRules expands a table's rules. Rules of a family that a prefix list
// excludes vanish.
func plainRules(t *onpath.Table, pathSlot func(onpath.PathID) uint16) ([]ruleValue, error) {
	var out []ruleValue
	for i := range t.Rules {
		r := &t.Rules[i]
		plain := expand(&r.Match)
		act, arg := action(r.Action)
		for _, p := range plain {
			p.Action, p.Arg = act, arg
			p.Path, p.PathSlot = uint32(r.Path), pathSlot(r.Path)
			if r.Reverse {
				p.Flags |= ruleReverse
			}
			out = append(out, p)
		}
		if len(out) > maxPerTable {
			e := onpath.Errorf(onpath.CodeNoRoom, "table %d has more than %d plain rules (prefixes × protocols × port ranges)", t.ID, maxPerTable)
			e.Remedy = "use fewer or wider prefixes and port ranges in the chains of this node"
			return nil, e
		}
	}
	return out, nil
}

// action gives an action in the programs' numbers.
func action(a onpath.Action) (kind uint8, arg uint32) {
	switch a.Kind {
	case onpath.ActionGroup:
		return actGroup, uint32(a.Group)
	case onpath.ActionTable:
		return actTable, uint32(a.Table)
	case onpath.ActionExit:
		return actExit, 0
	case onpath.ActionRoute:
		return actRoute, 0
	case onpath.ActionDrop:
		return actDrop, reasonNumber(a.Reason)
	}
	return 0, 0
}

// expand multiplies a match out.
func expand(m *onpath.Match) []ruleValue {
	var out []ruleValue
	if len(m.Src) == 0 && len(m.Dst) == 0 {
		return withPorts(out, ruleValue{Family: m.Family}, m)
	}
	for _, f := range []uint8{4, 6} {
		if m.Family == 0 || m.Family == f {
			out = expandFamily(out, m, f)
		}
	}
	return out
}

func expandFamily(out []ruleValue, m *onpath.Match, f uint8) []ruleValue {
	srcs, ok1 := sides(m.Src, f)
	dsts, ok2 := sides(m.Dst, f)
	if !ok1 || !ok2 {
		return out
	}
	for _, s := range srcs {
		for _, d := range dsts {
			out = withPorts(out, ruleValue{Family: f, Src: s[0], SrcMask: s[1], Dst: d[0], DstMask: d[1]}, m)
		}
	}
	return out
}

// sides lists the prefixes of one family as address and mask; no prefix at all
// means any address, none of this family means no match.
func sides(list []netip.Prefix, f uint8) ([][2]addr16, bool) {
	if len(list) == 0 {
		return [][2]addr16{{}}, true
	}
	var out [][2]addr16
	for _, p := range list {
		if family(p.Addr()) == f {
			a, m := masked(p)
			out = append(out, [2]addr16{a, m})
		}
	}
	return out, len(out) > 0
}

func withPorts(out []ruleValue, r ruleValue, m *onpath.Match) []ruleValue {
	for _, proto := range orAny(m.Protocol, 0) {
		for _, s := range orAny(m.SrcPorts, onpath.PortRange{Last: 65535}) {
			for _, d := range orAny(m.DstPorts, onpath.PortRange{Last: 65535}) {
				r.Proto = proto
				r.Flags = 0
				if len(m.SrcPorts) > 0 {
					r.Flags |= ruleSPorts
				}
				if len(m.DstPorts) > 0 {
					r.Flags |= ruleDPorts
				}
				r.SPortFirst, r.SPortLast = s.First, s.Last
				r.DPortFirst, r.DPortLast = d.First, d.Last
				out = append(out, r)
			}
		}
	}
	return out
}

func orAny[T any](list []T, any T) []T {
	if len(list) == 0 {
		return []T{any}
	}
	return list
}

// ruleSpace hands out runs of the rules array.
type ruleSpace struct {
	used []run // by base
}

type run struct{ base, count uint32 }

// take finds a free run of n rules, first fit.
func (s *ruleSpace) take(n uint32) (uint32, error) {
	var base uint32
	for i, r := range s.used {
		if r.base-base >= n {
			s.used = slices.Insert(s.used, i, run{base, n})
			return base, nil
		}
		base = r.base + r.count
	}
	if maxRules-base < n {
		e := onpath.Errorf(onpath.CodeNoRoom, "the rules of all tables need more than %d places", maxRules)
		e.Remedy = "use fewer or wider prefixes and port ranges in the chains of this node"
		return 0, e
	}
	s.used = append(s.used, run{base, n})
	return base, nil
}

// mark notes a run that is in use already.
func (s *ruleSpace) mark(r run) {
	i, _ := slices.BinarySearchFunc(s.used, r, func(a, b run) int { return int(a.base) - int(b.base) })
	s.used = slices.Insert(s.used, i, r)
}

func (s *ruleSpace) free(r run) {
	s.used = slices.DeleteFunc(s.used, func(u run) bool { return u == r })
}
