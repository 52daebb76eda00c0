package ebpf

import (
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
)

// A layout is where the fields of a key or value are, by name, as the kernel knows
// it of a map or the compiler of an object. So what an older version left can be
// read whatever it added, moved or left out.
type layout struct {
	name   string
	size   uint32 // bytes
	fields map[string]span
}

// span is the slot of a field, in bits.
type span struct{ at, bits uint32 }

// layoutOf is the layout of a type. A plain integer has one field without a name.
func layoutOf(t btf.Type) (layout, bool) {
	t = btf.UnderlyingType(t)
	size, err := btf.Sizeof(t)
	if t == nil || err != nil {
		return layout{}, false
	}
	l := layout{name: t.TypeName(), size: uint32(size), fields: map[string]span{}}
	if _, ok := t.(*btf.Int); ok {
		l.name = ""
	}
	return l, l.add("", t, 0)
}

func (l *layout) add(name string, t btf.Type, at uint32) bool {
	t = btf.UnderlyingType(t)
	s, ok := t.(*btf.Struct)
	if !ok {
		if a, isArray := t.(*btf.Array); isArray {
			if _, ok := btf.UnderlyingType(a.Type).(*btf.Struct); ok {
				return l.addEach(name, a, at)
			}
		}
		size, err := btf.Sizeof(t)
		l.fields[name] = span{at, uint32(size) * 8}
		return err == nil
	}
	for _, m := range s.Members {
		here := at + uint32(m.Offset)
		if m.BitfieldSize != 0 {
			l.fields[name+"."+m.Name] = span{here, uint32(m.BitfieldSize)}
		} else if !l.add(name+"."+m.Name, m.Type, here) {
			return false
		}
	}
	return true
}

func (l *layout) addEach(name string, a *btf.Array, at uint32) bool {
	size, err := btf.Sizeof(a.Type)
	if err != nil {
		return false
	}
	for i := range a.Nelems {
		if !l.add(fmt.Sprintf("%s[%d]", name, i), a.Type, at+i*uint32(size)*8) {
			return false
		}
	}
	return true
}

func (l layout) equals(other layout) bool {
	if l.size != other.size || len(l.fields) != len(other.fields) {
		return false
	}
	for name, s := range l.fields {
		if other.fields[name] != s {
			return false
		}
	}
	return true
}

// convert writes a value of one layout in another: fields that both have. What has
// grown is filled up with zeros, in the order of bytes of this machine, which is
// little-endian as all that the programs read.
func convert(value []byte, from, to layout) []byte {
	out := make([]byte, to.size)
	for name, d := range to.fields {
		s, ok := from.fields[name]
		if !ok {
			continue
		}
		bits := min(s.bits, d.bits)
		if (s.at|d.at|bits)&7 == 0 {
			copy(out[d.at/8:(d.at+bits)/8], value[s.at/8:])
			continue
		}
		put(out, d.at, take(value, s.at, bits))
	}
	return out
}

// take reads up to 32 bits, put writes them into zeros.
func take(b []byte, at, bits uint32) uint64 {
	var word [8]byte
	copy(word[:], b[at/8:])
	return binary.LittleEndian.Uint64(word[:]) >> (at & 7) & (1<<bits - 1)
}

func put(b []byte, at uint32, v uint64) {
	var word [8]byte
	binary.LittleEndian.PutUint64(word[:], v<<(at&7))
	for i := range word {
		if n := int(at/8) + i; n < len(b) {
			b[n] |= word[i]
		}
	}
}

// mapLayout are the layouts of a map's key and value.
type mapLayout struct{ key, value layout }

func specLayout(s *ebpf.MapSpec) (mapLayout, bool) {
	if s.Key == nil || s.Value == nil {
		return mapLayout{}, false
	}
	k, known := layoutOf(s.Key)
	v, both := layoutOf(s.Value)
	return mapLayout{k, v}, known && both
}

// pinnedLayout asks the kernel. The types of a map have the names that they have
// in want, or it is not known what they are.
func pinnedLayout(m *ebpf.Map, want mapLayout) (mapLayout, bool) {
	info, err := m.Info()
	if err != nil {
		return mapLayout{}, false
	}
	id, ok := info.BTFID()
	if !ok {
		return mapLayout{}, false
	}
	h, err := btf.NewHandleFromID(id)
	if err != nil {
		return mapLayout{}, false
	}
	defer h.Close()
	spec, err := h.Spec(nil)
	if err != nil {
		return mapLayout{}, false
	}
	key, known := namedLayout(spec, want.key, m.KeySize())
	value, both := namedLayout(spec, want.value, m.ValueSize())
	return mapLayout{key, value}, known && both
}

func namedLayout(spec *btf.Spec, want layout, size uint32) (layout, bool) {
	if want.name == "" {
		return want, want.size == size
	}
	var s *btf.Struct
	if err := spec.TypeByName(want.name, &s); err != nil {
		return layout{}, false
	}
	l, ok := layoutOf(s)
	return l, ok && l.size == size
}

// fill copies what is in one map to another, field by field. Zeros in arrays stay out:
// they are there.
func fill(to, from *ebpf.Map, now, was mapLayout) error {
	var key any // nil: before the first
	for {
		next, err := from.NextKeyBytes(key)
		if err != nil {
			return fmt.Errorf("read what an older version left: %w", err)
		}
		if next == nil {
			return nil
		}
		key = next
		raw, err := from.LookupBytes(next)
		if err != nil {
			return fmt.Errorf("read what an older version left: %w", err)
		}
		if raw == nil || isZero(raw) && isArray(to) {
			continue
		}
		fresh := convert(next, was.key, now.key)
		var value any
		if to.Type() == ebpf.PerCPUArray || to.Type() == ebpf.PerCPUHash {
			value = convertEach(raw, was.value, now.value)
		} else {
			value = convert(raw, was.value, now.value)
		}
		if err := to.Put(fresh, value); err != nil {
			return fmt.Errorf("keep what an older version left: %w", err)
		}
	}
}

// convertEach converts the values of all CPUs, each of which begins at a multiple
// of 8 bytes.
func convertEach(raw []byte, from, to layout) [][]byte {
	var list [][]byte
	for each := range slices.Chunk(raw, int(from.size+7)/8*8) {
		list = append(list, convert(each, from, to))
	}
	return list
}

func isZero(b []byte) bool {
	return !slices.ContainsFunc(b, func(b byte) bool { return b != 0 })
}
