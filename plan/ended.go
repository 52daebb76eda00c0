package plan

import (
	"slices"
	"time"

	"github.com/onpath/onpath"
)

// endedPath is a path that has ended and that nodes of a cloudlet still have.
type endedPath struct {
	onpath.Path
	c *cloudlet
}

// find marks the instances that may go.
func (w *departures) find() {
	for _, i := range w.instances {
		i.leaving = w.leaving(i)
	}
}

// until is when a draining instance goes, whatever its flows. The last instances of
// an element stay as long as the ended paths that lead flows through it.
func (w *departures) until(i *instance) time.Time {
	until := i.obj.Spec.Until
	for _, p := range w.endedPaths(i) {
		if p.Until.After(until) && !w.succeeded(i, p) {
			until = p.Until
		}
	}
	return until
}

// succeeded reports whether an ended path leads to another instance of the element
// that stays for longer than a draining one: it takes over what is left of its flows.
func (w *departures) succeeded(i *instance, p *endedPath) bool {
	return slices.ContainsFunc(w.instancesOf(p.c, i.dep), func(j *instance) bool {
		return j.ready() && (!j.draining() || j.obj.Spec.Draining.After(i.obj.Spec.Draining)) && w.led(j, p)
	})
}

// led reports whether every node that has an ended path leads its packets to an
// instance, too.
func (w *departures) led(j *instance, p *endedPath) bool {
	return !slices.ContainsFunc(p.c.nodes, func(m *node) bool {
		return !m.silent() && m.acked.path(p.ID) != nil && !m.acked.hasLocal(j.obj.Spec.Vport) && !m.acked.sendsTo(p.ID, j.obj.Spec.Vport)
	})
}

// pathsDrain reports whether an ended path of the instance has flows yet, though
// none of them may lead to this one: an element before it answers them.
func (w *departures) pathsDrain(i *instance) bool {
	for _, p := range w.endedPaths(i) {
		for _, n := range i.node.c.nodes {
			if n.st != nil && n.st.Report != nil && n.st.Report.Paths[p.ID] > 0 {
				return true
			}
		}
	}
	return false
}

// endedPaths are the paths through an instance's deployment that have ended and that
// nodes of its cloudlet still have.
func (w *departures) endedPaths(i *instance) []*endedPath {
	if w.ended == nil {
		w.findEnded()
	}
	return w.ended[member{i.node.c, i.dep}]
}

func (w *departures) findEnded() {
	w.ended = map[member][]*endedPath{}
	for _, c := range w.cloudlets {
		found := map[onpath.PathID]*endedPath{}
		for _, n := range c.nodes {
			if n.newest == nil {
				continue
			}
			for _, p := range n.newest.plan.Datapath.Paths {
				if p.Ended.IsZero() {
					continue
				}
				if q := found[p.ID]; q != nil {
					q.Until = later(q.Until, p.Until)
					continue
				}
				e := &endedPath{p, c}
				found[p.ID] = e
				for _, d := range p.Elements {
					m := member{c, nameIn(d)}
					w.ended[m] = append(w.ended[m], e)
				}
			}
		}
		for _, p := range found {
			if p.Until.IsZero() {
				p.Until = w.goes(c, p.Path)
			}
		}
	}
}

// goes is when an ended path goes at the latest because elements of it do: with the
// last of their instances. It is zero if all elements stay.
func (w *world) goes(cl *cloudlet, p onpath.Path) (until time.Time) {
	for _, e := range p.Elements {
		dep := nameIn(e)
		list := w.instancesOf(cl, dep)
		if w.wanted(dep, cl) || slices.ContainsFunc(list, func(i *instance) bool { return !i.draining() }) {
			continue
		}
		for _, i := range list {
			until = later(until, i.obj.Spec.Until)
		}
	}
	return until
}

// wanted reports whether a deployment is to have instances in a cloudlet.
func (w *world) wanted(dep name, cl *cloudlet) bool {
	d := w.deployments[dep]
	return d != nil && d.in[cl.name] && d.want > 0
}

// declared reports whether a deployment is one of the cloudlet, also with no instances.
func (w *world) declared(dep name, cl *cloudlet) bool {
	d := w.deployments[dep]
	return d != nil && d.in[cl.name]
}

func later(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}
