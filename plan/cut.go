package plan

import (
	"slices"
	"time"

	"github.com/onpath/onpath"
)

// A new chain takes new flows: those that run through another chain keep it until
// they end. With existing: cut it shall have the old ones too. Their entries, on
// whatever nodes, belong to the path of the chain that they run through; so that
// chain gets a new path, and the old one ends without draining. Every flow is then
// decided anew: TCP that the new chain selects is reset, what else it selects goes by
// it, and the rest meets the same instances.

// cutOff reports whether a chain must get a new path because one before it, which
// cuts, has begun after the path that it has.
func (w *world) cutOff(c *chain) bool {
	return slices.ContainsFunc(c.cloudlets, func(name string) bool {
		cl := w.cloudlets[name]
		had := w.steering(cl, c.obj.Status.Path)
		return had != nil && w.cutBetween(cl, c, had.Began, w.Now)
	})
}

// cutBetween reports whether a chain before c that cuts what c steers has begun in
// the cloudlet after one time and not after another.
func (w *world) cutBetween(cl *cloudlet, c *chain, after, until time.Time) bool {
	return slices.ContainsFunc(w.chains, func(o *chain) bool {
		if o == c || o.obj.Spec.Existing != onpath.ExistingCut || !o.precedes(c) || !o.mayCut(c) {
			return false
		}
		p := w.steering(cl, o.obj.Status.Path)
		return p != nil && p.Cut && p.Began.After(after) && !p.Began.After(until) && w.Now.Before(p.Began.Add(time.Duration(p.Adopt)))
	})
}

// tellOlder leaves an event where a chain that begins takes no flows that run through
// others which come behind it.
func (w *world) tellOlder(cl *cloudlet, o *chain) {
	if o.obj.Spec.Existing == onpath.ExistingCut {
		return
	}
	var names []string
	for _, c := range w.chains {
		if o.precedes(c) && o.mayCut(c) && w.steering(cl, c.obj.Status.Path) != nil {
			names = append(names, "chain "+c.key.String())
		}
	}
	if len(names) > 0 {
		w.event(Event{About: onpath.KeyOf(o.obj), Reason: "OlderFlows", Message: "flows that run through " + Enumerate(names) + " in cloudlet " + cl.name +
			" keep their way, past this chain, until they end; existing: cut takes them too, when a chain begins"})
	}
}

// steering is a path that steers in the cloudlet, as its gateways have it; nil if
// it does not.
func (w *world) steering(cl *cloudlet, id onpath.PathID) *onpath.Path {
	if cl == nil || id == 0 {
		return nil
	}
	for _, g := range cl.pair {
		if p := g.newest.path(id); p != nil && !p.Began.IsZero() && p.Ended.IsZero() {
			return p
		}
	}
	return nil
}

// precedes reports whether a flow that both chains select meets o first.
func (o *chain) precedes(c *chain) bool {
	if o.tier != c.tier {
		return o.tier == onpath.TierOperator
	}
	return o.priority() > c.priority()
}

// mayCut reports whether a chain selects flows of another, and may end them: its own
// tenant's, or as the operator.
func (o *chain) mayCut(c *chain) bool {
	return (o.tier == onpath.TierOperator || o.key.tenant == c.key.tenant) && o.covers(c)
}

// covers reports whether a chain selects packets that another selects, in whichever
// direction.
func (o *chain) covers(c *chain) bool {
	return !o.obj.Spec.Disabled && len(o.errs) == 0 && slices.ContainsFunc(slices.Concat(o.forward, o.reverse), func(m onpath.Match) bool {
		return slices.ContainsFunc(slices.Concat(c.forward, c.reverse), func(n onpath.Match) bool {
			_, ok := overlap(m, n)
			return ok
		})
	})
}
