package ebpf

import (
	"context"
	"maps"
	"time"
)

// flowBypass marks pass entries of flows for which an element had no instance;
// other pass entries are connections older than their chain.
const flowBypass uint8 = 0x80

// Packets that were under way when their path ended write entries of it again.
// Nearly all are out of the programs and the instances after the first span;
// Apply waits for that, so that nobody takes away what such an entry leads to.
const (
	underWay = 2 * time.Millisecond
	lateOnes = 100 * time.Millisecond
)

// forgetEnded removes the entries of paths that are configured no more, before
// what they lead to goes: their flows go the ordinary way from now on, or begin
// anew by another chain, instead of being dropped for as long as they live.
func (d *Driver) forgetEnded(want *state) error {
	if !anyEnded(d.maps.paths.now, want.paths) {
		return nil
	}
	present, ended, ctx := slotsOf(want.paths), map[uint16]bool{}, d.life
	for slot := range d.maps.paths.now {
		if !present[uint16(slot)] {
			ended[uint16(slot)] = true
		}
	}
	flows, err := d.cloneTables()
	if err != nil {
		return err
	}
	gone := func(path uint16) bool { return !present[path] }
	if err := forget(ctx, flows, gone); err != nil {
		flows.close()
		return err
	}
	time.Sleep(underWay)
	err = forget(ctx, flows, gone)
	d.done.Go(func() {
		defer flows.close()
		select {
		case <-ctx.Done():
			return
		case <-time.After(lateOnes):
		}
		// Paths configured in the meantime have entries that must stay.
		gone := d.stillEnded(ended)
		if err := forget(ctx, flows, func(path uint16) bool { return gone[path] }); err != nil && ctx.Err() == nil {
			d.opts.Log.Warn("flow entries of a chain that ended could not be removed", "error", err)
		}
	})
	return err
}

// stillEnded are those of the slots that no path has now.
func (d *Driver) stillEnded(slots map[uint16]bool) map[uint16]bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.maps == nil {
		return nil
	}
	left := maps.Clone(slots)
	for slot := range d.maps.paths.now {
		delete(left, uint16(slot))
	}
	return left
}

func anyEnded(before, after map[uint32]pathValue) bool {
	for slot, p := range before {
		if p.ID != 0 && after[slot].ID != p.ID {
			return true
		}
	}
	return false
}

// slotsOf copies the keys: the map may change while the slots are in use.
func slotsOf(paths map[uint32]pathValue) map[uint16]bool {
	slots := map[uint16]bool{}
	for slot := range paths {
		slots[uint16(slot)] = true
	}
	return slots
}

// forget removes the entries of paths that are gone, by their slots. Connections
// that were passed by because they are older than their chain keep being so,
// whatever becomes of it.
func forget(ctx context.Context, flows flowTables, gone func(path uint16) bool) error {
	var keys []flowKey
	err := flows.each(ctx, func(k *flowKey, v *flowValue) bool {
		adopted := v.kind() == nextPass && v.Flags&flowBypass == 0
		if v.Path != 0 && gone(v.Path) && !adopted {
			keys = append(keys, *k)
		}
		return true
	})
	if err != nil {
		return err
	}
	return flows.remove(keys)
}
