package ebpf

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/datapath/ebpf/classifier"
)

// tableSpace is where the tables are in the kernel. A table has a row, which
// says where its rules are: small tables are runs of the rules array, large ones
// forests, maps of their own. A table that changes gets a new slot first; then
// one word of its row is written, and packets go to the new one. The old slot
// is given up when no packet can be on its way there. All of it can be read back
// from the rows, so a process that dies in between leaves nothing but slots to
// which no row points. The map of forests is never read: older kernels wait for
// all programs at every look-up in it.
type tableSpace struct {
	ids     *kmap[uint32, uint32] // table → row
	rows    []tableValue          // the kernel's memory
	cells   []classifier.Cell     // the rules array, likewise
	forests *ebpf.Map
	inner   *ebpf.MapSpec

	placed  map[onpath.TableID]placed
	runs    ruleSpace
	rowUsed []bool
	nextRow uint32
	taken   map[uint32]uint32 // slots of forests, and their cells
	// cellsTaken is the sum of these, nextPlace the last that was given.
	cellsTaken int
	nextSlot   uint32
	retired    []retired
	writes     int // of tables that differ
}

// placed is a table in the kernel.
type placed struct {
	row   uint32
	where uint64
	sum   sum
}

// sum identifies the contents of a table.
type sum [sha256.Size]byte

// retired is what packets on their way may still read.
type retired struct {
	where uint64
	row   uint32 // also free then; 0: not
	at    time.Time
}

// grace is far longer than any packet spends in a program.
const grace = 100 * time.Millisecond

func openTables(c *ebpf.Collection, spec *ebpf.CollectionSpec) (*tableSpace, error) {
	s := &tableSpace{forests: c.Maps["forests"], inner: spec.Maps["forests"].InnerMap,
		placed: map[onpath.TableID]placed{}, taken: map[uint32]uint32{}, rowUsed: make([]bool, maxTables)}
	var err error
	if s.ids, err = openMap[uint32, uint32](c, "table_ids"); err != nil {
		return nil, err
	}
	rows, err := shared(c.Maps["tables"], maxTables*int(unsafe.Sizeof(tableValue{})))
	if err != nil {
		return nil, err
	}
	s.rows = unsafe.Slice((*tableValue)(unsafe.Pointer(&rows[0])), maxTables)
	cells, err := shared(c.Maps["rules"], maxRules*int(unsafe.Sizeof(classifier.Cell{})))
	if err != nil {
		return nil, errors.Join(err, unix.Munmap(rows))
	}
	s.cells = unsafe.Slice((*classifier.Cell)(unsafe.Pointer(&cells[0])), maxRules)
	if err := s.recover(); err != nil {
		return nil, errors.Join(err, s.close())
	}
	return s, nil
}

// shared is a map's memory.
func shared(m *ebpf.Map, size int) ([]byte, error) {
	mem, err := unix.Mmap(m.FD(), 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("share the memory of map %s: %w", m, err)
	}
	return mem, nil
}

func (s *tableSpace) close() error {
	rows := unsafe.Slice((*byte)(unsafe.Pointer(&s.rows[0])), len(s.rows)*int(unsafe.Sizeof(tableValue{})))
	cells := unsafe.Slice((*byte)(unsafe.Pointer(&s.cells[0])), len(s.cells)*int(unsafe.Sizeof(classifier.Cell{})))
	s.rows, s.cells = nil, nil
	return errors.Join(unix.Munmap(rows), unix.Munmap(cells))
}

// recover reads what an earlier process left.
func (s *tableSpace) recover() error {
	s.rowUsed[0] = true
	for id, row := range s.ids.now {
		if row >= maxTables {
			return fmt.Errorf("table %d has row %d of %d", id, row, maxTables)
		}
		s.rowUsed[row] = true
		p := placed{row: row, where: s.rows[row].Where, sum: s.rows[row].Sum}
		switch {
		case p.where&whereUsed == 0 || s.rows[row].ID != id: // was being made
			p.where = 0
		case p.where&whereForest != 0:
			s.take(uint32(p.where), s.rows[uint32(p.where)].Planted)
		default:
			s.runs.mark(runOf(p.where))
		}
		s.placed[onpath.TableID(id)] = p
	}
	return s.dropOrphans()
}

// dropOrphans frees forests to which no row points.
func (s *tableSpace) dropOrphans() error {
	var orphans []uint32
	for slot := range uint32(maxForests) {
		if _, ok := s.taken[slot]; !ok && s.rows[slot].Planted != 0 {
			orphans = append(orphans, slot)
		}
	}
	return s.fell(orphans)
}

// has reports whether a table stands in the kernel with these contents.
func (s *tableSpace) has(id onpath.TableID, is sum) bool {
	p, ok := s.placed[id]
	return ok && p.where&whereUsed != 0 && p.sum == is
}

// put writes a table to a new slot if it differs, and switches. forest is nil
// for small tables.
func (s *tableSpace) put(id onpath.TableID, t *wantedTable) error {
	if s.has(id, t.sum) {
		return nil
	}
	where, err := s.write(id, t)
	if err != nil {
		return err
	}
	p, had := s.placed[id]
	if !had {
		if p.row, err = s.newRow(id); err != nil {
			return err
		}
	}
	s.writes++
	old := p.where
	r := &s.rows[p.row]
	r.ID, r.Sum = uint32(id), sum{}
	atomic.StoreUint64(&r.Where, where)
	r.Sum = t.sum
	t.planted = false
	s.placed[id] = placed{p.row, where, t.sum}
	if old&whereUsed != 0 {
		s.retired = append(s.retired, retired{where: old, at: time.Now()})
	}
	if !had {
		return s.ids.put(uint32(id), p.row)
	}
	return nil
}

func (s *tableSpace) newRow(id onpath.TableID) (uint32, error) {
	for range 2 {
		for range maxTables {
			if s.nextRow = (s.nextRow + 1) % maxTables; !s.rowUsed[s.nextRow] {
				s.rowUsed[s.nextRow] = true
				return s.nextRow, nil
			}
		}
		if err := s.reclaim(); err != nil {
			return 0, err
		}
	}
	e := onpath.Errorf(onpath.CodeNoCapacity, "the data path has room for %d tables, and table %d is one more", maxTables-1, id)
	e.Remedy = "run fewer chains or instances on this node"
	return 0, e
}

// write puts the contents of a table to a free slot.
func (s *tableSpace) write(id onpath.TableID, t *wantedTable) (where uint64, err error) {
	if t.large() {
		if !t.planted {
			if err := s.plant(map[onpath.TableID]*wantedTable{id: t}); err != nil {
				return 0, err
			}
		}
		return whereUsed | whereForest | uint64(t.slot), nil
	}
	base, err := s.takeRun(uint32(len(t.cells)))
	if err != nil {
		return 0, err
	}
	copy(s.cells[base:], t.cells)
	return whereUsed | uint64(len(t.cells)-1)<<whereCount | uint64(base), nil
}

func (s *tableSpace) takeRun(n uint32) (uint32, error) {
	base, err := s.runs.take(n)
	if err != nil && len(s.retired) > 0 {
		if err := s.reclaim(); err != nil {
			return 0, err
		}
		base, err = s.runs.take(n)
	}
	return base, err
}

// retain gives up all tables that are not wanted.
func (s *tableSpace) retain(want map[onpath.TableID]*wantedTable) error {
	for id, p := range s.placed {
		if _, ok := want[id]; ok {
			continue
		}
		s.writes++
		atomic.StoreUint64(&s.rows[p.row].Where, 0)
		if err := s.ids.delete(uint32(id)); err != nil {
			return err
		}
		delete(s.placed, id)
		s.retired = append(s.retired, retired{p.where, p.row, time.Now()})
	}
	return nil
}

// settle gives back what was retired: at once if forests are among it, which are
// large, else what is old enough.
func (s *tableSpace) settle() error {
	if slices.ContainsFunc(s.retired, func(r retired) bool { return r.where&whereForest != 0 }) {
		return s.reclaim()
	}
	young := slices.IndexFunc(s.retired, func(r retired) bool { return time.Since(r.at) < grace })
	if young < 0 {
		young = len(s.retired)
	}
	return s.free(young)
}

// reclaim waits until no packet can be where something was retired, and frees
// all of it.
func (s *tableSpace) reclaim() error {
	if n := len(s.retired); n > 0 && time.Since(s.retired[n-1].at) < grace {
		// The kernel's own grace period; where it is not to be had, time is.
		const global = 1 // MEMBARRIER_CMD_GLOBAL
		if _, _, e := unix.Syscall(unix.SYS_MEMBARRIER, global, 0, 0); e != 0 {
			time.Sleep(grace)
		}
	}
	return s.free(len(s.retired))
}

// free frees the first n of what was retired.
func (s *tableSpace) free(n int) error {
	gone := map[run]bool{}
	var slots []uint32
	for _, r := range s.retired[:n] {
		switch {
		case r.where&whereUsed == 0:
		case r.where&whereForest != 0:
			slots = append(slots, uint32(r.where))
		default:
			gone[runOf(r.where)] = true
		}
		if r.row != 0 {
			s.rowUsed[r.row] = false
		}
	}
	s.runs.free(gone)
	s.retired = slices.Delete(s.retired, 0, n)
	return s.fell(slots)
}

// runOf is the run of a small table: its miss and its rules.
func runOf(where uint64) run {
	return run{uint32(where), uint32(where>>whereCount)&0xffff + 1}
}
