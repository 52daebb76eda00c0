package mem

import (
	"context"
	"sort"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/store"
)

// Watch implements onpath.Store. A watcher reads the log at its own pace and is
// closed once what it has not read yet was compacted away.
func (s *Store) Watch(ctx context.Context, from int64, covers func(onpath.Key) bool) (<-chan onpath.StoreEvent, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if from == 0 {
		from = s.revision
	}
	if from < 0 || from > s.revision {
		return nil, store.Ahead(from)
	}
	if from < s.compacted {
		return nil, store.Compacted(from)
	}
	out := make(chan onpath.StoreEvent)
	go s.feed(ctx, from, covers, out)
	return out, nil
}

func (s *Store) feed(ctx context.Context, from int64, covers func(onpath.Key) bool, out chan<- onpath.StoreEvent) {
	defer close(out)
	for {
		batch, moved, ok := s.after(from)
		if !ok {
			return
		}
		for _, c := range batch {
			e := onpath.StoreEvent{Revision: c.revision}
			covered := covers == nil || covers(c.key)
			if covered {
				e.Key = c.key
			}
			if covered && c.data != nil {
				o, err := store.Decode(c.data, c.revision)
				if err != nil {
					return // what was encoded a moment ago decodes, or the type is wrong
				}
				e.Object = o
			}
			select {
			case out <- e:
			case <-ctx.Done():
				return
			}
			from = c.revision
		}
		if len(batch) > 0 {
			continue
		}
		select {
		case <-moved:
		case <-ctx.Done():
			return
		}
	}
}

// after copies the changes of one revision following from, so that a watcher
// holds no more than that. ok is false when there is nothing more to come.
func (s *Store) after(from int64) (batch []change, moved <-chan struct{}, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || from < s.compacted {
		return nil, nil, false
	}
	first := sort.Search(len(s.log), func(i int) bool { return s.log[i].revision > from })
	for _, c := range s.log[first:] {
		if len(batch) > 0 && c.revision != batch[0].revision {
			break
		}
		batch = append(batch, c)
	}
	return batch, s.moved, true
}
