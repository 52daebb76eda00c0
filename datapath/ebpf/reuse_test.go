package ebpf

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"golang.org/x/sys/unix"
)

// reuse keeps what was loaded for data paths of tests, and gives it, with all tables as
// they were made, to a data path that begins when the earlier one has been removed. The
// kernel takes a third of a second to check the programs, and tests open hundreds.
type reuse struct {
	mu  sync.Mutex
	all []*loaded
}

// loaded are programs and tables, and the data path that has them.
type loaded struct {
	*ebpf.Collection
	shape string
	dir   string    // where the tables are pinned
	open  *ebpf.Map // one of the data path's own descriptors
}

// TestMain has data paths use again what those before had.
func TestMain(m *testing.M) {
	r := new(reuse)
	newCollection = r.load
	code := m.Run()
	for _, l := range r.all {
		l.Close()
	}
	os.Exit(code)
}

func (r *reuse) load(spec *ebpf.CollectionSpec, o ebpf.CollectionOptions) (*ebpf.Collection, error) {
	dir := o.Maps.PinPath
	left, err := os.ReadDir(dir)
	if dir == "" || err != nil || len(left) > 0 || len(o.MapReplacements) > 0 { // it goes on with others' tables
		return ebpf.NewCollectionWithOptions(spec, o)
	}
	shape := shapeOf(spec)
	if l := r.free(shape, dir); l != nil {
		return l.again(spec)
	}
	c, err := ebpf.NewCollectionWithOptions(spec, o)
	if err != nil {
		return nil, err
	}
	kept, err := clone(c)
	if err != nil {
		return nil, errors.Join(err, removeAll(c, dir))
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.all = append(r.all, &loaded{Collection: kept, shape: shape, dir: dir, open: c.Maps[flowsMap]})
	return c, nil
}

func removeAll(c *ebpf.Collection, dir string) error {
	c.Close()
	return os.RemoveAll(dir)
}

// shapeOf tells collections apart that are not the same.
func shapeOf(spec *ebpf.CollectionSpec) string {
	var s strings.Builder
	for _, name := range slices.Sorted(maps.Keys(spec.Maps)) {
		m := spec.Maps[name]
		fmt.Fprintln(&s, name, m.Type, m.KeySize, m.ValueSize, m.MaxEntries, m.Flags, m.Contents)
		if m.InnerMap != nil {
			fmt.Fprintln(&s, m.InnerMap.Type, m.InnerMap.KeySize, m.InnerMap.ValueSize, m.InnerMap.MaxEntries, m.InnerMap.Flags)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(spec.Programs)) {
		p := spec.Programs[name]
		fmt.Fprintln(&s, name, p.Type, p.AttachType, p.Flags, len(p.Instructions), constants(p.Instructions))
	}
	return s.String()
}

// constants is a sum over what a program's instructions hold.
func constants(code asm.Instructions) (sum uint64) {
	for _, i := range code {
		sum = sum*31 + uint64(i.OpCode) + uint64(i.Constant)<<8 + uint64(uint16(i.Offset))<<40
	}
	return sum
}

// free takes what a data path had that has been removed and closed.
func (r *reuse) free(shape, dir string) *loaded {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, l := range r.all {
		if _, err := os.Stat(l.dir); l.shape == shape && l.open.FD() < 0 && errors.Is(err, os.ErrNotExist) {
			l.dir = dir // nobody else may have it
			return l
		}
	}
	return nil
}

// again empties the tables and pins them where the next data path has them.
func (l *loaded) again(spec *ebpf.CollectionSpec) (*ebpf.Collection, error) {
	c, err := clone(l.Collection)
	if err != nil {
		return nil, err
	}
	for name, m := range c.Maps {
		if name[0] == '.' {
			continue
		}
		if err := empty(m); err != nil {
			return nil, errors.Join(fmt.Errorf("empty %s: %w", name, err), removeAll(c, l.dir))
		}
		if spec.Maps[name].Pinning == ebpf.PinByName {
			if err := m.Pin(filepath.Join(l.dir, name)); err != nil {
				return nil, errors.Join(err, removeAll(c, l.dir))
			}
		}
	}
	l.open = c.Maps[flowsMap]
	return c, nil
}

func clone(c *ebpf.Collection) (*ebpf.Collection, error) {
	out := &ebpf.Collection{Programs: map[string]*ebpf.Program{}, Maps: map[string]*ebpf.Map{}}
	for name, p := range c.Programs {
		q, err := p.Clone()
		if err != nil {
			return nil, err
		}
		out.Programs[name] = q
	}
	for name, m := range c.Maps {
		n, err := m.Clone()
		if err != nil {
			return nil, err
		}
		out.Maps[name] = n
	}
	return out, nil
}

// empty makes a table as it was when it was made.
func empty(m *ebpf.Map) error {
	switch m.Type() {
	case ebpf.Array, ebpf.PerCPUArray:
		return zero(m)
	case ebpf.ArrayOfMaps, ebpf.ProgramArray, ebpf.PerfEventArray:
		for k := range m.MaxEntries() {
			if err := m.Delete(k); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
				return err
			}
		}
		return nil
	case ebpf.Hash, ebpf.LRUHash, ebpf.PerCPUHash:
		for k, err := m.NextKeyBytes(nil); ; {
			if err != nil || k == nil {
				return err
			}
			var next []byte
			next, err = m.NextKeyBytes(k)
			if gone := m.Delete(k); gone != nil {
				return gone
			}
			k = next
		}
	}
	return fmt.Errorf("tests cannot empty a %s", m.Type())
}

// zero writes nought to all of an array.
func zero(m *ebpf.Map) error {
	n := int(m.MaxEntries())
	if m.Flags()&unix.BPF_F_MMAPABLE != 0 {
		page := os.Getpagesize()
		size := (n*(int(m.ValueSize()+7)&^7) + page - 1) / page * page
		b, err := unix.Mmap(m.FD(), 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
		if err != nil {
			return err
		}
		clear(b)
		return unix.Munmap(b)
	}
	keys := make([]uint32, n)
	for i := range keys {
		keys[i] = uint32(i)
	}
	value := reflect.ArrayOf(int(m.ValueSize()), reflect.TypeFor[byte]())
	values := reflect.MakeSlice(reflect.SliceOf(value), n, n).Interface()
	if m.Type() == ebpf.PerCPUArray { // strings are copied at once, arrays byte by byte
		values = slices.Repeat([]string{strings.Repeat("\x00", int(m.ValueSize()))}, n*ebpf.MustPossibleCPU())
	}
	_, err := m.BatchUpdate(keys, values, nil)
	return err
}
