package bpfobject

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
	"golang.org/x/sys/unix"

	"github.com/onpath/onpath"
)

// kinds are the tables a function may have, and what an entry costs beside key and
// value, in bytes (measured, rounded up).
var kinds = map[ebpf.MapType]struct {
	overhead uint64
	perCPU   bool
	flags    uint32 // allowed
}{
	ebpf.Hash:        {64, false, unix.BPF_F_NO_PREALLOC},
	ebpf.LRUHash:     {72, false, unix.BPF_F_NO_COMMON_LRU},
	ebpf.Array:       {0, false, 0},
	ebpf.LPMTrie:     {56, false, unix.BPF_F_NO_PREALLOC},
	ebpf.PerCPUHash:  {72, true, unix.BPF_F_NO_PREALLOC},
	ebpf.LRUCPUHash:  {80, true, unix.BPF_F_NO_COMMON_LRU},
	ebpf.PerCPUArray: {8, true, 0},
}

// special are types in a table's values which make the kernel do more than keep
// them.
var special = []string{
	"bpf_spin_lock", "bpf_res_spin_lock", "bpf_timer", "bpf_wq", "bpf_task_work", "bpf_refcount",
	"bpf_list_head", "bpf_list_node", "bpf_rb_root", "bpf_rb_node",
}

func (o *Object) takeTables(spec *ebpf.CollectionSpec) error {
	for _, name := range slices.Sorted(maps.Keys(spec.Maps)) {
		m := spec.Maps[name]
		if name == needsTable {
			if m.MaxEntries == 0 || m.MaxEntries > 256 {
				return refuse("write ONPATH_NEEDS(n) with n up to ONPATH_DATA", "the function asks for %d bytes of packets", m.MaxEntries)
			}
			o.Needs = m.MaxEntries
			continue
		}
		if name == redirectsName {
			o.Redirects = true
			continue
		}
		if err := checkTable(name, m); err != nil {
			return err
		}
		o.Tables[name] = m
	}
	if len(o.Tables) > MaxTables {
		return refuse("join some", "the function has %d tables; at most %d", len(o.Tables), MaxTables)
	}
	o.Config = declared(o.Tables[ConfigTable])
	o.Counters = declared(o.Tables[CountersTable])
	return nil
}

// declared is the struct that a table of one entry holds.
func declared(m *ebpf.MapSpec) *btf.Struct {
	if m == nil || m.MaxEntries != 1 {
		return nil
	}
	st, _ := btf.UnderlyingType(m.Value).(*btf.Struct)
	if st == nil || st.Size != m.ValueSize {
		return nil
	}
	return st
}

func checkTable(name string, m *ebpf.MapSpec) error {
	at := "table " + quoted(name)
	if strings.HasPrefix(name, ".") {
		if !strings.HasPrefix(name, ".rodata") || m.Type != ebpf.Array || m.MaxEntries != 1 || m.ValueSize > MaxValue {
			return refuse("declare tables with ONPATH_TABLE", "the object has a section %s, which functions may not have", quoted(name))
		}
		return nil
	}
	k, ok := kinds[m.Type]
	switch {
	case len(name) > 63 || strings.ContainsAny(name, "./ "):
		return refuse("rename it", "%s cannot be called so", at)
	case !ok:
		return refuse("use one of the kinds listed at ONPATH_TABLE", "%s is of kind %s, which functions may not have", at, m.Type)
	case m.InnerMap != nil || m.Pinning != ebpf.PinNone || m.NumaNode != 0 || m.Extra != nil && m.Extra.Len() > 0 ||
		m.MapExtra != 0 || len(m.Contents) > 0:
		return refuse("declare it with ONPATH_TABLE", "%s has properties that tables of functions may not have", at)
	case m.Flags&^k.flags != 0:
		return refuse("declare it with ONPATH_TABLE", "%s has flags %#x, which tables of functions may not have", at, m.Flags&^k.flags)
	case m.MaxEntries == 0 || m.MaxEntries > MaxEntries:
		return refuse("", "%s has room for %d entries; 1 to %d can be had", at, m.MaxEntries, MaxEntries)
	case m.KeySize == 0 || m.KeySize > MaxKey || m.ValueSize == 0 || m.ValueSize > MaxValue:
		return refuse("", "%s has keys of %d and values of %d bytes; at most %d and %d", at, m.KeySize, m.ValueSize, MaxKey, MaxValue)
	}
	if what := specialIn(m.Value, 0); what != "" {
		return refuse("use atomic operations or a PERCPU_ table", "%s holds a %s, which functions may not use", at, what)
	}
	return nil
}

// specialIn finds a type in a value that the kernel acts on.
func specialIn(t btf.Type, depth int) string {
	if t == nil || depth > 16 {
		return ""
	}
	switch t := btf.UnderlyingType(t).(type) {
	case *btf.Struct:
		if slices.Contains(special, t.Name) {
			return t.Name
		}
		for _, m := range t.Members {
			if s := specialIn(m.Type, depth+1); s != "" {
				return s
			}
		}
	case *btf.Union:
		for _, m := range t.Members {
			if s := specialIn(m.Type, depth+1); s != "" {
				return s
			}
		}
	case *btf.Array:
		return specialIn(t.Type, depth+1)
	case *btf.Pointer:
		return "pointer"
	}
	return ""
}

// Memory is what the tables take when full, on a machine with so many CPUs, without
// the empty ones.
func (o *Object) Memory(cpus int, empty ...string) onpath.Size {
	var sum uint64
	for name, m := range o.Tables {
		if slices.Contains(empty, name) && m.Flags&unix.BPF_F_NO_PREALLOC != 0 {
			continue
		}
		k := kinds[m.Type]
		value := (uint64(m.ValueSize) + 7) &^ 7
		if k.perCPU {
			value *= uint64(cpus)
		}
		sum += uint64(m.MaxEntries) * ((uint64(m.KeySize)+7)&^7 + value + k.overhead)
	}
	return onpath.Size(sum)
}

// CheckMemory refuses an object whose tables are larger than the instance's
// memory, without the empty ones.
func (o *Object) CheckMemory(limit onpath.Size, cpus int, empty ...string) error {
	if need := o.Memory(cpus, empty...); need > limit {
		return refuse("make the tables smaller, or write more in resources.memory",
			"the function's tables take %s on this machine with %d CPUs, and its resources.memory is %s", need, cpus, limit)
	}
	return nil
}

// OpenTables makes the tables, pinned in dir, or takes over those that are there.
// One whose layout is another is made anew: what was in it means something else.
func (o *Object) OpenTables(dir string) (map[string]*ebpf.Map, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("make the folder of the function's tables: %w", err)
	}
	out := map[string]*ebpf.Map{}
	for name, spec := range o.Tables {
		m, err := openTable(name, spec, dir)
		if err != nil {
			CloseTables(out)
			return nil, fmt.Errorf("make table %s: %w", quoted(name), err)
		}
		out[name] = m
	}
	return out, nil
}

// NewTables makes tables that nobody else has, and that go with this process.
func (o *Object) NewTables() (map[string]*ebpf.Map, error) {
	out := map[string]*ebpf.Map{}
	for name, spec := range o.Tables {
		m, err := ebpf.NewMap(spec.Copy())
		if err != nil {
			CloseTables(out)
			return nil, fmt.Errorf("make table %s: %w", quoted(name), err)
		}
		out[name] = m
	}
	return out, nil
}

func openTable(name string, spec *ebpf.MapSpec, dir string) (*ebpf.Map, error) {
	s := spec.Copy()
	if strings.HasPrefix(name, ".") {
		return ebpf.NewMap(s) // read-only; the file has what is in it
	}
	s.Pinning = ebpf.PinByName
	m, err := ebpf.NewMapWithOptions(s, ebpf.MapOptions{PinPath: dir})
	if !errors.Is(err, ebpf.ErrMapIncompatible) {
		return m, err
	}
	if err := os.Remove(filepath.Join(dir, name)); err != nil {
		return nil, err
	}
	return ebpf.NewMapWithOptions(s, ebpf.MapOptions{PinPath: dir})
}

// CloseTables lets go of them; what is pinned stays.
func CloseTables(tables map[string]*ebpf.Map) {
	for _, m := range tables {
		m.Close()
	}
}
