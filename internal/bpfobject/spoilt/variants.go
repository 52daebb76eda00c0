// Package spoilt spoils object files of ebpf functions, for tests of what reads,
// checks and runs them.
package spoilt

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"math/rand/v2"
)

// Variants calls do with n spoilt copies of an object file, each in another way:
// bits and words of its code, its relocations, its types and table declarations and
// of the file's own structure are changed, and pieces are cut off, swapped and
// repeated. The same seed makes the same variants.
func Variants(code []byte, n int, seed uint64, do func(i int, variant []byte)) {
	r := rand.New(rand.NewPCG(seed, uint64(len(code))))
	parts := sections(code)
	for i := range n {
		v := bytes.Clone(code)
		for range 1 + r.IntN(3) {
			v = spoil(r, v, parts)
		}
		do(i, v)
	}
}

// part is where a section lies in the file.
type part struct{ from, to int }

func sections(code []byte) (out []part) {
	f, err := elf.NewFile(bytes.NewReader(code))
	if err != nil {
		return []part{{0, len(code)}}
	}
	for _, s := range f.Sections {
		if s.Type != elf.SHT_NOBITS && s.Size > 0 && int(s.Offset+s.Size) <= len(code) {
			out = append(out, part{int(s.Offset), int(s.Offset + s.Size)})
		}
	}
	return append(out, part{0, min(64, len(code))})
}

// interesting are numbers at which arithmetic goes wrong.
var interesting = []uint32{0, 1, 0x7f, 0xff, 0x7fff, 0xffff, 0x10000, 0x7fffffff, 0x80000000, 0xffffffff}

func spoil(r *rand.Rand, v []byte, parts []part) []byte {
	p := parts[r.IntN(len(parts))]
	if p.to > len(v) || p.to-p.from < 8 {
		p = part{0, len(v)}
	}
	if len(v) < 16 {
		return v
	}
	at := p.from + r.IntN(p.to-p.from-7)
	switch r.IntN(9) {
	case 0:
		v[at] ^= 1 << r.IntN(8)
	case 1:
		v[at] = byte(r.Uint32())
	case 2:
		binary.LittleEndian.PutUint32(v[at&^3:], interesting[r.IntN(len(interesting))])
	case 3:
		binary.LittleEndian.PutUint64(v[at&^7:], r.Uint64())
	case 4: // an instruction, perhaps, with another operation
		v[at&^7] = byte(r.Uint32())
	case 5: // a call of another helper, perhaps
		binary.LittleEndian.PutUint32(v[min(at&^7+4, len(v)-4):], uint32(r.IntN(230)))
	case 6:
		return v[:len(v)-r.IntN(len(v)/2)]
	case 7:
		from := p.from + r.IntN(p.to-p.from-7)
		copy(v[at:at+8], bytes.Clone(v[from:from+8]))
	case 8:
		n := min(8*(1+r.IntN(4)), p.to-at)
		clear(v[at : at+n])
	}
	return v
}
