package ebpf

import "github.com/onpath/onpath"

// slots are the rows of vports, paths, peers and tenants in the programs'
// arrays. An id keeps its slot as long as it is configured; a slot given up is
// taken again as late as possible, and the programs compare the id anyway. Place
// 0 stays empty.
type slots struct {
	vports    slotTable[onpath.VportID]
	paths     slotTable[onpath.PathID]
	peers     slotTable[addrKey]
	tenants   slotTable[string]
	functions slotTable[onpath.VportID] // of functions, in the dispatcher
}

type slotTable[K comparable] struct {
	what  string
	of    map[K]uint32
	used  map[uint32]bool
	next  uint32
	limit uint32
	first func(K) uint32 // where programs look first
}

func newSlotTable[K comparable](what string, limit uint32) slotTable[K] {
	return slotTable[K]{what: what, of: map[K]uint32{}, used: map[uint32]bool{}, limit: limit}
}

// recoverSlots reads the slots that an earlier process gave.
func recoverSlots(m *kernelMaps) slots {
	s := slots{
		vports:    newSlotTable[onpath.VportID]("vports", maxVports),
		paths:     newSlotTable[onpath.PathID]("paths", maxPaths),
		peers:     newSlotTable[addrKey]("peers", maxPeers),
		tenants:   newSlotTable[string]("tenants", maxTenants),
		functions: newSlotTable[onpath.VportID]("ebpf functions", maxFunctions),
	}
	s.vports.first = func(id onpath.VportID) uint32 { return uint32(id) % maxVports }
	for slot, v := range m.vports.now {
		s.vports.set(onpath.VportID(v.ID), slot)
	}
	for slot, f := range m.functions.now {
		s.functions.set(onpath.VportID(f.Vport), slot)
	}
	for slot, p := range m.paths.now {
		s.paths.set(onpath.PathID(p.ID), slot)
	}
	for slot, p := range m.peers.now {
		s.peers.set(addrKey{p.Addr, p.Family}, slot)
	}
	return s
}

// recoverTenant takes over the slot that an earlier process gave a tenant, as
// one of its vports tells.
func (s *slots) recoverTenant(tenant string, slot uint32) {
	if _, ok := s.tenants.of[tenant]; !ok && slot != 0 && !s.tenants.used[slot] {
		s.tenants.set(tenant, slot)
	}
}

func (t *slotTable[K]) set(k K, slot uint32) {
	t.of[k] = slot
	t.used[slot] = true
	t.next = max(t.next, slot)
}

// take gives k's slot; fresh if it had none.
func (t *slotTable[K]) take(k K) (slot uint32, fresh bool, err error) {
	if slot, ok := t.of[k]; ok {
		return slot, false, nil
	}
	if t.first != nil {
		if slot := t.first(k); slot != 0 && !t.used[slot] {
			t.of[k], t.used[slot] = slot, true
			return slot, true, nil
		}
	}
	for range t.limit {
		t.next++
		if t.next >= t.limit {
			t.next = 1
		}
		if !t.used[t.next] {
			t.set(k, t.next)
			return t.next, true, nil
		}
	}
	e := onpath.Errorf(onpath.CodeNoCapacity, "the data path has room for %d %s", t.limit-1, t.what)
	return 0, false, e
}

// retain gives up the slots of all that keep does not hold.
func (t *slotTable[K]) retain(keep func(K) bool) {
	for k, slot := range t.of {
		if !keep(k) {
			delete(t.of, k)
			delete(t.used, slot)
		}
	}
}
