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
	m, edge, err := d.openFlows()
	if err != nil || m == nil {
		return err
	}
	defer m.Close()
	now := monotonic()
	return eachFlow(ctx, m, func(k *flowKey, v *flowValue) bool {
		e := entryOf(k, v, now)
		if e.Kind == onpath.NextExit {
			e.Next = edge
		}
		return !f.Matches(e) || yield(e)
	})
}

// openFlows gives the flow table, which then stays open whatever becomes of the
// driver, and the edge vport. No table: nothing is applied.
func (d *Driver) openFlows() (*ebpf.Map, onpath.VportID, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return nil, 0, d.errClosed()
	}
	if d.coll == nil {
		return nil, 0, nil
	}
	m, err := d.coll.Maps["flows"].Clone()
	return m, onpath.VportID(d.maps.nodes.now[0].Edge), err
}

func entryOf(k *flowKey, v *flowValue, now uint64) onpath.FlowEntry {
	e := onpath.FlowEntry{
		Vport: onpath.VportID(k.Scope), Tuple: tupleOf(k), Next: onpath.VportID(v.Next),
		Entry: onpath.VportID(v.Entry), Path: onpath.PathID(v.Path), Reverse: v.Flags&flowReverse != 0,
		Packets: v.Packets, Bytes: v.Bytes, Idle: onpath.Duration(idle(v, now)),
	}
	if int(v.Kind) < len(nextKinds) {
		e.Kind = nextKinds[v.Kind]
	}
	for _, m := range v.Mirrors {
		if m != 0 {
			e.Mirrors = append(e.Mirrors, onpath.VportID(m))
		}
	}
	return e
}

func tupleOf(k *flowKey) onpath.Tuple {
	return onpath.Tuple{
		Protocol: k.Proto, Src: narrow(k.Src, k.Family), Dst: narrow(k.Dst, k.Family),
		SrcPort: binary.BigEndian.Uint16(k.SPort[:]), DstPort: binary.BigEndian.Uint16(k.DPort[:]),
	}
}

// idle is how long an entry was not used; entries are stamped in whole seconds.
func idle(v *flowValue, now uint64) time.Duration {
	seen := uint64(v.Seen) * uint64(time.Second)
	if seen >= now {
		return 0
	}
	return time.Duration(now - seen).Truncate(time.Second)
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
