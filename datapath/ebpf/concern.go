package ebpf

import (
	"encoding/binary"
	"fmt"
	"sync/atomic"
	"unsafe"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// The cells of bpf/lib/concern.h: a byte for each /20 of IPv4 and, by a hash, each /48 of
// IPv6, in the kernel's memory. Packets between addresses whose cells are not set pass the
// program at once. Cells are only ever set, so what has gone costs packets their shortcut
// until the data path is removed, and nothing else.
const (
	cells4, bits4 = 1 << 20, 20
	cells6, bits6 = 1 << 16, 48
)

// concerns are the cells of one data path.
type concerns struct {
	mem      []byte
	complete *uint32
	cells    []byte
	all      [2]bool // all of IPv4, of IPv6
}

// openConcerns has nothing pass until all is set: an older version that ran meanwhile may have
// left entries, and set no cells.
func openConcerns(c *ebpf.Collection) (*concerns, error) {
	page := unix.Getpagesize()
	mem, err := shared(c.Maps["concerns"], (4+cells4+cells6+page-1)/page*page)
	if err != nil {
		return nil, err
	}
	s := &concerns{mem: mem, complete: (*uint32)(unsafe.Pointer(&mem[0])), cells: mem[4 : 4+cells4+cells6]}
	atomic.StoreUint32(s.complete, 0)
	return s, nil
}

func (s *concerns) close() error {
	mem := s.mem
	s.mem, s.cells, s.complete = nil, nil, nil
	return unix.Munmap(mem)
}

// beginIfEmpty has packets that concern nobody pass at once, if no entry stands whose cell may
// not be set; else the round over all entries that begins next does (sweep.go). The programs
// that set cells are on all devices.
func (s *concerns) beginIfEmpty(flows *ebpf.Map) error {
	if s.isDone() {
		return nil
	}
	first, err := flows.NextKeyBytes(nil)
	if err != nil {
		return fmt.Errorf("look for flow entries: %w", err)
	}
	if first == nil {
		s.done()
	}
	return nil
}

// done says that the cells of all entries, rules and addresses are set.
func (s *concerns) done() { atomic.StoreUint32(s.complete, 1) }

func (s *concerns) isDone() bool { return atomic.LoadUint32(s.complete) == 1 }

// addRules sets the cells of what a table's rules are about, the more specific side of each: a
// packet that a rule selects has an address in it. What a table does with all others concerns
// all packets, unless it leaves them alone or to another table.
func (s *concerns) addRules(t *wantedTable) {
	if t.miss.Action != actTable && (t.miss.Action != actExit || t.miss.Arg != 0) {
		s.addAll(0)
	}
	for i := range t.rules {
		r := &t.rules[i]
		addr, n := r.Dst, int(r.DstLen)
		if r.SrcLen > r.DstLen {
			addr, n = r.Src, int(r.SrcLen)
		}
		if n == 0 {
			s.addAll(r.Family)
			continue
		}
		s.add(r.Family, addr, n)
	}
}

// addAll sets the cells of a family; 0: of both.
func (s *concerns) addAll(family uint8) {
	if family != 6 && !s.all[0] {
		setCells(s.cells[:cells4])
		s.all[0] = true
	}
	if family != 4 && !s.all[1] {
		setCells(s.cells[cells4:])
		s.all[1] = true
	}
}

// add sets the cells of a prefix in the form of rules.
func (s *concerns) add(family uint8, addr [2]uint64, n int) {
	switch {
	case family == 4:
		first, count := addr[0]>>(64-bits4), 1<<max(bits4-n, 0)
		setCells(s.cells[first : int(first)+count])
	case n < bits6:
		s.addAll(6)
	default:
		s.cells[cell6(addr[0])] = 1
	}
}

// cell6 is the cell of an IPv6 address that begins so.
func cell6(first uint64) int {
	var b [8]byte
	binary.BigEndian.PutUint64(b[:], first)
	h := binary.LittleEndian.Uint32(b[:]) ^ uint32(binary.LittleEndian.Uint16(b[4:]))*0x9e3779b1
	return cells4 + int(h*0x85ebca6b>>16)
}

// cellOf is the cell of an address.
func cellOf(a addr16) int {
	at := narrow(a)
	first := ruleAddress(at)[0]
	if at.Is4() {
		return int(first >> (64 - bits4))
	}
	return cell6(first)
}

func (s *concerns) addAddress(a addr16) { s.cells[cellOf(a)] = 1 }

// addEntry does what the program does for an entry at the edge.
func (s *concerns) addEntry(k *flowKey) {
	if s.cells[cellOf(k.Dst)] == 0 {
		s.addAddress(k.Src)
	}
}

// A program of its own runs beside: each cell is one byte, which nobody sets to anything else.
func setCells(cells []byte) {
	for i := range cells {
		cells[i] = 1
	}
}
