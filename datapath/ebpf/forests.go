package ebpf

import (
	"errors"
	"fmt"
	"runtime"
	"sync"
	"unsafe"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/datapath/ebpf/classifier"
)

// atOnce is how many forests are written or freed at the same time: each makes
// the kernel wait for all programs, and those that wait together wait once.
const atOnce = 64

// prepare compiles the large tables that differ, before anything is touched.
func (s *tableSpace) prepare(want map[onpath.TableID]*wantedTable) error {
	work := make(chan *wantedTable)
	errs := make([]error, runtime.GOMAXPROCS(0))
	var done sync.WaitGroup
	for i := range errs {
		done.Go(func() {
			for t := range work {
				if errs[i] == nil {
					errs[i] = t.compile()
				}
			}
		})
	}
	for id, t := range want {
		if t.large() && t.forest == nil && !s.has(id, t.sum) {
			work <- t
		}
	}
	close(work)
	done.Wait()
	return errors.Join(errs...)
}

// plant makes the maps of large tables that differ, at slots of their own.
// Nothing points there yet. Of several, those for which there is no room beside
// the old ones are left for later, when old ones were given up.
func (s *tableSpace) plant(want map[onpath.TableID]*wantedTable) error {
	var list []*wantedTable
	for id, t := range want {
		if !t.large() || t.planted || s.has(id, t.sum) {
			continue
		}
		if t.forest == nil {
			if err := t.compile(); err != nil {
				return errors.Join(err, s.remove(want))
			}
		}
		slot, err := s.freeSlot(t)
		if err != nil && len(want) > 1 && onpath.CodeOf(err) == onpath.CodeNoCapacity {
			break
		}
		if err != nil {
			return errors.Join(err, s.remove(want))
		}
		s.take(slot, uint32(len(t.forest.Cells)))
		s.rows[slot].Planted = s.taken[slot] // first: the next process shall know
		t.slot, t.planted = slot, true
		list = append(list, t)
	}
	if err := inParallel(list, s.fill); err != nil {
		return errors.Join(err, s.remove(want))
	}
	return nil
}

// remove gives up forests that were planted for nothing.
func (s *tableSpace) remove(want map[onpath.TableID]*wantedTable) error {
	var slots []uint32
	for _, t := range want {
		if t.planted {
			t.planted = false
			slots = append(slots, t.slot)
		}
	}
	return s.fell(slots)
}

// fell frees the slots of forests.
func (s *tableSpace) fell(slots []uint32) error {
	err := inParallel(slots, func(slot uint32) error {
		if err := s.forests.Delete(slot); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			return fmt.Errorf("free a forest: %w", err)
		}
		return nil
	})
	if err != nil {
		return err
	}
	for _, slot := range slots {
		s.rows[slot].Planted = 0
		s.cellsTaken -= int(s.taken[slot])
		delete(s.taken, slot)
	}
	return nil
}

func inParallel[T any](list []T, fn func(T) error) error {
	errs := make([]error, min(len(list), atOnce))
	var done sync.WaitGroup
	for i := range errs {
		done.Go(func() {
			for j := i; j < len(list) && errs[i] == nil; j += atOnce {
				errs[i] = fn(list[j])
			}
		})
	}
	done.Wait()
	return errors.Join(errs...)
}

// fill makes the map of a forest and puts it to its slot.
func (s *tableSpace) fill(t *wantedTable) error {
	spec := s.inner.Copy()
	spec.MaxEntries = uint32(len(t.forest.Cells))
	m, err := ebpf.NewMap(spec)
	if err != nil {
		return fmt.Errorf("make a map for the %d rules of table %d: %w", len(t.rules), t.id, err)
	}
	defer m.Close()
	size := len(t.forest.Cells) * int(unsafe.Sizeof(classifier.Cell{}))
	mem, err := shared(m, size)
	if err != nil {
		return err
	}
	copy(mem, unsafe.Slice((*byte)(unsafe.Pointer(&t.forest.Cells[0])), size))
	if err := unix.Munmap(mem); err != nil {
		return fmt.Errorf("write the rules of table %d: %w", t.id, err)
	}
	t.forest = nil // megabytes, and in the kernel now
	if err := s.forests.Put(t.slot, m); err != nil {
		return fmt.Errorf("write map forests: %w", err)
	}
	return nil
}

// freeSlot finds a slots for a table's forest, if there is memory for it.
func (s *tableSpace) freeSlot(t *wantedTable) (uint32, error) {
	for range 2 {
		if s.cellsTaken+len(t.forest.Cells) <= maxCells {
			for range maxForests {
				if s.nextSlot = (s.nextSlot + 1) % maxForests; s.taken[s.nextSlot] == 0 {
					return s.nextSlot, nil
				}
			}
		}
		if err := s.reclaim(); err != nil {
			return 0, err
		}
	}
	var e *onpath.Error
	if len(s.taken) == maxForests {
		e = onpath.Errorf(onpath.CodeNoCapacity, "the data path has room for %d tables with more than %d rules", maxForests, smallTable)
		e.Remedy = "run fewer instances of chains with long select and address lists on this node"
		return 0, e
	}
	e = onpath.Errorf(onpath.CodeNoCapacity, "the rules of all tables need more than %d MiB; table %d (%s) with %d is one too many",
		maxCells*64>>20, t.id, t.greatest(), len(t.rules))
	e.Remedy = "use fewer or wider prefixes and port ranges in the chains of this node"
	return 0, e
}

// take notes that a slot has a forest of so many cells.
func (s *tableSpace) take(slot, cells uint32) {
	s.taken[slot] = cells
	s.cellsTaken += int(cells)
}
