package control

import (
	"context"
	"errors"
	"slices"
	"sync"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/plan"
)

// floors are what sequences must rise above: ids that nodes hold and this server's
// store does not know of, because it was restored from a backup.
type floors struct {
	vport, path         uint64 // held by nodes
	highVport, highPath uint64 // the highest that were fetched; 0: none yet
}

// idStock are the ids that new objects are made with.
type idStock struct {
	mu     sync.Mutex
	ids    plan.IDs
	floors floors
}

// left are the ids that nothing was made with yet.
func (s *idStock) left() plan.IDs {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ids
}

// dropAddresses takes the first addresses out, which a plan has used.
func (s *idStock) dropAddresses(n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ids.Addresses = s.ids.Addresses[n:]
}

// low reports whether ids should be fetched before they are lacking.
func (s *idStock) low() bool {
	ids := s.left()
	return len(ids.Vports) < reserve/4 || len(ids.Paths) < reserve/4 || len(ids.Addresses) < reserve/4
}

// reserve is how many ids of each sequence are fetched beforehand.
const reserve = 64

// firstIDs are the first new ids of each sequence.
type firstIDs struct{ vport, path, address uint64 }

// next has the sequences of the store go on.
func (s *idStock) next(ctx context.Context, from onpath.Store, short plan.Count) (first firstIDs, err error) {
	s.mu.Lock()
	f := s.floors
	s.mu.Unlock()
	var err1, err2, err3 error
	first.vport, err1 = from.NextIDs(ctx, "vport", f.vport, reserve+short.Vports)
	first.path, err2 = from.NextIDs(ctx, "path", f.path, reserve+short.Paths)
	first.address, err3 = from.NextIDs(ctx, "address", 0, reserve+short.Addresses)
	return first, errors.Join(err1, err2, err3)
}

// add takes new ids in. away are nodes of which it is not known what they hold.
func (s *idStock) add(first firstIDs, short plan.Count, away []string, m *mirror, sessions map[string]*session) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	v, err1 := idsFrom(first.vport, reserve+short.Vports, onpath.MaxID24, "vport", away, func() map[uint64]bool {
		return vportsInUse(m, sessions, s.ids.Vports)
	})
	p, err2 := idsFrom(first.path, reserve+short.Paths, maxPath, "path", away, func() map[uint64]bool {
		return pathsInUse(m, sessions, s.ids.Paths)
	})
	for _, id := range v {
		s.ids.Vports = append(s.ids.Vports, onpath.VportID(id))
	}
	for _, id := range p {
		s.ids.Paths = append(s.ids.Paths, onpath.PathID(id))
	}
	for i := range reserve + short.Addresses {
		s.ids.Addresses = append(s.ids.Addresses, first.address+uint64(i))
	}
	s.floors.highVport = max(s.floors.highVport, first.vport+uint64(reserve+short.Vports)-1)
	s.floors.highPath = max(s.floors.highPath, first.path+uint64(reserve+short.Paths)-1)
	return errors.Join(err1, err2)
}

// raise has sequences rise above all ids in a plan that a node has in force.
// Flow entries and other nodes' groups may have them still.
func (s *idStock) raise(p *onpath.NodePlan) {
	if p == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	f := &s.floors
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
		s.ids.Vports = nil
	}
	if f.highPath != 0 && f.path > f.highPath {
		s.ids.Paths = nil
	}
}

// used takes the ids of objects out of what new ones are made with. Others than those
// that were written, or may have been, are used again.
func (s *idStock) used(changes []onpath.Change) {
	vports, paths := map[onpath.VportID]bool{}, map[onpath.PathID]bool{}
	for _, ch := range changes {
		switch o := ch.Object.(type) {
		case *onpath.Instance:
			vports[o.Spec.Vport], vports[o.Spec.Back] = true, true
		case *onpath.Node:
			vports[o.Status.Edge] = true
			for _, l := range o.Status.Leases {
				vports[l.Vport], paths[l.Path] = true, true
			}
		case *onpath.Chain:
			paths[o.Status.Path] = true
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ids.Vports = slices.DeleteFunc(slices.Clone(s.ids.Vports), func(v onpath.VportID) bool { return vports[v] })
	s.ids.Paths = slices.DeleteFunc(slices.Clone(s.ids.Paths), func(p onpath.PathID) bool { return paths[p] })
}

// maxPath is the largest path id: they have 18 bits.
const maxPath = 1<<18 - 1

// idsFrom are n new ids of a sequence from first on. Those past the end of its range
// are, instead, ids that nobody uses any more.
func idsFrom(first uint64, n int, last uint64, what string, away []string, inUse func() map[uint64]bool) (ids []uint64, err error) {
	for id := first; id <= last && len(ids) < n; id++ {
		ids = append(ids, id)
	}
	if len(ids) == n {
		return ids, nil
	}
	if len(away) > 0 {
		e := onpath.Errorf(onpath.CodeNoCapacity, "the %s ids are used up, and which can be used again "+
			"is not known without nodes %v", what, away)
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
func eachPlan(sessions map[string]*session, do func(*onpath.NodePlan)) {
	for _, st := range sessions {
		for _, p := range append(slices.Clone(st.state.Sent), st.state.Acked) {
			if p != nil {
				do(p)
			}
		}
	}
}

// pathsInUse are the path ids of chains, of plans, and those kept for new ones.
func pathsInUse(m *mirror, sessions map[string]*session, kept []onpath.PathID) map[uint64]bool {
	used := map[uint64]bool{}
	for _, o := range m.objects {
		switch o := o.(type) {
		case *onpath.Chain:
			used[uint64(o.Status.Path)] = true
		case *onpath.Node:
			for _, s := range o.Status.Leases {
				used[uint64(s.Path)] = true
			}
		}
	}
	eachPlan(sessions, func(p *onpath.NodePlan) {
		for i := range p.Datapath.Paths {
			used[uint64(p.Datapath.Paths[i].ID)] = true
		}
	})
	for _, id := range kept {
		used[uint64(id)] = true
	}
	return used
}

// vportsInUse are likewise the vport ids.
func vportsInUse(m *mirror, sessions map[string]*session, kept []onpath.VportID) map[uint64]bool {
	used := map[uint64]bool{}
	for _, o := range m.objects {
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
	eachPlan(sessions, func(p *onpath.NodePlan) {
		for i := range p.Instances {
			used[uint64(p.Instances[i].Vport)], used[uint64(p.Instances[i].Back)] = true, true
		}
		for i := range p.Datapath.Vports {
			used[uint64(p.Datapath.Vports[i].ID)] = true
		}
	})
	for _, id := range kept {
		used[uint64(id)] = true
	}
	return used
}
