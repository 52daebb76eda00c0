package ebpf

import (
	"context"
	"errors"
	"maps"
	"time"

	"golang.org/x/sys/unix"
)

// flowAdopted marks pass entries of connections that are older than their chain; other pass
// entries were decided by its rules.
const flowAdopted uint8 = 0x40

// Packets that were under way when their path ended write entries of it again.
// Nearly all are out of the programs and the instances after the first span, and
// until then they find their groups; what has come later writes nothing.
//
// A node without uplinks hears of the end once the gateways send nothing more. What
// they have sent may still be in its instances, and comes out of them by these
// entries: it gets the time that a busy machine takes for that.
const (
	underWay = 2 * time.Millisecond
	lateOnes = 100 * time.Millisecond
)

var lastOnes = 20 * time.Millisecond // a constant, but for tests on machines busier still

// drainEnded waits for what is still in instances of a node without uplinks that are to go:
// those who send to them do so no more.
func (d *Driver) drainEnded(want *state) error {
	if want.node.EdgeTable != 0 {
		return nil
	}
	for slot, v := range d.maps.vports.now {
		if _, stays := want.vports[slot]; !stays && v.Kind == vportInstance && v.State != stateClosed {
			time.Sleep(lastOnes)
			return nil
		}
	}
	return nil
}

// endPaths removes the entries of paths that are configured no more, before what
// they lead to goes: their flows go the ordinary way from now on, or begin anew by
// another chain, instead of being dropped for as long as they live. It removes the
// tables, groups and paths as well.
func (d *Driver) endPaths(want *state) error {
	ended, closed := d.pathsToEnd(want)
	if len(ended)+len(closed) == 0 {
		return errors.Join(d.dropTables(want), d.maps.paths.retain(want.paths))
	}
	present, edge, ctx := slotsOf(want.paths), three(want.node.Edge), d.life
	spare, cuts := d.sparing(want, edge), anyCuts(want.paths)
	flows, err := d.cloneTables()
	if err != nil {
		return err
	}
	forgetEnded := func() error {
		gone := func(k *flowKey, path uint16) bool { return !present[path] || closed[path] && k.Scope == edge }
		return forget(ctx, flows, gone, cuts, spare)
	}
	if want.node.Edge == 0 {
		time.Sleep(lastOnes)
	}
	err = firstError(
		forgetEnded,
		func() error { time.Sleep(underWay); return nil },
		forgetEnded,
		func() error { return d.dropTables(want) },
		func() error { return d.maps.paths.retain(want.paths) },
		// Between the last two, packets may have written entries. Nobody can any
		// more once those that are in the programs are out of them.
		func() error { passPrograms(); return nil },
		forgetEnded,
	)
	d.done.Go(func() {
		defer flows.close()
		select {
		case <-ctx.Done():
			return
		case <-time.After(lateOnes):
		}
		// Paths configured in the meantime have entries that must stay.
		gone := d.stillEnded(ended, closed)
		err := forget(ctx, flows, func(k *flowKey, path uint16) bool { return gone[path] && (ended[path] || k.Scope == edge) }, cuts, nil)
		if err != nil && ctx.Err() == nil {
			d.opts.Log.Warn("flow entries of a chain that ended could not be removed", "error", err)
		}
	})
	return err
}

// pathsToEnd are the slots of paths that a configuration has no more, and of those that
// it closes.
func (d *Driver) pathsToEnd(want *state) (ended, closed map[uint16]bool) {
	ended, closed = map[uint16]bool{}, map[uint16]bool{}
	if anyEnded(d.maps.paths.now, want.paths) {
		for slot := range d.maps.paths.now {
			if _, stays := want.paths[slot]; !stays {
				ended[uint16(slot)] = true
			}
		}
	}
	for slot := range want.closed {
		if d.state == nil || !d.state.closed[slot] {
			closed[slot] = true
		}
	}
	return ended, closed
}

// passPrograms returns when all packets that were in the programs at the time of
// the call are out of them.
func passPrograms() {
	const global = 1 // MEMBARRIER_CMD_GLOBAL waits for all readers of RCU, which programs are
	if _, _, errno := unix.Syscall(unix.SYS_MEMBARRIER, global, 0, 0); errno != 0 {
		time.Sleep(underWay) // the kernel was told to leave CPUs alone (nohz_full)
	}
}

// stillEnded are those of the slots that no path has now, or one that is closed.
func (d *Driver) stillEnded(ended, closed map[uint16]bool) map[uint16]bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.maps == nil {
		return nil
	}
	left := maps.Clone(ended)
	for slot := range d.maps.paths.now {
		delete(left, uint16(slot))
	}
	for slot := range closed {
		if d.state != nil && d.state.closed[slot] {
			left[slot] = true
		}
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

// anyCuts reports whether a path is young that cuts the connections which are older.
func anyCuts(paths map[uint32]pathValue) bool {
	now := monotonic()
	for _, p := range paths {
		if p.Flags&pathCut != 0 && p.AdoptUntil > now {
			return true
		}
	}
	return false
}

// forget removes the entries of paths that are gone, by keys and the paths' slots. Connections
// that were passed by because they are older than their chain keep being so,
// whatever becomes of it, unless a path cuts such. spare, if there is one, is told first which entries of a path
// go.
func forget(
	ctx context.Context, flows flowTables, gone func(k *flowKey, path uint16) bool, cuts bool, spare func([]forgotten) error,
) error {
	var keys []flowKey
	var list []forgotten
	goes := func(k *flowKey, v *flowValue) bool {
		adopted := v.kind() == nextPass && v.Flags&flowAdopted != 0 && v.Mirrors[0] == 0
		return v.path() != 0 && gone(k, v.path()) && (cuts || !adopted)
	}
	err := flows.each(ctx, func(k *flowKey, v *flowValue) bool {
		if goes(k, v) {
			keys = append(keys, *k)
			list = append(list, forgotten{k.Scope, v.path()})
		}
		return true
	})
	if err == nil && spare != nil {
		err = spare(list)
	}
	if err != nil {
		return err
	}
	return flows.remove(keys, goes)
}
