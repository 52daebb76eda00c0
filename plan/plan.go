package plan

import (
	"reflect"
	"runtime"

	"github.com/onpath/onpath"
)

// Make decides what follows from a snapshot.
func Make(s *Snapshot) *Result { return new(Planner).Make(s) }

// Planner plans again and again, and keeps what it has looked up in plans that nodes
// still have: it decides as Make does, in less time. No plan that it was shown may change.
type Planner struct {
	// Workers plan for several cloudlets at the same time; 0: as many as there are CPUs,
	// where that pays.
	Workers int

	indexes, before map[*onpath.NodePlan]*index
}

// index is what indexOf gives.
func (p *Planner) index(of *onpath.NodePlan) *index {
	x := p.before[of]
	if x == nil {
		x = indexOf(of)
	}
	if of != nil {
		p.indexes[of] = x
	}
	return x
}

// Make decides what follows from a snapshot.
func (p *Planner) Make(s *Snapshot) *Result {
	p.before, p.indexes = p.indexes, make(map[*onpath.NodePlan]*index, len(p.indexes))
	w := worldOf(s, p.index)
	p.before = nil
	workers := p.Workers
	if workers == 0 && len(w.nodeOrder) >= severalPay {
		workers = runtime.GOMAXPROCS(0)
	}
	w.assignEdges()
	w.assignLeases()
	w.accels = accelerators(w)
	accelerate(w)
	(&pathfinder{world: w, kept: map[onpath.PathID]bool{}}).find()
	(&nodeplans{world: w}).make(workers)
	r := &rollout{world: w, created: map[placedOn]int{}}
	r.rollOut()
	pairUp(r)
	r.serve() // instances get addresses first
	lendAddresses(r)
	w.forget()
	w.leaseObjects()
	(&teller{world: w}).status()
	w.res.Taken = outsideReservations(w)
	return w.finish()
}

// update has a changed copy written. Later updates of the same object build on
// earlier ones.
func (w *world) update(o onpath.Object) { w.updates[onpath.KeyOf(o)] = o }

// current is an object with the updates so far.
func current[T onpath.Object](w *world, o T) T {
	if u, ok := w.updates[onpath.KeyOf(o)]; ok {
		return u.(T)
	}
	return o
}

// assignEdges gives gateways their edge vports.
func (w *world) assignEdges() {
	for _, n := range w.nodeOrder {
		if !n.hasEdge() || n.obj.Status.Edge != 0 {
			continue
		}
		if !w.take(Count{Vports: 1}) {
			continue
		}
		next := *n.obj
		next.Status.Edge = w.IDs.Vports[w.res.Used.Vports-1]
		w.update(&next)
	}
}

// forget deletes instances of which nothing is left: their nodes have
// acknowledged plans without them, or are gone for good.
func (w *world) forget() {
	for _, i := range w.instances {
		if !i.draining() || !i.leaving || w.pointedAt(i) {
			continue
		}
		if i.node != nil && (i.node.st == nil || !w.stopped(i)) {
			continue
		}
		w.res.Delete = append(w.res.Delete, onpath.KeyOf(i.obj))
		w.event(Event{About: onpath.KeyOf(i.obj), Node: i.obj.Spec.Node, Reason: "Removed", Message: "nothing of it is left"})
	}
}

// stopped reports whether the instance's node has nothing of it any more.
func (w *world) stopped(i *instance) bool {
	for _, x := range i.node.possible {
		if x.instance(i.obj.Metadata.UID) != nil || x.hasLocal(i.obj.Spec.Vport) {
			return false
		}
	}
	return w.res.Plans[i.node.name] == nil && (i.report == nil || i.report.State == onpath.InstanceStopped)
}

// finish puts the updates into order and drops those that change nothing, or
// what is deleted anyway.
func (w *world) finish() *Result {
	deleted := make(map[onpath.Key]bool, len(w.res.Delete))
	for _, k := range w.res.Delete {
		deleted[k] = true
	}
	var changed []onpath.Key
	for k, u := range w.updates {
		if !deleted[k] && !reflect.DeepEqual(u, w.Objects[k]) {
			changed = append(changed, k)
		}
	}
	sortKeys(changed)
	for _, k := range changed {
		w.res.Update = append(w.res.Update, w.updates[k])
	}
	return w.res
}
