package wasm

import (
	"errors"
	"fmt"
	"unicode/utf8"
)

var errShort = errors.New("it ends in the middle")

// reader reads WebAssembly's binary format (core specification §5). The first error
// stays; what is read after it is zero.
type reader struct {
	b   []byte
	at  int
	err error
}

func (r *reader) fail(err error) {
	if r.err == nil {
		r.err = err
		r.at = len(r.b)
	}
}

func (r *reader) more() bool { return r.err == nil && r.at < len(r.b) }

func (r *reader) byte() byte {
	if r.at >= len(r.b) {
		r.fail(errShort)
		return 0
	}
	r.at++
	return r.b[r.at-1]
}

func (r *reader) bytes(n uint32) []byte {
	if uint64(n) > uint64(len(r.b)-r.at) {
		r.fail(errShort)
		return nil
	}
	r.at += int(n)
	return r.b[r.at-int(n) : r.at]
}

// u32 reads an unsigned LEB128 number.
func (r *reader) u32() uint32 {
	var v uint64
	for shift := 0; shift < 35; shift += 7 {
		c := r.byte()
		v |= uint64(c&0x7f) << shift
		if c&0x80 == 0 {
			if v > 1<<32-1 {
				r.fail(fmt.Errorf("a number at byte %d is above 32 bits", r.at))
				return 0
			}
			return uint32(v)
		}
	}
	r.fail(fmt.Errorf("a number at byte %d is too long", r.at))
	return 0
}

// skipLEB passes over a LEB128 number of up to most bytes.
func (r *reader) skipLEB(most int) {
	for range most {
		if r.byte()&0x80 == 0 {
			return
		}
	}
	r.fail(fmt.Errorf("a number at byte %d is too long", r.at))
}

// count reads the length of a vector whose elements take at least a byte each.
func (r *reader) count() int {
	n := r.u32()
	if uint64(n) > uint64(len(r.b)-r.at) {
		r.fail(errShort)
		return 0
	}
	return int(n)
}

func (r *reader) name() string {
	b := r.bytes(r.u32())
	if !utf8.Valid(b) {
		r.fail(fmt.Errorf("a name at byte %d is not UTF-8", r.at))
		return ""
	}
	return string(b)
}

// valueType reads a type that is one byte; proposals have longer ones.
func (r *reader) valueType() {
	if c := r.byte(); !isValueType(c) {
		r.fail(fmt.Errorf("type %#x is not offered", c))
	}
}

func isValueType(c byte) bool { return c >= 0x7c && c <= typeI32 || isReference(c) }

// reference reads the type of a table or of what stands in it.
func (r *reader) reference() {
	if c := r.byte(); !isReference(c) {
		r.fail(fmt.Errorf("type %#x of a table is not offered", c))
	}
}

func isReference(c byte) bool { return c == 0x70 || c == 0x6f }

// types reads a list of types, and says how many.
func (r *reader) types() uint32 {
	n := r.count()
	for range n {
		r.valueType()
	}
	return uint32(n)
}

// blockType reads that of a block: none, a value's, or the number of a function's.
func (r *reader) blockType() {
	if r.more() && (r.b[r.at] == blockEmpty || isValueType(r.b[r.at])) {
		r.byte()
		return
	}
	r.skipLEB(5)
	if r.err == nil && r.b[r.at-1]&0x40 != 0 {
		r.fail(fmt.Errorf("the type of a block at byte %d is not offered", r.at))
	}
}

// expression passes over one that is constant.
func (r *reader) expression() {
	for r.more() && r.instruction() != opEnd {
	}
}

func appendU32(b []byte, v uint32) []byte {
	for v >= 0x80 {
		b = append(b, byte(v)|0x80)
		v >>= 7
	}
	return append(b, byte(v))
}

// appendS32 writes a signed number, which constants are.
func appendS32(b []byte, v int32) []byte {
	for {
		c := byte(v & 0x7f)
		v >>= 7
		if v == 0 && c&0x40 == 0 || v == -1 && c&0x40 != 0 {
			return append(b, c)
		}
		b = append(b, c|0x80)
	}
}
