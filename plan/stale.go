package plan

import (
	"fmt"
	"slices"

	"github.com/onpath/onpath"
)

// A node's data path steers on without its agent, by what it was told last. It knows no
// instance that came later, and leads flows to those that it knows, whatever is planned
// meanwhile.

// outOfSight reports whether a node that steers without its agent knows other ready
// instances of the element, but not this one. Flows to this instance that pass the node,
// in one direction at least, would break there.
func (w *world) outOfSight(p *path, i *instance) bool {
	g := w.staleNode(p, i)
	return g != nil && slices.ContainsFunc(w.instancesOf(g.c, i.dep), func(j *instance) bool {
		return j.ready() && !j.draining() && w.staleNode(p, j) == nil && p.shares(j)
	})
}

// staleNode is a node without agent that steers packets of a path and does not know an
// instance of it, or nil: a gateway, or one where another element's packets come by. A
// worker that is given up is none: what is made in place of its instances would wait for
// them.
func (w *world) staleNode(p *path, i *instance) *node {
	for _, n := range i.node.c.alone {
		ignorant := n.st == nil && w.isYounger(i, p) || n.acked.path(p.id) != nil && !n.acked.knows(i)
		if ignorant && (n.hasEdge() || p.passes(i.dep) && n.meets(p, i.dep)) {
			return n
		}
	}
	return nil
}

// meets reports whether flows of a path that pass an instance of a deployment may pass
// another instance on the node: of another element, of a chain of the other tier, or of
// that where they begin.
func (n *node) meets(p *path, dep name) bool {
	return slices.ContainsFunc(n.insts, func(i *instance) bool {
		return i.dep != dep && i.ready() && !i.draining() && (p.passes(i.dep) || p.starts(i) ||
			slices.ContainsFunc(n.c.paths, func(q *path) bool { return q.tier != p.tier && q.passes(i.dep) }))
	})
}

// passes reports whether flows of the path pass a deployment's instances; a mirror's get
// copies only.
func (p *path) passes(dep name) bool {
	for k, d := range p.deps {
		if d == dep && !(k < len(p.groups)/2 && p.groups[2*k].Mode == onpath.ModeMirror) {
			return true
		}
	}
	return false
}

// isYounger reports whether an instance was made since the server started, and a path
// began before: a gateway of which nothing was heard since may have the path, and has
// not got the instance.
func (w *world) isYounger(i *instance, p *path) bool {
	return i.obj.Metadata.Created.After(w.Started) && !p.spec.Began.IsZero() && p.spec.Began.Before(w.Started)
}

// held reports whether a gateway without agent may still lead flows to an instance.
func (w *departures) held(i *instance) bool {
	return slices.ContainsFunc(i.node.c.edges(), func(g *node) bool {
		return g.alone() && (g.st == nil && i.obj.Metadata.Created.Before(w.Started) ||
			slices.ContainsFunc(g.possible, func(x *index) bool { return x.knows(i) }))
	})
}

// alone reports whether a node's data path may go on without its agent.
func (n *node) alone() bool { return n.away && !n.dead && !n.silent() }

// unseen says, in words, which ready instance of a deployment gets no flows because a
// node without agent does not know it. It is asked when all is planned.
func (w *teller) unseen(dep name) string {
	if !w.alone {
		return ""
	}
	if w.waiting == nil {
		w.waiting = map[name]string{}
		for _, i := range w.instances {
			if i.draining() || !i.ready() || w.waiting[i.dep] != "" {
				continue
			}
			if n := w.hidden(i); n != nil {
				what := "node"
				if n.hasEdge() {
					what = "gateway"
				}
				w.waiting[i.dep] = fmt.Sprintf("instance %s waits for %s %s, which steers without its agent and does not know it", i.key.name, what, n.name)
			}
		}
	}
	return w.waiting[dep]
}

// hidden is the node for which an instance of a present path is out of sight, or nil.
func (w *world) hidden(i *instance) *node {
	if len(i.node.c.alone) == 0 {
		return nil
	}
	for _, p := range i.node.c.paths {
		if p.present && slices.Contains(p.deps, i.dep) && w.outOfSight(p, i) {
			return w.staleNode(p, i)
		}
	}
	return nil
}
