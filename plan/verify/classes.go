package verify

import (
	"github.com/onpath/onpath"
)

// prove cuts the traffic of a cloudlet into classes and follows each.
func (c *checker) prove(a *place) {
	for _, t := range append(a.operator[:len(a.operator):len(a.operator)], a.tenant...) {
		t.boxes = c.space.boxesOf(t.areas)
	}
	for _, g := range a.used {
		x := c.sites[g]
		if x == nil {
			c.missing(a, g)
			continue
		}
		base := class{start: x, entry: x.edge}
		if x.config.Edge != nil {
			base.table = x.config.Edge.Table
		}
		if h := a.hostOf(g); h != nil {
			c.atHost(a, base, h)
			continue
		}
		c.atEdge(a, base)
	}
	for _, e := range a.emitters {
		c.emitted(a, e)
	}
}

// missing says that a gateway's plan is not known.
func (c *checker) missing(a *place, gateway string) {
	for _, p := range a.promises {
		if r := c.results[p.key]; r.Verdict == onpath.VerdictProved {
			r.Verdict, r.Reason = onpath.VerdictUnproven, "the plan of gateway "+gateway+" is not known"
		}
	}
	if c.rest.Verdict == onpath.VerdictProved {
		c.rest.Verdict, c.rest.Reason = onpath.VerdictUnproven, "the plan of gateway "+gateway+" is not known"
	}
}

// atEdge follows what enters at a gateway: of each chain of the operator's with
// each of tenants, of either alone, and of none.
func (c *checker) atEdge(a *place, base class) {
	for _, all := range c.everything() {
		rest, ok := c.space.minusAll(all, c.quiet)
		if !ok {
			continue
		}
		left, more := c.each(rest, a.operator, func(s set, t *traffic) {
			one := base
			one.parts = []*traffic{t}
			c.withTenants(a, one, s)
		})
		if more {
			c.withTenants(a, base, left)
		}
	}
}

// everything is all packets, by IP version.
func (c *checker) everything() (out []set) {
	for _, b := range c.space.boxes(c.space.whole()) {
		out = append(out, set{box: b})
	}
	return out
}

func (s *space) whole() match {
	return match{src: -1, dst: -1, srcPorts: s.anyPort, dstPorts: s.anyPort, protocol: s.anyProtocol}
}

// each hands out the parts of a set that the selections claim, in order, and
// gives what is left.
func (c *checker) each(s set, list []*traffic, do func(set, *traffic)) (left set, more bool) {
	more = true
	for _, t := range list {
		for _, b := range t.boxes {
			if hit, ok := c.space.and(s, b); ok {
				do(hit, t)
			}
			if s, more = c.space.minus(s, b); !more {
				return s, false
			}
		}
	}
	return s, true
}

// withTenants goes on with each tenant's chain that selects a part, and none.
func (c *checker) withTenants(a *place, base class, s set) {
	left, more := c.each(s, c.claims(a, base.start.node), func(hit set, t *traffic) {
		if !a.entersAt(t.p, base.start.node) || base.first != nil && t.p.host == "" {
			c.begun(base, hit)
			return
		}
		one := base
		one.parts = append(base.parts[:len(base.parts):len(base.parts)], t)
		c.begun(one, hit)
	})
	if more {
		c.begun(base, left)
	}
}

// begun cuts a set up by the selections of elements, and follows the parts.
func (c *checker) begun(cl class, s set) {
	for _, t := range cl.parts {
		if c.unsettled[t.p.key] != "" {
			return
		}
	}
	if !c.meant(&cl) {
		return
	}
	c.budget.left = maxCuts
	if len(cl.parts) > 0 && c.space.some(s, &c.budget) == nil && c.budget.left >= 0 {
		return
	}
	var wants []wanted
	for _, t := range cl.parts {
		wants = append(wants, t.order()...)
	}
	c.split(cl, s, wants)
}

// order lists the elements that a direction of a promise crosses.
func (t *traffic) order() (out []wanted) {
	if t.refused {
		return nil
	}
	for k := range t.p.steps {
		switch {
		case !t.reverse && k > t.after:
			out = append(out, wanted{t.p, k, false})
		case t.reverse && (t.after < 0 || k < t.after):
			out = append([]wanted{{t.p, k, true}}, out...)
		}
	}
	return out
}

// split decides for one element after the other which part of the set it takes.
func (c *checker) split(cl class, s set, rest []wanted) {
	for len(rest) > 0 && rest[0].step().sel == nil {
		cl.wants = append(cl.wants[:len(cl.wants):len(cl.wants)], rest[0])
		rest = rest[1:]
	}
	if len(rest) == 0 {
		cl.set = s
		c.settle(&cl)
		return
	}
	taking := cl
	taking.wants = append(cl.wants[:len(cl.wants):len(cl.wants)], rest[0])
	for _, b := range c.selected(rest[0]) {
		if hit, ok := c.space.and(s, b); ok {
			c.splitSome(taking, hit, rest[1:])
		}
		var more bool
		if s, more = c.space.minus(s, b); !more {
			return
		}
	}
	c.splitSome(cl, s, rest[1:])
}

func (c *checker) splitSome(cl class, s set, rest []wanted) {
	c.budget.left = maxCuts
	if c.space.some(s, &c.budget) != nil || c.budget.left < 0 {
		c.split(cl, s, rest)
	}
}

// selected are the products of an element's select.
func (c *checker) selected(n wanted) (out []box) {
	list := n.step().taken[n.reverse]
	for _, m := range list {
		out = append(out, c.space.boxes(m)...)
	}
	return out
}

// emitted follows what an instance sends of itself.
func (c *checker) emitted(a *place, e *emitter) {
	for _, t := range e.traffics {
		t.boxes = c.space.boxesOf(t.areas)
	}
	base := class{start: e.at, entry: e.vport.Entry, table: e.vport.Emit, emits: e.vport.ID}
	for _, all := range c.everything() {
		all, ok := c.space.minusAll(all, c.quiet)
		if !ok {
			continue
		}
		left, more := c.each(all, e.traffics, func(s set, t *traffic) {
			one := base
			one.parts = []*traffic{t}
			if t.p.tier == onpath.TierOperator {
				c.withTenants(a, one, s)
				return
			}
			c.begun(one, s)
		})
		if more {
			c.begun(base, left)
		}
	}
}
