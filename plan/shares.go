package plan

import (
	"slices"
)

// An instance of weight 0 gets no new flows: it takes nothing over from one that does.

// use is an element of a chain, as a deployment's use.
type use struct {
	c *chain
	e *element
}

// share is what the use gives instances on a node; 1 if it says nothing.
func (u use) share(n *node) int {
	if v, ok := u.e.weights[n.name]; ok {
		return v
	}
	return 1
}

// idle reports whether a chain gives instances on the node no new flows.
func (d *deployment) idle(n *node) bool {
	return slices.ContainsFunc(d.uses, func(u use) bool { return u.share(n) == 0 && slices.Contains(u.c.cloudlets, n.c.name) })
}

// sole reports whether an instance is the only one of some that gets new flows of one of
// its chains.
func (d *deployment) sole(i *instance, others []*instance) bool {
	return len(others) > 0 && slices.ContainsFunc(d.uses, func(u use) bool {
		return u.share(i.node) > 0 && slices.Contains(u.c.cloudlets, i.node.c.name) &&
			!slices.ContainsFunc(others, func(j *instance) bool { return u.share(j.node) > 0 })
	})
}

// without are the ready ones of a list but for one.
func without(list []*instance, i *instance) []*instance {
	return slices.DeleteFunc(slices.Clone(list), func(j *instance) bool { return j == i || !j.ready() })
}

// carried reports whether an instance that stays, or one just created, gets the new flows
// of all chains: another one may then stand where it gets none.
func (w *rollout) carried(d *deployment, cl *cloudlet) bool {
	for _, n := range cl.nodes {
		if d.idle(n) || n.gone || n.obj.Spec.Drain {
			continue
		}
		if w.created[placedOn{d.key, n}] > 0 || slices.ContainsFunc(n.insts, func(i *instance) bool {
			return i.dep == d.key && !i.draining() && d.suits(i)
		}) {
			return true
		}
	}
	return false
}

// onlyShare is why an instance is not drained though there are others.
const onlyShare = "the other instances have weight 0 on their nodes"
