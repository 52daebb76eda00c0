package ebpf

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/cilium/ebpf"
)

// Flows begin in a small table of their tenant's, which replaces the least
// recently used, and move to the table of all once they are known to live. So a
// flood of new flows costs its tenant new flows, and nobody a connection.

// pending are the tables of the tenants' pending flows.
type pending struct {
	outer *ebpf.Map
	spec  *ebpf.MapSpec
	of    map[uint32]*ebpf.Map // by the tenant's slot
	// most is what the tables of all tenants have together, but for least in each; 0: as
	// many as they are.
	most, least uint32
}

// openPending takes over the tables that an earlier process made: of the tenants
// that have limits. Kernels before 6.8 wait for all programs at every look-up in
// a map of maps, 10 ms each, so only slots that are taken are looked at.
func openPending(outer *ebpf.Map, spec *ebpf.MapSpec, tenants *ebpf.Map) (*pending, error) {
	p := &pending{outer: outer, spec: spec, of: map[uint32]*ebpf.Map{}}
	for slot := range uint32(maxTenants) {
		var limits tenantValue
		if err := tenants.Lookup(slot, &limits); err != nil {
			return p, fmt.Errorf("read limits of a tenant: %w", err)
		}
		if limits == (tenantValue{}) {
			continue
		}
		var id uint32
		err := outer.Lookup(slot, &id)
		if errors.Is(err, ebpf.ErrKeyNotExist) {
			continue
		}
		if err != nil {
			return p, fmt.Errorf("read tables of pending flows: %w", err)
		}
		m, err := ebpf.NewMapFromID(ebpf.MapID(id))
		if err != nil {
			return p, fmt.Errorf("open table of pending flows: %w", err)
		}
		p.of[slot] = m
	}
	return p, nil
}

// need makes a tenant's table if it has none.
func (p *pending) need(slot uint32) error {
	if p.of[slot] != nil {
		return nil
	}
	m, err := ebpf.NewMap(p.next())
	if err != nil {
		return fmt.Errorf("make table of pending flows: %w", err)
	}
	if err := p.outer.Put(slot, m); err != nil {
		return errors.Join(fmt.Errorf("hand over table of pending flows: %w", err), m.Close())
	}
	p.of[slot] = m
	return nil
}

// next is the table of one more tenant.
func (p *pending) next() *ebpf.MapSpec {
	if p.most == 0 {
		return p.spec
	}
	var taken uint32
	for _, m := range p.of {
		taken += m.MaxEntries()
	}
	spec := p.spec.Copy()
	spec.MaxEntries = pendingWithin(spec.MaxEntries, taken, p.most, p.least)
	return spec
}

// drop gives a tenant's table up.
func (p *pending) drop(slot uint32) error {
	m := p.of[slot]
	if m == nil {
		return nil
	}
	delete(p.of, slot)
	err := p.outer.Delete(slot)
	return errors.Join(err, m.Close())
}

func (p *pending) close() {
	for _, m := range p.of {
		m.Close()
	}
	p.of = nil
}

// flowTables are all tables with flow entries, the established ones' first. They
// stay open whatever becomes of the driver, until closed.
type flowTables []*ebpf.Map

// cloneTables opens all tables once more. d.mu is held.
func (d *Driver) cloneTables() (flowTables, error) {
	t, _, err := d.cloneTablesOf()
	return t, err
}

// cloneTablesOf also tells whose the tables of pending flows are, by the tenants' slots.
func (d *Driver) cloneTablesOf() (t flowTables, slots []uint32, err error) {
	m, err := d.succession.flowTable(d.coll.Maps[flowsMap])
	if err == nil {
		m, err = m.Clone()
	}
	if err != nil {
		return nil, nil, fmt.Errorf("open flow entries: %w", err)
	}
	t = flowTables{m}
	for slot, p := range d.pending.of {
		m, err := p.Clone()
		if err != nil {
			t.close()
			return nil, nil, fmt.Errorf("open pending flow entries: %w", err)
		}
		t, slots = append(t, m), append(slots, slot)
	}
	return t, slots, nil
}

func (t flowTables) close() {
	for _, m := range t {
		m.Close()
	}
}

// each reads the entries of all tables.
func (t flowTables) each(ctx context.Context, yield func(*flowKey, *flowValue) bool) error {
	more := true
	for _, m := range t {
		err := eachFlow(ctx, m, func(k *flowKey, v *flowValue) bool {
			more = yield(k, v)
			return more
		})
		if err != nil || !more {
			return err
		}
	}
	return nil
}

// remove removes the entries of keys wherever they stand, unless they have become others
// since they were read: a flow may have begun anew by another path, and would stand still
// until its next packet that leaves entries, a second.
func (t flowTables) remove(keys []flowKey, still func(*flowKey, *flowValue) bool) error {
	var v flowValue
	for _, k := range keys {
		for _, m := range t {
			if m.Lookup(k, &v) != nil || !still(&k, &v) {
				continue
			}
			if err := removeFlow(m, k); err != nil {
				return err
			}
		}
	}
	return nil
}

func removeFlow(m *ebpf.Map, k flowKey) error {
	if err := m.Delete(k); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
		return fmt.Errorf("remove flow entry: %w", err)
	}
	return nil
}

// tenantLimits is what a tenant may have on this node; 0: no limit of its own.
type tenantLimits struct {
	caused      uint64 // entries that its instances caused
	established uint64
	begins      uint64 // flows in a second
}

// admission is the time between two flows that may begin, and how far ahead of the clock
// some may: a tenth of a second's, and one at least.
func (l tenantLimits) admission() (interval, burst uint64) {
	if l.begins == 0 {
		return 0, 0
	}
	interval = uint64(time.Second) << admissionShift / l.begins
	return interval, (max(1, l.begins/10) - 1) * interval
}

// putTenants makes the tables of pending flows and writes the limits; what the
// programs count beside them stays theirs.
func (d *Driver) putTenants(want map[uint32]tenantLimits) error {
	size := uint64(d.coll.Maps[flowsMap].MaxEntries())
	share := size / 8 * 7 / max(1, uint64(len(want)))
	limits := map[uint32]tenantValue{0: {Cap: size / 8}}
	held, taken := map[uint32]uint64{}, uint64(0)
	for slot := range want {
		var used quotaValue
		if err := d.maps.quotas.Lookup(slot, &used); err != nil {
			return fmt.Errorf("read what a tenant uses of its quota: %w", err)
		}
		held[slot] = used.Established
		taken += used.Established + (share-min(share, used.Established))/2
	}
	for slot, l := range want {
		v := tenantValue{Max: l.caused, Cap: max(share, held[slot]+lent(size, uint64(len(want)), taken))}
		if l.established != 0 {
			v.Cap = min(v.Cap, l.established)
		}
		v.Interval, v.Burst = l.admission()
		limits[slot] = v
	}
	shareOut(limits)
	for slot, v := range limits {
		if err := d.pending.need(slot); err != nil {
			return err
		}
		var now tenantValue
		if err := d.maps.tenants.Lookup(slot, &now); err != nil {
			return fmt.Errorf("read limits of a tenant: %w", err)
		}
		v.Deferred = now.Deferred
		if v == now {
			continue
		}
		if err := d.maps.tenants.Put(slot, v); err != nil {
			return fmt.Errorf("write limits of a tenant: %w", err)
		}
	}
	return nil
}

// lent is how many entries more than it has a tenant gets beyond its share of a table, of
// which so many are in use or kept for others. Together the tenants may establish seven
// eighths of the table, each the same; the rest is for flows of instances whose tenant this
// node does not know. Half of what others leave of their shares is kept for them, the other
// half lent in equal parts, as long as the table is less than pressed. Above that a tenant
// with more than its share gets nothing more, and its flows age sooner (shrinkShares).
func lent(size, tenants, taken uint64) uint64 {
	free := uint64(float64(size) * pressed)
	return (free - min(free, taken)) / tenants
}

// reclassifies tells whether packets at the edge will be classified by other
// rules than before.
func (d *Driver) reclassifies(want *state) bool {
	old := d.maps.nodes.now[0]
	if old.Edge == 0 {
		return false
	}
	if old.Edge != want.node.Edge || old.EdgeTable != want.node.EdgeTable {
		return true
	}
	for id, t := range want.tables {
		if isClassifier(id) && !d.maps.tables.has(id, t.sum) {
			return true
		}
	}
	return false
}

// establishPending makes the pending flows at the edge established, within their tenants'
// limits, when rules change: pending ones are found by the rules that they began
// with. It is done before and after, for those that begin meanwhile.
func (d *Driver) establishPending(want *state) error {
	if !want.reclassifies {
		return nil
	}
	flows, r := d.coll.Maps[flowsMap], newReader(d.maps, nil)
	capacity := map[uint32]uint64{} // of tenants, in entries
	for slot := range d.pending.of {
		var used quotaValue
		var limits tenantValue
		if err := errors.Join(d.maps.quotas.Lookup(slot, &used), d.maps.tenants.Lookup(slot, &limits)); err != nil {
			return fmt.Errorf("read what a tenant uses of its quota: %w", err)
		}
		capacity[slot] = limits.Cap - min(limits.Cap, used.Established)
	}
	came := map[uint32]uint64{}
	for _, m := range d.pending.of {
		var moved []flowKey
		err := eachFlow(d.life, m, func(k *flowKey, v *flowValue) bool {
			to := r.tenant(k, v)
			if unthree(k.Scope) != r.edge || came[to] >= capacity[to] {
				return true
			}
			d.maps.prefilter.addEntry(k)
			if err := flows.Update(k, v, ebpf.UpdateNoExist); err == nil {
				came[to]++
				moved = append(moved, *k)
			}
			return true
		})
		for _, k := range moved {
			err = errors.Join(err, removeFlow(m, k))
		}
		if err != nil {
			return err
		}
	}
	return d.chargeQuotas(came)
}

// chargeQuotas adds to what tenants use of their quotas.
func (d *Driver) chargeQuotas(more map[uint32]uint64) error {
	for slot, n := range more {
		var used quotaValue
		if err := d.maps.quotas.Lookup(slot, &used); err != nil {
			return fmt.Errorf("read what a tenant uses of its quota: %w", err)
		}
		used.Established += n
		if err := d.maps.quotas.Put(slot, used); err != nil {
			return fmt.Errorf("write what a tenant uses of its quota: %w", err)
		}
	}
	return nil
}

// giveUpTenants frees the slots of tenants that have nothing here any more.
func (d *Driver) giveUpTenants(want *state) error {
	var errs []error
	for name, slot := range d.slots.tenants.of {
		if _, ok := want.tenants[slot]; ok {
			continue
		}
		errs = append(errs, d.pending.drop(slot), d.maps.tenants.Put(slot, tenantValue{}), d.maps.quotas.Put(slot, quotaValue{}),
			d.coll.Maps["admissions"].Put(slot, admissionValue{}), d.clearTenant(slot))
		delete(d.slots.tenants.of, name)
		delete(d.slots.tenants.used, slot)
	}
	return errors.Join(errs...)
}
