package wanopt

import (
	"container/list"
	"crypto/sha256"
	"sync"
)

// id names a chunk by its content: SHA-256, of which 20 bytes leave no two alike.
type id [20]byte

func idOf(chunk []byte) (n id) {
	sum := sha256.Sum256(chunk)
	copy(n[:], sum[:])
	return n
}

// store is what both ends have seen, as far as this one knows. The least recently used
// makes room.
type store struct {
	most int64

	mu    sync.Mutex
	bytes int64
	order *list.List // of *kept, the last used first
	of    map[id]*list.Element
	epoch id // of the partner's store
}

type kept struct {
	name  id
	chunk []byte
}

func newStore(most int64) *store {
	return &store{most: most, order: list.New(), of: map[id]*list.Element{}}
}

// meet empties the store if the partner has another one than before: it lost what it had.
func (s *store) meet(epoch id) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.epoch != epoch {
		s.epoch, s.bytes = epoch, 0
		s.order.Init()
		clear(s.of)
	}
}

// put keeps a chunk; it reports whether it was there.
func (s *store) put(name id, chunk []byte) (known bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if e, ok := s.of[name]; ok {
		s.order.MoveToFront(e)
		return true
	}
	own := append([]byte(nil), chunk...)
	s.of[name] = s.order.PushFront(&kept{name, own})
	for s.bytes += int64(len(own)); s.bytes > s.most && s.order.Len() > 1; {
		last := s.order.Back()
		k := last.Value.(*kept)
		s.order.Remove(last)
		delete(s.of, k.name)
		s.bytes -= int64(len(k.chunk))
	}
	return false
}

// get gives a chunk; nil: it is not there.
func (s *store) get(name id) []byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	e, ok := s.of[name]
	if !ok {
		return nil
	}
	s.order.MoveToFront(e)
	return e.Value.(*kept).chunk
}
