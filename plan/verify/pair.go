package verify

import (
	"fmt"
	"slices"

	"github.com/onpath/onpath"
)

// A pair's chain is proved in two halves: what enters at one end goes into a half, and what
// a half lets out is such as enters at the other end. What lies between is the function's:
// it alone decides what its instances send each other.

// halves are the directions of a promise at its half: what enters goes into the pair, and
// what enters at the other half is not let through here, unless it may bypass.
func (p *promise) halves(forward, reverse *traffic) (f, r *traffic) {
	other := reverse
	switch p.side {
	case onpath.PairA:
	case onpath.PairB:
		other = forward
	default:
		return forward, reverse
	}
	switch other.refused = true; {
	case !slices.ContainsFunc(p.steps, func(s step) bool { return s.bypass }):
	case other == forward:
		forward.areas = nil
	default:
		reverse.areas = nil
	}
	return forward, reverse
}

// sealed reports whether nothing of such traffic may leave where it came in.
func (t *traffic) sealed() bool {
	return t.p.side != "" && t.after < 0 && !slices.ContainsFunc(t.p.steps, func(s step) bool { return s.bypass })
}

// pairSegments are what is proved of a pair, and what is not.
func pairSegments(p *promise) []string {
	at := p.obj.Spec.At.Cloudlets
	d := p.steps[0].deployment
	return []string{
		fmt.Sprintf("entry in %s → %s → exit in %s", at[0], d, at[1]),
		fmt.Sprintf("entry in %s → %s → exit in %s", at[1], d, at[0]),
		fmt.Sprintf("between %s and %s: the function's own, by %s from instance to instance", at[0], at[1], onpath.StretchDevice),
	}
}

// joinHalves holds the two ends of each pair's stretch against each other.
func (c *checker) joinHalves() {
	type half struct {
		node string
		plan *onpath.InstancePlan
	}
	halves := map[string]half{}
	for node, p := range c.in.Plans {
		for i := range p.Instances {
			if x := &p.Instances[i]; x.Pair != nil {
				halves[x.Tenant+"/"+x.Name] = half{node, x}
			}
		}
	}
	for _, o := range c.res.chains {
		r := c.results[keyOf(o)]
		if o.Spec.Pair() == nil || r.Verdict != onpath.VerdictProved {
			continue
		}
		d := o.Metadata.Tenant + "/" + onpath.ShortDeployment(o.Metadata.Name, o.Spec.Pair().Function)
		for _, i := range c.res.instances[d] {
			a, known := halves[keyOf(i)]
			if !known || !i.Spec.Draining.IsZero() || i.Spec.Pair == nil {
				continue
			}
			b, known := halves[a.plan.Tenant+"/"+a.plan.Pair.Partner]
			why := "no node runs instance " + a.plan.Pair.Partner + ", of which node " + a.node + " was told"
			if known {
				why = parts(a.plan, b.plan)
			}
			if why != "" {
				r.Verdict, r.Reason = onpath.VerdictUnproven, fmt.Sprintf("the halves of pair %d do not meet: %s", a.plan.Pair.Number, why)
			}
		}
	}
}

// parts says what keeps two halves from reaching each other; "": nothing does.
func parts(a, b *onpath.InstancePlan) string {
	x, y := a.Pair, b.Pair
	switch {
	case y.Partner != a.Name:
		return fmt.Sprintf("%s is told of %s, and %s of %s", a.Name, x.Partner, b.Name, y.Partner)
	case x.Secret != y.Secret:
		return fmt.Sprintf("%s and %s have secrets that differ", a.Name, b.Name)
	case x.Link != y.Link || x.Local != y.Remote || x.Remote != y.Local || x.Side == y.Side:
		return fmt.Sprintf("%s and %s are told of nodes or links that differ", a.Name, b.Name)
	}
	return ""
}
