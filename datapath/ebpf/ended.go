package ebpf

import (
	"context"
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
	present, ctx := slotsOf(want.paths), d.life
	flows, err := d.cloneTables()
	if err != nil {
		return err
	}
	if err := forget(ctx, flows, present); err != nil {
		flows.close()
		return err
	}
	time.Sleep(underWay)
	err = forget(ctx, flows, present)
	d.done.Go(func() {
		defer flows.close()
		select {
		case <-ctx.Done():
		case <-time.After(lateOnes):
			if err := forget(ctx, flows, present); err != nil && ctx.Err() == nil {
				d.opts.Log.Warn("flow entries of a chain that ended could not be removed", "error", err)
			}
		}
	})
	return err
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

// forget removes the entries of all paths but the present ones. Connections
// that were passed by because they are older than their chain keep being so,
// whatever becomes of it.
func forget(ctx context.Context, flows flowTables, present map[uint16]bool) error {
	var gone []flowKey
	err := flows.each(ctx, func(k *flowKey, v *flowValue) bool {
		adopted := v.kind() == nextPass && v.Flags&flowBypass == 0
		if v.Path != 0 && !present[v.Path] && !adopted {
			gone = append(gone, *k)
		}
		return true
	})
	if err != nil {
		return err
	}
	return flows.remove(gone)
}
