package classifier

import "unsafe"

// Limits, shared with bpf/abi.h.
const (
	MaxTuples = 24 // hash tables read for one packet
	MaxDepth  = 8  // nodes read in one of them
	MaxLeaf   = 8  // rules read behind them
)

// CopiesPerRule bounds the average number of leaves of a tuple that hold a rule
// of it; a few thousand more are free, for small sets.
const CopiesPerRule = 4

// Always is a number of plain rules that is never refused, whatever they are:
// each tuple holds at least a leaf of what is left.
const Always = 160

// Flags of a rule.
const (
	Reverse  uint8 = 1 // packets run against the chain's from/to
	SrcPorts uint8 = 2 // the source port must lie in the range
	DstPorts uint8 = 4
)

// Cell is the unit of a forest: one cache line that holds a rule, a tuple, eight
// slots or a node. Integers are in host order.
type Cell [16]uint32

// Rule is a plain rule: one prefix a side, one protocol, one range a port.
// struct rule in bpf/abi.h.
type Rule struct {
	Src, Dst              [2]uint64 // IPv4: the upper half of the first word
	SPortFirst, SPortLast uint16
	DPortFirst, DPortLast uint16
	Order                 uint32 // place in the table: the smallest that matches decides
	Arg                   uint32
	Path                  uint32
	PathSlot              uint16
	SrcLen, DstLen        uint8
	Family                uint8 // 0: any, and then no prefixes
	Proto                 uint8 // 0: any
	Flags                 uint8
	Action                uint8
	Pad                   uint32
}

// Cell is the rule as it stands in a map.
func (r *Rule) Cell() Cell { return *(*Cell)(unsafe.Pointer(r)) }

// RuleOf reads a rule that stands in a map.
func RuleOf(c *Cell) *Rule { return (*Rule)(unsafe.Pointer(c)) }

// Place of the fields of a tuple's cell (struct tuple in bpf/abi.h).
const (
	tupleMasks = 0 // 4 words of the source's, 4 of the destination's
	tupleBase  = 8 // first cell of its slots
	tupleSlots = 9 // number of slots, less one
	tupleBest  = 10
	tupleSeed  = 11
)

// Place of the fields of a node's cell (struct node_cell): which field it cuts,
// the last value of each child but the last, and the children.
const (
	nodeField = 0
	nodeKeys  = 1
	nodeKids  = 8
	fanout    = 8
)

// A reference leads from a slot or a node on: 0 to nothing, with leafBit set to
// a run of rules, else to a node.
const (
	leafBit   = 1 << 31
	leafShift = 27
	leafCell  = 1<<leafShift - 1
)

func leafRef(cell uint32, count int) uint32 {
	return leafBit | uint32(count-1)<<leafShift | cell
}

// The first cells of a forest.
const (
	rootCell  = 0 // first tuple and number of tuples of each view
	missCell  = 1 // the table's miss, as a rule
	firstCell = 2
)

// Version changes when the same rules become other cells.
const Version = "forest 2"

// View says what of a packet can be read.
type View int

// The views, in the order of the root cell; IPv6 packets begin at Views6.
const (
	ViewAll      View = 0
	ViewNoPorts  View = 1
	ViewStrict   View = 2 // of those without ports: rules of strict paths only
	Views6       View = 3
	ViewNoProto6 View = 6
	ViewStrict6  View = 7 // likewise without protocol
)

// The fields of a box: words of the addresses, ports, protocol.
const (
	fieldSrc   = 0
	fieldDst   = 4
	fieldSPort = 8
	fieldDPort = 9
	fieldProto = 10
	fields     = 11
)

func hasPorts(proto uint32) bool {
	return proto == 6 || proto == 17 || proto == 132 || proto == 136
}

func mix(h, v uint64) uint64 {
	h = (h ^ v) * 0x9e3779b97f4a7c15
	return h ^ h>>32
}

// hash of the masked address words, in the programs' way: the lower half chooses
// the slot, the upper half is the tag.
func hash(words, masks *[8]uint32, six bool, seed uint32) uint64 {
	pair := func(i, j int) uint64 {
		return uint64(words[i]&masks[i])<<32 | uint64(words[j]&masks[j])
	}
	if !six {
		return mix(mix(uint64(seed), pair(0, 4)), 1)
	}
	h := mix(uint64(seed), pair(0, 1))
	h = mix(h, pair(2, 3))
	h = mix(h, pair(4, 5))
	return mix(mix(h, pair(6, 7)), 1)
}

func tagOf(h uint64) uint32 { return uint32(h>>32) | 1 }

func (r *Rule) words() [8]uint32 {
	return [8]uint32{
		uint32(r.Src[0] >> 32), uint32(r.Src[0]), uint32(r.Src[1] >> 32), uint32(r.Src[1]),
		uint32(r.Dst[0] >> 32), uint32(r.Dst[0]), uint32(r.Dst[1] >> 32), uint32(r.Dst[1]),
	}
}

// masksOf are the words of the masks of two prefix lengths.
func masksOf(src, dst int) (m [8]uint32) {
	for i := range 4 {
		m[i] = maskWord(src - 32*i)
		m[4+i] = maskWord(dst - 32*i)
	}
	return m
}

func maskWord(bits int) uint32 {
	switch {
	case bits <= 0:
		return 0
	case bits >= 32:
		return ^uint32(0)
	}
	return ^uint32(0) << (32 - bits)
}
