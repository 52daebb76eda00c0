package ebpf

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/cilium/ebpf"

	"github.com/onpath/onpath"
)

// batch is how many entries are read by one system call.
const batch = 1024

var nextKinds = [...]onpath.NextKind{
	nextVport: onpath.NextVport, nextExit: onpath.NextExit, nextPass: onpath.NextPass,
	nextPending: onpath.NextPending, nextDrop: onpath.NextDrop,
}

// Flows implements onpath.Datapath.
func (d *Driver) Flows(ctx context.Context, f onpath.FlowFilter, yield func(onpath.FlowEntry) bool) error {
	t, r, err := d.openFlows()
	if err != nil || t == nil {
		return err
	}
	defer t.close()
	return t.each(ctx, func(k *flowKey, v *flowValue) bool {
		e := r.bare(k, v)
		if !f.Bare || f.Tuple != nil {
			e.Tuple = tupleOf(k)
		}
		if !f.Matches(e) {
			return true
		}
		if !f.Bare {
			r.complete(&e, k, v, monotonic())
		}
		return yield(e)
	})
}

// openFlows gives the flow tables, which then stay open whatever becomes of the
// driver, and what their entries refer to. No table: nothing is applied.
func (d *Driver) openFlows() (flowTables, *reader, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return nil, nil, d.errClosed()
	}
	if d.coll == nil {
		return nil, nil, nil
	}
	t, err := d.cloneTables()
	return t, newReader(d.maps, nil), err
}

// reader knows what packed entries refer to.
type reader struct {
	edge        uint32
	paths       map[uint16]uint32      // ids, by slot
	pathTenants map[uint16]uint32      // slots, by slot
	idle        map[uint16]onpath.Idle // by the path's slot
	vports      map[uint16]uint32      // ids, by slot
	others      map[uint32]uint32      // the other sides, by id; 0: the vport is remote
	tenants     map[uint32]uint32      // slots, by the vport's id
	functions   map[uint8]uint32       // of functions: their vports
}

func newReader(m *kernelMaps, idle map[uint16]onpath.Idle) *reader {
	r := &reader{
		edge: m.nodes.now[0].Edge, paths: map[uint16]uint32{}, pathTenants: map[uint16]uint32{}, idle: idle,
		vports: map[uint16]uint32{}, others: map[uint32]uint32{}, tenants: map[uint32]uint32{}, functions: map[uint8]uint32{},
	}
	for slot, f := range m.functions.now {
		r.functions[uint8(slot)] = f.Vport
	}
	for slot, p := range m.paths.now {
		r.paths[uint16(slot)], r.pathTenants[uint16(slot)] = p.ID, p.Tenant
	}
	for slot, v := range m.vports.now {
		r.vports[uint16(slot)] = v.ID
		r.others[v.ID], r.tenants[v.ID] = v.Other, uint32(v.Tenant)
	}
	return r
}

// bare is an entry by which it can be selected and counted, but for its tuple.
func (r *reader) bare(k *flowKey, v *flowValue) onpath.FlowEntry {
	e := onpath.FlowEntry{
		Vport: onpath.VportID(unthree(k.Scope)), Next: onpath.VportID(unthree(v.Next)),
		Path: onpath.PathID(r.paths[v.path()]), Reverse: v.Flags&flowReverse != 0,
	}
	if int(v.kind()) < len(nextKinds) {
		e.Kind = nextKinds[v.kind()]
	}
	if e.Kind == onpath.NextExit {
		e.Next = onpath.VportID(r.edge)
	}
	for _, item := range v.Functions {
		if item == 0 {
			continue
		}
		if id := r.functions[item&inlineSlot]; id != 0 {
			e.Functions = append(e.Functions, onpath.VportID(id))
		}
	}
	return e
}

// complete adds the rest.
func (r *reader) complete(e *onpath.FlowEntry, k *flowKey, v *flowValue, now uint64) {
	e.Entry, e.Packets, e.Bytes, e.Idle = onpath.VportID(v.Entry), v.packets(), v.bytes(), onpath.Duration(idle(v.seen(), now))
	e.Emitted, e.Learned = v.Flags&flowEmitted != 0, v.Flags&flowLearned != 0
	e.Adopted = v.Flags&flowAdopted != 0 && e.Kind != onpath.NextPending
	if v.Flags&flowAtEdge != 0 {
		e.Entry = 0
		if v.Kind&edgeHere == 0 {
			e.Entry = onpath.VportID(r.edge)
		}
	}
	for _, m := range v.Mirrors {
		if id, ok := r.mirror(m); ok {
			e.Mirrors = append(e.Mirrors, onpath.VportID(id))
		}
	}
}

// mirror is the vport that an entry sends copies to: m has its slot, and enough of its
// id to tell it from another that has taken the slot since.
func (r *reader) mirror(m uint16) (id uint32, ok bool) {
	id = r.vports[m&0x1fff]
	return id, m != 0 && id != 0 && id&7 == uint32(m>>13)
}

// group by which next was chosen; 0: by none.
func (r *reader) group(v *flowValue) uint32 {
	path := r.paths[v.path()]
	if v.Group == 0 || path == 0 {
		return 0
	}
	return path<<6 | uint32(v.Group&^(chosen|reopened))
}

func (v *flowValue) kind() uint8     { return v.Kind & kindMask }
func (v *flowValue) path() uint16    { return v.Path & (maxPaths - 1) }
func (v *flowValue) packets() uint64 { return v.Packets & (1<<48 - 1) }
func (v *flowValue) bytes() uint64   { return v.Bytes & (1<<56 - 1) }
func (v *flowValue) seen() uint32    { return unthree(v.Seen) }

// ack is TCP's last acknowledgement number that an entry noted, 0 if none. At
// other places than the edge the low byte is not known, and is zero.
func (v *flowValue) ack() uint32 {
	if v.Flags&flowAtEdge != 0 {
		return v.Entry
	}
	return uint32(v.Packets>>48)<<16 | uint32(v.Bytes>>56)<<8
}

func tupleOf(k *flowKey) onpath.Tuple {
	return onpath.Tuple{
		Protocol: k.Proto, Src: narrow(k.Src), Dst: narrow(k.Dst),
		SrcPort: binary.BigEndian.Uint16(k.SPort[:]), DstPort: binary.BigEndian.Uint16(k.DPort[:]),
	}
}

// idle is how long it was not used what was stamped with seen. A stamp that is
// ahead by a little is a new one.
func idle(seen uint32, now uint64) time.Duration {
	const ahead = 60
	d := (uint32(now/uint64(time.Second)) - seen) & seenMask
	if d > seenMask-ahead {
		return 0
	}
	return time.Duration(d) * time.Second
}

// eachFlow reads all flow entries, in batches where the kernel can.
func eachFlow(ctx context.Context, m *ebpf.Map, yield func(*flowKey, *flowValue) bool) error {
	keys, values := make([]flowKey, batch), make([]flowValue, batch)
	var cursor ebpf.MapBatchCursor
	for {
		if err := ctx.Err(); err != nil {
			return err
		}
		n, err := m.BatchLookup(&cursor, keys, values, nil)
		if errors.Is(err, ebpf.ErrNotSupported) {
			return oneByOne(ctx, m, yield)
		}
		for i := range n {
			if !yield(&keys[i], &values[i]) {
				return nil
			}
		}
		if errors.Is(err, ebpf.ErrKeyNotExist) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("read flow entries: %w", err)
		}
	}
}

func oneByOne(ctx context.Context, m *ebpf.Map, yield func(*flowKey, *flowValue) bool) error {
	var k flowKey
	var v flowValue
	it := m.Iterate()
	for it.Next(&k, &v) {
		if err := ctx.Err(); err != nil {
			return err
		}
		if !yield(&k, &v) {
			return nil
		}
	}
	if err := it.Err(); err != nil {
		return fmt.Errorf("read flow entries: %w", err)
	}
	return nil
}
