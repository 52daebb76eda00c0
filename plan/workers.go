package plan

import (
	"maps"
	"sync"
	"sync/atomic"

	"github.com/onpath/onpath"
)

// severalPay is from how many nodes on several workers save more than they cost.
const severalPay = 64

// eachCloudlet calls do for each cloudlet, by so many workers. do reads the world, and
// writes to what is the cloudlet's, or to the result; what a world looks up when it is
// first asked, each worker keeps to itself.
func (w *nodeplans) eachCloudlet(workers int, do func(w *nodeplans, cl *cloudlet)) {
	if workers = min(workers, len(w.inOrder)); workers < 2 {
		for _, cl := range w.inOrder {
			do(w, cl)
		}
		return
	}
	w.lookAhead()
	var all sync.WaitGroup
	var next atomic.Int64
	parts := make([]*nodeplans, workers)
	for k := range parts {
		part := w.worker()
		parts[k] = part
		all.Go(func() {
			for i := next.Add(1) - 1; i < int64(len(w.inOrder)); i = next.Add(1) - 1 {
				do(part, w.inOrder[i])
			}
		})
	}
	all.Wait()
	for _, p := range parts {
		maps.Copy(w.res.Plans, p.res.Plans)
		if !p.res.Again.IsZero() {
			w.passed(p.res.Again)
		}
	}
}

// lookAhead looks up what workers share.
func (w *nodeplans) lookAhead() {
	w.findBeginning()
	w.servicesOf(name{})
	for _, cl := range w.inOrder {
		for _, p := range cl.paths {
			w.partsOf(p.key.tenant)
		}
	}
}

// worker is one that writes to a world, a result and a plan of its own.
func (w *nodeplans) worker() *nodeplans {
	own := *w.world
	own.lists, own.splits = maps.Clone(w.lists), nil
	own.res = &Result{Plans: map[string]*onpath.NodePlan{}}
	return &nodeplans{world: &own, inbound: w.inbound, prepare: w.prepare}
}
