// Package mem is a store in memory, for tests and simulations. It is a complete
// implementation: compare-and-write, resumable watches and compaction included.
package mem

import (
	"context"
	"sync"
	"time"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/store"
)

// Options of a store; zero values are usable.
type Options struct {
	// Clock stamps Created; default time.Now.
	Clock onpath.Clock
	// Keep is how many changes stay for watchers to resume from; a watcher
	// that falls further behind is closed. Default 10000.
	Keep int
}

type entry struct {
	data    []byte
	version int64
}

type change struct {
	revision int64
	key      onpath.Key
	data     []byte // nil: deleted
}

// Store is an onpath.Store in memory. It is safe for concurrent use.
type Store struct {
	clock onpath.Clock
	keep  int

	mu        sync.Mutex
	moved     chan struct{} // closed and renewed at every change
	revision  int64
	objects   map[onpath.Key]entry
	log       []change // the last changes, oldest first
	compacted int64    // changes up to here are gone from log
	sequences map[string]uint64
	closed    bool
}

// New makes an empty store.
func New(o Options) *Store {
	if o.Clock == nil {
		o.Clock = time.Now
	}
	if o.Keep == 0 {
		o.Keep = 10000
	}
	return &Store{
		clock: o.Clock, keep: o.Keep, revision: 1,
		moved:     make(chan struct{}),
		objects:   map[onpath.Key]entry{},
		sequences: map[string]uint64{},
	}
}

// Get implements onpath.Store.
func (s *Store) Get(ctx context.Context, k onpath.Key) (onpath.Object, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	s.mu.Lock()
	e, ok := s.objects[k]
	s.mu.Unlock()
	if !ok {
		return nil, store.NotFound(k)
	}
	return store.Decode(e.data, e.version)
}

// List implements onpath.Store.
func (s *Store) List(ctx context.Context, kind onpath.Kind, tenant string) ([]onpath.Object, int64, error) {
	if err := ctx.Err(); err != nil {
		return nil, 0, err
	}
	s.mu.Lock()
	revision := s.revision
	var found []entry
	for k, e := range s.objects {
		if k.Kind == kind && (tenant == "" || k.Tenant == tenant) {
			found = append(found, e)
		}
	}
	s.mu.Unlock()
	list := make([]onpath.Object, 0, len(found))
	for _, e := range found {
		o, err := store.Decode(e.data, e.version)
		if err != nil {
			return nil, 0, err
		}
		list = append(list, o)
	}
	store.Sort(list)
	return list, revision, nil
}

// Write implements onpath.Store.
func (s *Store) Write(ctx context.Context, changes []onpath.Change) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := store.Check(changes); err != nil || len(changes) == 0 {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return onpath.Errorf(onpath.CodeUnavailable, "the store is closed")
	}
	datas := make([][]byte, len(changes))
	for i, c := range changes {
		data, err := s.prepare(c)
		if err != nil {
			return err
		}
		datas[i] = data
	}
	s.revision++
	for i, c := range changes {
		s.commit(c, datas[i])
	}
	if n := len(s.log) - s.keep; n > 0 {
		s.compact(s.log[n-1].revision)
	}
	close(s.moved)
	s.moved = make(chan struct{})
	return nil
}

// prepare checks one change and encodes its object. Needs s.mu.
func (s *Store) prepare(c onpath.Change) ([]byte, error) {
	have, exists := s.objects[c.Key]
	if c.Version != onpath.AnyVersion && c.Version != have.version {
		return nil, store.Conflict(c.Key, c.Version, have.version)
	}
	if c.Object == nil {
		return nil, nil
	}
	var prev onpath.Object
	if exists {
		var err error
		if prev, err = store.Decode(have.data, have.version); err != nil {
			return nil, err
		}
	}
	store.Stamp(prev, c.Object, s.clock())
	return store.Encode(c.Object)
}

// commit makes one prepared change at s.revision. Needs s.mu.
func (s *Store) commit(c onpath.Change, data []byte) {
	if c.Object == nil {
		if _, exists := s.objects[c.Key]; !exists {
			return // deleting what is not there changes nothing
		}
		delete(s.objects, c.Key)
	} else {
		s.objects[c.Key] = entry{data, s.revision}
		c.Object.Meta().Version = s.revision
	}
	s.log = append(s.log, change{s.revision, c.Key, data})
}

// Compact forgets the changes up to revision, as a store of limited size does
// by itself.
func (s *Store) Compact(revision int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.compact(min(revision, s.revision))
}

func (s *Store) compact(revision int64) {
	i := 0
	for i < len(s.log) && s.log[i].revision <= revision {
		i++
	}
	s.log = append([]change(nil), s.log[i:]...)
	s.compacted = max(s.compacted, revision)
}

// NextIDs implements onpath.Store.
func (s *Store) NextIDs(ctx context.Context, sequence string, n int) (uint64, error) {
	if n < 1 {
		return 0, onpath.Errorf(onpath.CodeInvalid, "sequence %s: %d numbers asked for", sequence, n)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	first := s.sequences[sequence] + 1
	s.sequences[sequence] += uint64(n)
	return first, ctx.Err()
}

// Close implements onpath.Store: watchers end, writes fail.
func (s *Store) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.closed {
		s.closed = true
		close(s.moved)
	}
	return nil
}
