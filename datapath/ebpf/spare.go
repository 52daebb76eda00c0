package ebpf

import (
	"fmt"
	"time"
)

// forgotten is an entry that a configuration forgets: where, and of which path.
type forgotten struct {
	scope [3]byte
	path  uint16 // slot
}

// spareTime is how long flows that were forgotten may begin anew beyond their tenant's
// limit. Those that are silent for longer find room within it.
const spareTime = time.Minute

// sparing gives what lets flows begin anew whose entries at the edge are forgotten
// because their path ends: they are none of a flood, however many there are.
func (d *Driver) sparing(want *state, edge [3]byte) func([]forgotten) error {
	tenants := map[uint16]uint32{}
	for slot, p := range d.maps.paths.now {
		if want.tenants[p.Tenant].begins != 0 {
			tenants[uint16(slot)] = p.Tenant
		}
	}
	return func(list []forgotten) error {
		count := map[uint32]int64{}
		for _, f := range list {
			if tenant, limited := tenants[f.path]; limited && f.scope == edge {
				count[tenant]++
			}
		}
		for tenant, n := range count {
			if err := d.setSpare(tenant, func(now int64) int64 { return max(now, 0) + n }); err != nil {
				return err
			}
		}
		if len(count) > 0 {
			d.endSparing()
		}
		return nil
	}
}

// setSpare changes how many flows of a tenant may begin in any case. The programs may
// let some begin meanwhile: so few that they do not matter.
func (d *Driver) setSpare(tenant uint32, change func(now int64) int64) error {
	var p admissionValue
	admissions := d.coll.Maps["admissions"]
	if err := admissions.Lookup(tenant, &p); err != nil {
		return fmt.Errorf("read how fast flows may begin: %w", err)
	}
	p.Spare = change(p.Spare)
	if err := admissions.Put(tenant, p); err != nil {
		return fmt.Errorf("write how fast flows may begin: %w", err)
	}
	return nil
}

// endSparing lets it end in time. d.mu is held.
func (d *Driver) endSparing() {
	d.spared = time.Now()
	ctx := d.life
	d.done.Go(func() {
		select {
		case <-ctx.Done():
			return
		case <-time.After(spareTime):
		}
		d.mu.Lock()
		defer d.mu.Unlock()
		if d.closed || d.coll == nil || d.state == nil || time.Since(d.spared) < spareTime {
			return
		}
		for tenant := range d.state.tenants {
			if err := d.setSpare(tenant, func(int64) int64 { return 0 }); err != nil {
				d.opts.Log.Warn("a tenant may begin some flows more than its limit says", "error", err)
			}
		}
	})
}
