package ebpf

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"

	"github.com/cilium/ebpf"

	"github.com/onpath/onpath"
)

// formerKey and formerFlow are the layout before.
type formerKey struct {
	Scope  uint32
	Src    [16]byte
	Dst    [16]byte
	SPort  [2]byte
	DPort  [2]byte
	Proto  uint8
	Family uint8
	_      uint16
}

type formerFlow struct {
	Kind        uint8
	Flags       uint8
	Slot        uint16
	Next        uint32
	Context     uint32
	Group       uint32
	Entry       uint32
	Path        uint32
	Mirrors     [maxMirrors]uint32
	Seen        uint32
	Ack         uint32
	Tenant      uint16
	PathSlot    uint16
	MirrorSlots [maxMirrors]uint16
	Packets     uint64
	Bytes       uint64
}

// formerEntries are the flow entries that an older version left in another layout.
// Those that are used are taken over by the programs (bpf/lib/former.h), the others
// age; when there are none any more, their map goes.
type formerEntries struct {
	m    *ebpf.Map
	file string
}

// openFormer lets the programs find them; nil if there are none.
func openFormer(c *ebpf.Collection, spec *ebpf.CollectionSpec, dir string) (*formerEntries, error) {
	f := &formerEntries{file: filepath.Join(dir, formerFlows)}
	m, err := ebpf.LoadPinnedMap(f.file, nil)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("open the flow entries of an older version: %w", err)
	}
	f.m = m
	want := spec.Maps[formerMap].InnerMap.Copy()
	want.MaxEntries = m.MaxEntries()
	if want.Compatible(m) != nil { // older than the layout before: nobody knows it
		return nil, f.remove(nil)
	}
	if err := c.Maps[formerMap].Put(uint32(0), m); err != nil {
		return nil, errors.Join(fmt.Errorf("hand over the flow entries of an older version: %w", err), m.Close())
	}
	return f, nil
}

func (f *formerEntries) close() {
	if f != nil {
		f.m.Close()
	}
}

// remove lets the kernel free the map.
func (f *formerEntries) remove(from *ebpf.Map) error {
	var errs []error
	if from != nil {
		if err := from.Delete(uint32(0)); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			errs = append(errs, fmt.Errorf("take back the flow entries of an older version: %w", err))
		}
	}
	if err := os.Remove(f.file); err != nil && !errors.Is(err, fs.ErrNotExist) {
		errs = append(errs, fmt.Errorf("remove the flow entries of an older version: %w", err))
	}
	return errors.Join(append(errs, f.m.Close())...)
}

// age removes what was taken over or rested for too long; true if nothing is left.
func (f *formerEntries) age(ctx context.Context, s *sweep) (bool, error) {
	var gone []formerKey
	var k formerKey
	var v formerFlow
	left := false
	it := f.m.Iterate()
	for it.Next(&k, &v) {
		if err := ctx.Err(); err != nil {
			return false, err
		}
		if f.rests(&k, &v, s) || s.tables.have(k.now()) {
			gone = append(gone, k)
		} else {
			left = true
		}
	}
	if err := it.Err(); errors.Is(err, ebpf.ErrIterationAborted) {
		left = true // another round will see the rest
	} else if err != nil {
		return false, fmt.Errorf("read the flow entries of an older version: %w", err)
	}
	for _, k := range gone {
		if err := f.m.Delete(k); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			return false, fmt.Errorf("remove a flow entry of an older version: %w", err)
		}
	}
	return !left, nil
}

// rests tells whether a flow rested for longer than its path allows.
func (f *formerEntries) rests(k *formerKey, v *formerFlow, s *sweep) bool {
	times, ok := s.r.idle[v.PathSlot]
	if !ok {
		times = onpath.DefaultIdle
	}
	closed := v.Flags&flowRST != 0
	return idle(v.Seen&seenMask, s.now) > times.For(k.Proto, false, v.Flags&flowFIN != 0, closed)
}

// sweepFormer ages them, and gives them up in the end.
func (d *Driver) sweepFormer(ctx context.Context, s *sweep) error {
	d.mu.Lock()
	f := d.former
	d.mu.Unlock()
	if f == nil {
		return nil
	}
	empty, err := f.age(ctx, s)
	if err != nil || !empty {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.former != f || d.coll == nil {
		return nil
	}
	d.former = nil
	d.opts.Log.Info("all flows of the older version were taken over or have ended")
	return f.remove(d.coll.Maps[formerMap])
}

// now is the key in today's layout.
func (k *formerKey) now() flowKey {
	return flowKey{Scope: three(k.Scope), Proto: k.Proto, Src: mapped(k.Src, k.Family), Dst: mapped(k.Dst, k.Family),
		SPort: k.SPort, DPort: k.DPort}
}

// mapped is an address in today's form: IPv4 filled the first four bytes.
func mapped(a [16]byte, family uint8) addr16 {
	if family == family4 {
		return wide(netip.AddrFrom4([4]byte(a[:4])))
	}
	return a
}

// formerNAT completes the translations that an older version left, whose keys were
// those of its flow entries.
func formerNAT(was layout, old, key, value []byte) {
	family, ok := was.fields[".family"]
	if !ok || take(old, family.at, family.bits) != family4 {
		return
	}
	for _, a := range [][]byte{key[4:20], key[20:36], value[:16]} {
		m := mapped([16]byte(a), family4)
		copy(a, m[:])
	}
}
