package verify

import (
	"github.com/onpath/onpath"
	"github.com/onpath/onpath/plan/ownership"
)

// area is a union of products in which each factor may be given twice: an end's
// addresses and a selector's, both of which must hold.
type area struct {
	ends  match   // addresses alone
	sel   []match // any of them; empty: everything
	owned *match  // a part of the tenant's addresses; nil: everything
}

// traffic is what one direction of a promise selects.
type traffic struct {
	p       *promise
	reverse bool
	// refused: it enters at the other half of a pair, and in clear here.
	refused bool
	areas   []area
	boxes   []box // once the space is divided
	// begins: flows start at the instance that emits them.
	begins bool
	after  int            // the elements up to this one lie behind; -1: none
	title  ownership.Rank // of the tenant to it, where several tenants have chains
}

// ask takes up what a direction selects: src to dst (nil: any; empty: nothing).
func (s *space) ask(src, dst end, selected []onpath.Match, given bool) (area, bool) {
	var m onpath.Match
	if !src.any {
		m.Src = src.addrs
	}
	if !dst.any {
		m.Dst = dst.dialled
	}
	if !src.any && len(src.addrs) == 0 || !dst.any && len(dst.dialled) == 0 || given && len(selected) == 0 {
		return area{}, false
	}
	a := area{ends: s.take(m)}
	for _, n := range selected {
		a.sel = append(a.sel, s.take(n))
	}
	return a, true
}

// boxesOf are the products of areas.
func (s *space) boxesOf(areas []area) (out []box) {
	for _, a := range areas {
		for _, e := range s.endsOf(a) {
			if len(a.sel) == 0 {
				out = append(out, e)
			}
			for _, m := range a.sel {
				for _, b := range s.boxes(m) {
					if both, ok := s.and(set{box: e}, b); ok {
						out = append(out, both.box)
					}
				}
			}
		}
	}
	return out
}

// endsOf are the products of an area's addresses.
func (s *space) endsOf(a area) (out []box) {
	ends := s.boxes(a.ends)
	if a.owned == nil {
		return ends
	}
	for _, e := range ends {
		for _, o := range s.boxes(*a.owned) {
			if both, ok := s.and(set{box: e}, o); ok {
				out = append(out, both.box)
			}
		}
	}
	return out
}

// parted is a selection by its tenant's title to what it selects.
func (s *space) parted(t *traffic, parts []ownership.Part) (out []*traffic) {
	for i := range parts {
		one := *t
		one.title, one.areas = parts[i].Rank, nil
		for _, a := range t.areas {
			m := s.take(parts[i].Match())
			a.owned = &m
			one.areas = append(one.areas, a)
		}
		out = append(out, &one)
	}
	return out
}

// entering is what a promise selects at the edges of its cloudlet: packets to
// its to end, and those against.
func (s *space) entering(p *promise) (forward, reverse *traffic) {
	if p.from.deployment != "" {
		return nil, nil // its flows begin at instances, not at an edge
	}
	given := len(p.obj.Spec.Select) > 0
	sel := matchesOf(p.obj.Spec.Select)
	forward = &traffic{p: p, after: -1}
	if a, ok := s.ask(p.from, p.to, sel, given); ok {
		forward.areas = append(forward.areas, a)
	}
	if p.forwardOnly() || p.exitNone() {
		return forward, nil // at the to end of a path that ends nobody begins
	}
	reverse = &traffic{p: p, reverse: true, after: -1}
	if a, ok := s.ask(p.to, p.from, answers(sel), given); ok {
		reverse.areas = append(reverse.areas, a)
	}
	return p.halves(forward, reverse)
}

// emitted is what an instance of element k may send of itself, at one of its
// sides or both: the chain's traffic with own and virtual addresses exchanged.
// An own address stands for the from end as a source, unless that says nothing.
func (s *space) emitted(p *promise, k int, mine end) (forward, reverse *traffic) {
	given := len(p.obj.Spec.Select) > 0
	sel := matchesOf(p.obj.Spec.Select)
	forward = &traffic{p: p, after: k}
	if a, ok := s.ask(p.from, p.to, sel, given); ok {
		forward.areas = append(forward.areas, a)
	}
	var free []onpath.Match
	narrower := false
	for _, m := range sel {
		narrower = narrower || len(m.Src)+len(m.SrcPorts) > 0
		m.Src, m.SrcPorts = nil, nil
		free = append(free, m)
	}
	if len(mine.addrs) > 0 && (narrower || !p.from.any) {
		if a, ok := s.ask(mine, p.to, free, given); ok {
			forward.areas = append(forward.areas, a)
		}
	}
	if p.forwardOnly() {
		return forward, nil
	}
	reverse = &traffic{p: p, reverse: true, after: k}
	src := end{any: p.to.any, addrs: p.to.dialled}
	if !p.from.any {
		src.addrs = append(src.addrs[:len(src.addrs):len(src.addrs)], mine.addrs...)
	}
	if a, ok := s.ask(src, p.from, answers(sel), given); ok {
		reverse.areas = append(reverse.areas, a)
	}
	return forward, reverse
}

// beginning is what an instance of a chain's from end starts.
func (s *space) beginning(p *promise, mine end) *traffic {
	t := &traffic{p: p, begins: true, after: -1}
	if a, ok := s.ask(mine, p.to, matchesOf(p.obj.Spec.Select), len(p.obj.Spec.Select) > 0); ok {
		t.areas = append(t.areas, a)
	}
	return t
}

// selections takes up what an element selects, in both directions.
func (s *space) selections(e *step) {
	e.taken = map[bool][]match{}
	for _, m := range e.sel {
		e.taken[false] = append(e.taken[false], s.take(m))
	}
	for _, m := range answers(e.sel) {
		e.taken[true] = append(e.taken[true], s.take(m))
	}
}
