package ebpf

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/internal/flowcount"
)

// Counters implements onpath.Datapath. Vport 0 stands for tunnel packets whose
// sender's vport is not known here.
func (d *Driver) Counters(context.Context) (*onpath.Counters, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return nil, d.errClosed()
	}
	c := &onpath.Counters{Vports: map[onpath.VportID]onpath.VportCounters{}, Paths: map[onpath.PathID]onpath.PathCounters{}}
	if d.coll == nil {
		return c, nil
	}
	for slot, v := range d.maps.vports.now {
		if err := d.readVport(c, slot, onpath.VportID(v.ID)); err != nil {
			return nil, err
		}
	}
	for slot, p := range d.maps.paths.now {
		if err := d.readPath(c, slot, onpath.PathID(p.ID)); err != nil {
			return nil, err
		}
	}
	err := firstError(
		func() error { return d.readVport(c, 0, 0) },
		func() error { return d.readDevices(c) },
		func() error { return d.readFunctions(c) },
		func() (err error) { c.Uplinks, err = d.uplinkCounters(); return err },
		func() error { return d.readTotals(c) },
		func() error { return d.readTenants(c) },
	)
	if err != nil {
		return nil, err
	}
	c.Flows = d.counted.flows
	for id, v := range c.Vports {
		if at := d.counted.at[uint32(id)]; at != nil {
			v.Flows = at.Flows()
			c.Vports[id] = v
		}
	}
	return c, nil
}

func (d *Driver) readTotals(c *onpath.Counters) error {
	var totals []totalCounters
	if err := d.coll.Maps["total_stats"].Lookup(uint32(0), &totals); err != nil {
		return fmt.Errorf("read counters: %w", err)
	}
	for _, t := range totals {
		c.Learned += t.Learned
		c.Encapsulated += t.Encapsulated
	}
	return nil
}

// count counts an entry at the vports that its packets come from and are led to.
func (r *reader) count(at map[uint32]*flowcount.At, k *flowKey, v *flowValue) {
	kind, reverse, to := v.kind(), v.Flags&flowReverse != 0, flowcount.Led(v.packets())
	add := func(id uint32, slot int) {
		if n := at[id]; n != nil && id != 0 {
			n.Add(slot, reverse)
		}
	}
	if from := unthree(k.Scope); kind == nextPending {
		add(from, flowcount.Waiting)
	} else {
		add(from, flowcount.From)
	}
	if kind == nextVport {
		add(unthree(v.Next), to)
	}
	for _, m := range v.Mirrors {
		if id, ok := r.mirror(m); ok {
			add(id, to)
		}
	}
	for _, item := range v.Functions {
		if item != 0 {
			add(r.functions[item&inlineSlot], to)
		}
	}
}

// readTenants reads what the tenants hold of the flow table. Established and caused are as
// the last sweep counted them, and what came since; pending is as it counted.
func (d *Driver) readTenants(c *onpath.Counters) error {
	c.Tenants = map[string]onpath.TenantFlows{}
	for name, slot := range d.slots.tenants.of {
		var limits tenantValue
		var used quotaValue
		if err := errors.Join(d.maps.tenants.Lookup(slot, &limits), d.maps.quotas.Lookup(slot, &used)); err != nil {
			return fmt.Errorf("read what tenant %s holds: %w", name, err)
		}
		t := onpath.TenantFlows{
			Established: used.Established, Limit: limits.Cap, Caused: used.Flows, Deferred: limits.Deferred,
			Pending: d.counted.pending[slot],
		}
		if d.state != nil {
			t.NewLimit = d.state.tenants[slot].begins
		}
		var err error
		if t.Refused, err = d.refused(name, slot); err != nil {
			return err
		}
		c.Tenants[name] = t
	}
	return nil
}

// Refused implements onpath.RefusalReader.
func (d *Driver) Refused(context.Context) (map[string]uint64, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return nil, d.errClosed()
	}
	counts := map[string]uint64{}
	if d.coll == nil {
		return counts, nil
	}
	for name, slot := range d.slots.tenants.of {
		n, err := d.refused(name, slot)
		if err != nil {
			return nil, err
		}
		counts[name] = n
	}
	return counts, nil
}

func (d *Driver) refused(tenant string, slot uint32) (total uint64, err error) {
	var perCPU []tenantCounters
	if err := d.coll.Maps["tenant_stats"].Lookup(slot, &perCPU); err != nil {
		return 0, fmt.Errorf("read counters of tenant %s: %w", tenant, err)
	}
	for _, n := range perCPU {
		total += n.Refused
	}
	return total, nil
}

func (d *Driver) readVport(c *onpath.Counters, slot uint32, id onpath.VportID) error {
	var perCPU []vportCounters
	if err := d.coll.Maps["vport_stats"].Lookup(slot, &perCPU); err != nil {
		return fmt.Errorf("read counters of vport %d: %w", id, err)
	}
	var v onpath.VportCounters
	seen := id != 0
	for i := range perCPU {
		p := &perCPU[i]
		v.In.Packets += p.InPackets
		v.In.Bytes += p.InBytes
		v.Out.Packets += p.OutPackets
		v.Out.Bytes += p.OutBytes
		for n, dropped := range p.Dropped {
			if n == 0 || dropped == 0 {
				continue
			}
			if v.Dropped == nil {
				v.Dropped = map[onpath.DropReason]uint64{}
			}
			v.Dropped[onpath.DropReasons[n-1]] += dropped
			seen = true
		}
		seen = seen || p.InPackets+p.OutPackets > 0
	}
	if seen {
		c.Vports[id] = v
	}
	return nil
}

func (d *Driver) readPath(c *onpath.Counters, slot uint32, id onpath.PathID) error {
	var perCPU []pathCounters
	if err := d.coll.Maps["path_stats"].Lookup(slot, &perCPU); err != nil {
		return fmt.Errorf("read counters of path %d: %w", id, err)
	}
	var p onpath.PathCounters
	for _, n := range perCPU {
		p.Steered.Packets += n.SteeredPackets
		p.Steered.Bytes += n.SteeredBytes
		p.Passed.Packets += n.PassedPackets
		p.Passed.Bytes += n.PassedBytes
		p.Begun += n.Begun
	}
	c.Paths[id] = p
	return nil
}

// monotonic is the clock that the programs stamp with, in ns.
func monotonic() uint64 {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		return 0
	}
	return uint64(ts.Nano())
}
