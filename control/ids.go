package control

import (
	"slices"

	"github.com/onpath/onpath"
)

// floors are what sequences must rise above: ids that nodes hold and this server's
// store does not know of, because it was restored from a backup.
type floors struct {
	vport, path         uint64 // held by nodes
	highVport, highPath uint64 // the highest that were fetched; 0: none yet
}

func floorVports(f *floors) uint64 { return f.vport }
func floorPaths(f *floors) uint64  { return f.path }

func (c *Controller) floor(of func(*floors) uint64) uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return of(&c.floors)
}

// raiseIDs has sequences rise above all ids in a plan that a node has in force.
// Flow entries and other nodes' groups may have them still. Callers hold mu.
func (c *Controller) raiseIDs(p *onpath.NodePlan) {
	if p == nil {
		return
	}
	f := &c.floors
	for i := range p.Instances {
		f.vport = max(f.vport, uint64(p.Instances[i].Vport), uint64(p.Instances[i].Back))
	}
	for i := range p.Datapath.Vports {
		f.vport = max(f.vport, uint64(p.Datapath.Vports[i].ID))
	}
	for i := range p.Datapath.Paths {
		f.path = max(f.path, uint64(p.Datapath.Paths[i].ID))
	}
	if f.highVport != 0 && f.vport > f.highVport {
		c.ids.Vports = nil
	}
	if f.highPath != 0 && f.path > f.highPath {
		c.ids.Paths = nil
	}
}

// used takes the ids of objects out of what new ones are made with. Others than those
// that were written, or may have been, are used again.
func (c *Controller) used(changes []onpath.Change) {
	vports, paths := map[onpath.VportID]bool{}, map[onpath.PathID]bool{}
	for _, ch := range changes {
		switch o := ch.Object.(type) {
		case *onpath.Instance:
			vports[o.Spec.Vport], vports[o.Spec.Back] = true, true
		case *onpath.Node:
			vports[o.Status.Edge] = true
			for _, s := range o.Status.Leases {
				vports[s.Vport], paths[s.Path] = true, true
			}
		case *onpath.Chain:
			paths[o.Status.Path] = true
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ids.Vports = slices.DeleteFunc(slices.Clone(c.ids.Vports), func(v onpath.VportID) bool { return vports[v] })
	c.ids.Paths = slices.DeleteFunc(slices.Clone(c.ids.Paths), func(p onpath.PathID) bool { return paths[p] })
}

// maxPath is the largest path id: they have 18 bits.
const maxPath = 1<<18 - 1

// idsFrom are n new ids of a sequence from first on. Those past the end of its range
// are, instead, ids that nobody uses any more. Callers hold mu.
func (c *Controller) idsFrom(first uint64, n int, last uint64, what string, inUse func() map[uint64]bool) (ids []uint64, err error) {
	for id := first; id <= last && len(ids) < n; id++ {
		ids = append(ids, id)
	}
	if len(ids) == n {
		return ids, nil
	}
	if away := c.awaitedLocked(); len(away) > 0 {
		e := onpath.Errorf(onpath.CodeNoCapacity, "the %s ids are used up, and which can be used again is not known without nodes %v", what, away)
		e.Remedy = "bring them back, or delete them (onpath delete node NAME --force)"
		return ids, e
	}
	used := inUse()
	for id := uint64(1); id <= last && len(ids) < n; id++ {
		if !used[id] {
			ids = append(ids, id)
		}
	}
	if len(ids) == 0 {
		return nil, onpath.Errorf(onpath.CodeNoCapacity, "all %d %s ids are in use", last, what)
	}
	return ids, nil
}

// eachPlan calls do with all plans that nodes have in force or may bring in force.
func (c *Controller) eachPlan(do func(*onpath.NodePlan)) {
	for _, st := range c.nodes {
		for _, p := range append(slices.Clone(st.state.Sent), st.state.Acked) {
			if p != nil {
				do(p)
			}
		}
	}
}

// pathsInUse are the path ids of chains, of plans, and those kept for new ones.
func (c *Controller) pathsInUse() map[uint64]bool {
	used := map[uint64]bool{}
	for _, o := range c.mirror.objects {
		switch o := o.(type) {
		case *onpath.Chain:
			used[uint64(o.Status.Path)] = true
		case *onpath.Node:
			for _, s := range o.Status.Leases {
				used[uint64(s.Path)] = true
			}
		}
	}
	c.eachPlan(func(p *onpath.NodePlan) {
		for i := range p.Datapath.Paths {
			used[uint64(p.Datapath.Paths[i].ID)] = true
		}
	})
	for _, id := range c.ids.Paths {
		used[uint64(id)] = true
	}
	return used
}

// vportsInUse are likewise the vport ids.
func (c *Controller) vportsInUse() map[uint64]bool {
	used := map[uint64]bool{}
	for _, o := range c.mirror.objects {
		switch o := o.(type) {
		case *onpath.Instance:
			used[uint64(o.Spec.Vport)], used[uint64(o.Spec.Back)] = true, true
		case *onpath.Node:
			used[uint64(o.Status.Edge)] = true
			for _, s := range o.Status.Leases {
				used[uint64(s.Vport)] = true
			}
		}
	}
	c.eachPlan(func(p *onpath.NodePlan) {
		for i := range p.Instances {
			used[uint64(p.Instances[i].Vport)], used[uint64(p.Instances[i].Back)] = true, true
		}
		for i := range p.Datapath.Vports {
			used[uint64(p.Datapath.Vports[i].ID)] = true
		}
	})
	for _, id := range c.ids.Vports {
		used[uint64(id)] = true
	}
	return used
}
