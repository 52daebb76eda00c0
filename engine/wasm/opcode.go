package wasm

import "fmt"

// The opcodes that metering knows by name (core specification §5.4); those of the
// prefix 0xfc stand above 0xfc00.
const (
	opUnreachable = 0x00
	opBlock       = 0x02
	opLoop        = 0x03
	opIf          = 0x04
	opEnd         = 0x0b
	opLocalGet    = 0x20
	opLocalTee    = 0x22
	opGlobalGet   = 0x23
	opGlobalSet   = 0x24
	opMemoryGrow  = 0x40
	opI32Const    = 0x41
	opI32LtS      = 0x48
	opI32Sub      = 0x6b
	opI32ShrU     = 0x76
	opMemoryInit  = 0xfc08
	opMemoryCopy  = 0xfc0a
	opMemoryFill  = 0xfc0b

	typeI32    = 0x7f
	blockEmpty = 0x40
)

// instruction passes over one instruction and gives its opcode. What needs features
// that are not offered (SIMD, threads, tail calls, exceptions, growing tables) fails.
func (r *reader) instruction() int {
	op := int(r.byte())
	switch {
	case op <= 0x01, op == 0x05, op == opEnd, op == 0x0f, op == 0x1a, op == 0x1b, op == 0xd1, op >= 0x45 && op <= 0xc4:
	case op >= opBlock && op <= opIf:
		r.blockType()
	case op == 0x0c, op == 0x0d, op == 0x10, op >= opLocalGet && op <= 0x26, op == 0xd2:
		r.u32()
	case op == 0x0e:
		for range r.count() {
			r.u32()
		}
		r.u32()
	case op == 0x11, op >= 0x28 && op <= 0x3e:
		r.u32()
		r.u32()
	case op == 0x1c:
		r.types()
	case op == 0x3f, op == opMemoryGrow:
		r.byte()
	case op == 0xd0:
		r.reference()
	case op == opI32Const:
		r.skipLEB(5)
	case op == 0x42:
		r.skipLEB(10)
	case op == 0x43:
		r.bytes(4)
	case op == 0x44:
		r.bytes(8)
	case op == 0xfc:
		return r.prefixed()
	default:
		r.fail(fmt.Errorf("instruction %#x is not offered", op))
	}
	return op
}

func (r *reader) prefixed() int {
	op := r.u32()
	switch {
	case op <= 7:
	case op == 8:
		r.u32()
		r.byte()
	case op == 9, op == 13, op == 16:
		r.u32()
	case op == 10:
		r.bytes(2)
	case op == 11:
		r.byte()
	case op == 12, op == 14:
		r.u32()
		r.u32()
	default:
		r.fail(fmt.Errorf("instruction 0xfc %#x is not offered", op))
		return 0
	}
	return 0xfc00 + int(op)
}
