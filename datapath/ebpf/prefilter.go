package ebpf

import (
	"encoding/binary"
	"fmt"
	"sync/atomic"
	"unsafe"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// The bytes of the prefilter in bpf/lib/prefilter.h: one for each /20 of IPv4 and, by a hash, one
// for each /48 of IPv6, in the kernel's memory. Bytes are set and never cleared: after a chain
// is deleted, packets with its addresses take the longer way through the program until the
// data path is removed.
const (
	cells4, bits4 = 1 << 20, 20
	cells6, bits6 = 1 << 16, 48
)

// prefilter is that of one data path.
type prefilter struct {
	mem      []byte
	complete *uint32
	cells    []byte
	own      []byte
	all      [2]bool // all of IPv4, of IPv6
}

// openPrefilter turns the prefilter off until all bytes are set: an older version may have run
// meanwhile, and left entries whose bytes it did not set.
func openPrefilter(c *ebpf.Collection) (*prefilter, error) {
	page := unix.Getpagesize()
	const cells = cells4 + cells6
	mem, err := shared(c.Maps["prefilters"], (4+2*cells+page-1)/page*page)
	if err != nil {
		return nil, err
	}
	s := &prefilter{mem: mem, complete: (*uint32)(unsafe.Pointer(&mem[0])), cells: mem[4 : 4+cells], own: mem[4+cells : 4+2*cells]}
	atomic.StoreUint32(s.complete, 0)
	return s, nil
}

func (s *prefilter) close() error {
	mem := s.mem
	s.mem, s.cells, s.own, s.complete = nil, nil, nil, nil
	return unix.Munmap(mem)
}

// beginIfEmpty turns the prefilter on if there are no flow entries; else the next round over
// all entries does, which sets their bytes (sweep.go). Callers have put the programs of this
// version, which set bytes, on all devices.
func (s *prefilter) beginIfEmpty(flows *ebpf.Map) error {
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

// done turns the prefilter on: the bytes of all entries, rules and addresses are set.
func (s *prefilter) done() { atomic.StoreUint32(s.complete, 1) }

func (s *prefilter) isDone() bool { return atomic.LoadUint32(s.complete) == 1 }

// addRules sets, for each rule of a table, the bytes of its more specific prefix: a packet that
// the rule selects has an address in it. Where packets that no rule selects do not simply exit
// or go on to another table, all bytes are set.
func (s *prefilter) addRules(t *wantedTable) {
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
func (s *prefilter) addAll(family uint8) {
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
func (s *prefilter) add(family uint8, addr [2]uint64, n int) {
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

// addOwn sets the byte of one of the node's own addresses.
func (s *prefilter) addOwn(a addr16) { s.own[cellOf(a)] = 1 }

func (s *prefilter) addAddress(a addr16) { s.cells[cellOf(a)] = 1 }

// addEntry sets the byte of an entry at the edge as the program does (prefilter_entry).
func (s *prefilter) addEntry(k *flowKey) {
	if s.cells[cellOf(k.Dst)] == 0 {
		s.addAddress(k.Src)
	}
}

// setCells needs no lock against the program: both set bytes to 1, and to nothing else.
func setCells(cells []byte) {
	for i := range cells {
		cells[i] = 1
	}
}
