package mem

import (
	"context"
	"time"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/store"
)

// request is one that was written.
type request struct {
	revision int64
	note     []byte
	at       time.Time
}

// Write implements onpath.Store.
func (s *Store) Write(ctx context.Context, b onpath.Batch) (w onpath.Written, err error) {
	if err := ctx.Err(); err != nil {
		return w, err
	}
	if err := store.Check(b); err != nil {
		return w, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return w, onpath.Errorf(onpath.CodeUnavailable, "the store is closed")
	}
	if done, ok := s.requests[b.Request]; ok {
		b.SetVersions(done.revision)
		return onpath.Written{Revision: done.revision, Repeated: true, Note: done.note}, nil
	}
	if len(b.Changes)+len(b.Records) == 0 {
		return w, nil
	}
	if err := s.conflict(b); err != nil {
		return w, err
	}
	datas := make([][]byte, len(b.Changes))
	for i, c := range b.Changes {
		if datas[i], err = s.encode(c); err != nil {
			return w, err
		}
	}
	s.revision++
	for i, c := range b.Changes {
		s.commit(c, datas[i])
	}
	for _, r := range b.Records {
		s.record(r)
	}
	s.noteRequest(b)
	b.SetVersions(s.revision)
	if n := len(s.log) - s.keep; n > 0 {
		s.compact(s.log[n-1].revision)
	}
	close(s.moved)
	s.moved = make(chan struct{})
	return onpath.Written{Revision: s.revision}, nil
}

// noteRequest keeps the id of a request and forgets old ones. Needs s.mu.
func (s *Store) noteRequest(b onpath.Batch) {
	if b.Request == "" {
		return
	}
	now := time.Now()
	for id, r := range s.requests {
		if now.Sub(r.at) > store.RequestKept {
			delete(s.requests, id)
		}
	}
	s.requests[b.Request] = request{s.revision, b.Note, now}
}

// conflict says which version of a batch is not there. Needs s.mu.
func (s *Store) conflict(b onpath.Batch) error {
	for _, c := range b.Changes {
		if have := s.objects[c.Key].version; c.Version != onpath.AnyVersion && c.Version != have {
			return store.Conflict(c.Key, c.Version, have)
		}
	}
	for _, g := range b.Guards {
		have := s.objects[g.Key].version
		if g.Path != "" {
			have = s.recordAt(g.Path, s.revision).version
		}
		if g.Version != onpath.AnyVersion && g.Version != have {
			return store.GuardConflict(g, have)
		}
	}
	for _, r := range b.Records {
		if have := s.recordAt(r.Path, s.revision).version; r.Version != onpath.AnyVersion && r.Version != have {
			return store.RecordConflict(r, have)
		}
	}
	return nil
}

// encode stamps and encodes the object of a change. Needs s.mu.
func (s *Store) encode(c onpath.Change) ([]byte, error) {
	if c.Object == nil {
		return nil, nil
	}
	var prev onpath.Object
	if have, exists := s.objects[c.Key]; exists {
		var err error
		if prev, err = store.Decode(have.data, have.version); err != nil {
			return nil, err
		}
	}
	store.Stamp(prev, c.Object, s.clock())
	return store.Encode(c.Object)
}

// commit makes one encoded change at s.revision. Needs s.mu.
func (s *Store) commit(c onpath.Change, data []byte) {
	if c.Object == nil {
		if _, exists := s.objects[c.Key]; !exists {
			return // deleting what is not there changes nothing
		}
		delete(s.objects, c.Key)
	} else {
		s.objects[c.Key] = entry{data, s.revision}
	}
	s.log = append(s.log, change{s.revision, c.Key, data})
}
