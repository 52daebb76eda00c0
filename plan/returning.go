package plan

import (
	"cmp"
	"reflect"
	"slices"
	"time"

	"github.com/onpath/onpath"
)

// What was changed may be changed back while it drains: a change that is undone, or
// regretted. Then nothing is made anew: instances that drain serve on, with what they
// know of their flows, and the path that ended goes on with its flows.

// takeBack has up to n instances that drain serve on, those first that began last, of
// nodes with an agent before others. It returns them.
func (w *rollout) takeBack(d *deployment, list []*instance, n int) []*instance {
	var back []*instance
	for _, i := range list {
		if w.mayReturn(d, i) {
			back = append(back, i)
		}
	}
	slices.SortStableFunc(back, func(a, b *instance) int {
		return cmp.Or(boolCompare(a.node.away, b.node.away), b.obj.Spec.Draining.Compare(a.obj.Spec.Draining), cmp.Compare(a.obj.Spec.Key, b.obj.Spec.Key))
	})
	back = back[:max(0, min(n, len(back)))]
	for _, i := range back {
		next := *current(w.world, i.obj)
		next.Spec.Draining, next.Spec.Until = time.Time{}, time.Time{}
		next.Spec.Drain = onpath.Duration(d.drain)
		w.update(&next)
		w.event(Event{About: onpath.KeyOf(i.obj), Node: i.obj.Spec.Node, Reason: "Returned", Message: "is wanted again, and drains no more"})
	}
	return back
}

// mayReturn reports whether a draining instance is as good as a new one: it serves, and
// nobody lets go of it yet. While its node is without an agent, it serves on as it did.
func (w *world) mayReturn(d *deployment, i *instance) bool {
	return i.draining() && !i.leaving && i.ready() && d.suits(i) &&
		!i.node.gone && !i.node.obj.Spec.Drain && i.node.st != nil &&
		!slices.ContainsFunc(i.node.possible, func(x *index) bool { return !x.hasLocal(i.obj.Spec.Vport) })
}

// returning is the ended path of a chain that is what the chain is now, with everybody
// having it whole and each element having who takes its new flows; 0: there is none.
func (w *pathfinder) returning(c *chain) (id onpath.PathID) {
	for _, name := range c.cloudlets {
		cl := w.cloudlets[name]
		if slices.ContainsFunc(cl.nodes, func(n *node) bool { return n.st == nil || n.newest == nil }) || !w.wouldServe(c, cl) {
			return 0
		}
		for _, n := range cl.nodes {
			for _, spec := range n.newest.plan.Datapath.Paths {
				if spec.Chain == c.key.String() && !spec.Ended.IsZero() && spec.ID > id && w.isWhole(spec.ID) &&
					spec.Side == c.side(cl) && isPathOf(c, w.readPath(n.newest, spec)) {
					id = spec.ID
				}
			}
		}
	}
	return id
}

// wouldServe reports whether each of a chain's elements has an instance in the cloudlet
// that takes new flows, or may again.
func (w *pathfinder) wouldServe(c *chain, cl *cloudlet) bool {
	for k := range c.elements {
		d := c.elements[k].d
		if d == nil || d.want > 0 && !slices.ContainsFunc(w.instancesOf(cl, d.key), func(i *instance) bool {
			return i.ready() && !i.draining() || w.mayReturn(d, i)
		}) {
			return false
		}
	}
	return true
}

// isWhole reports whether every node that has a path goes on having it, and lets
// packets enter it.
func (w *pathfinder) isWhole(id onpath.PathID) bool {
	for _, n := range w.nodes {
		had := n.acked.path(id) != nil
		for _, x := range n.possible {
			p := x.path(id)
			if (p != nil) != had || p != nil && (p.Closed || !p.Until.IsZero() && w.passed(p.Until)) {
				return false
			}
		}
	}
	return true
}

// isPathOf reports whether a path that nodes have is what a chain's path would be.
func isPathOf(c *chain, p *path) bool {
	if p.tier != c.tier || p.spec.Forward != (c.obj.Spec.Direction == onpath.DirectionForward) || len(p.deps) != len(c.elements) ||
		len(p.groups) != 2*len(c.elements) {
		return false
	}
	for i := range c.elements {
		e := &c.elements[i]
		if p.deps[i] != e.dep {
			return false
		}
		for _, reverse := range []bool{false, true} {
			want := groupOf(p.id, i, reverse, e)
			if !slices.ContainsFunc(p.groups, func(g onpath.Group) bool {
				return g.ID == want.ID && g.Mode == want.Mode && g.Then == want.Then && g.Back == want.Back
			}) {
				return false
			}
		}
	}
	byID := func(a, b onpath.Table) int { return cmp.Compare(a.ID, b.ID) }
	want := slices.SortedFunc(slices.Values(tablesOf(p.id, c, p.spec.Side)), byID)
	return reflect.DeepEqual(slices.SortedFunc(slices.Values(p.tables), byID), want)
}
