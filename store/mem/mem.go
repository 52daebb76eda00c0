// Package mem is a store in memory, for tests and simulations. It is a complete
// implementation: compare-and-write, resumable watches and compaction included.
package mem

import (
	"context"
	"maps"
	"slices"
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
	records   []recordVersion // by path and version; a deletion is one
	requests  map[string]request
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
		requests:  map[string]request{},
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

// ListPage implements onpath.Store.
func (s *Store) ListPage(ctx context.Context, kind onpath.Kind, tenant, after string, limit int) ([]onpath.Object, string, error) {
	if err := ctx.Err(); err != nil {
		return nil, "", err
	}
	from, end := store.PageRange(kind, tenant, after)
	found := map[string]entry{}
	s.mu.Lock()
	for k, e := range s.objects {
		if p := store.Path(k); from <= p && p < end {
			found[p] = e
		}
	}
	s.mu.Unlock()
	paths := slices.Sorted(maps.Keys(found))
	more := len(paths) > store.ListSize(limit)
	list := []onpath.Object{}
	for _, p := range paths[:min(len(paths), store.ListSize(limit))] {
		o, err := store.Decode(found[p].data, found[p].version)
		if err != nil {
			return nil, "", err
		}
		list = append(list, o)
	}
	return list, store.NextPage(list, more), nil
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
	s.forgetRecords(s.compacted)
}

// NextIDs implements onpath.Store.
func (s *Store) NextIDs(ctx context.Context, sequence string, above uint64, n int) (uint64, error) {
	if n < 1 {
		return 0, onpath.Errorf(onpath.CodeInvalid, "sequence %s: %d numbers asked for", sequence, n)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	first := max(s.sequences[sequence], above) + 1
	s.sequences[sequence] = first + uint64(n) - 1
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
