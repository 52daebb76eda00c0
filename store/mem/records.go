package mem

import (
	"bytes"
	"cmp"
	"context"
	"slices"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/store"
)

// recordVersion is a record as written at a revision.
type recordVersion struct {
	path     string
	revision int64
	version  int64 // 0: deleted
	value    []byte
}

// seek is where versions of path up to revision end. Needs s.mu.
func (s *Store) seek(path string, revision int64) int {
	i, _ := slices.BinarySearchFunc(s.records, recordVersion{path: path, revision: revision + 1}, func(a, b recordVersion) int {
		return cmp.Or(cmp.Compare(a.path, b.path), cmp.Compare(a.revision, b.revision))
	})
	return i
}

// recordAt is the record of a path as of a revision; its zero value if there is
// none. Needs s.mu.
func (s *Store) recordAt(path string, revision int64) recordVersion {
	if i := s.seek(path, revision); i > 0 && s.records[i-1].path == path {
		return s.records[i-1]
	}
	return recordVersion{}
}

// record writes or deletes one at s.revision. Needs s.mu.
func (s *Store) record(r onpath.Record) {
	v := recordVersion{path: r.Path, revision: s.revision}
	if !r.Delete {
		v.version, v.value = s.revision, bytes.Clone(r.Value)
	} else if s.recordAt(r.Path, s.revision).version == 0 {
		return
	}
	s.records = slices.Insert(s.records, s.seek(r.Path, s.revision), v)
}

// forgetRecords drops what only readers of revisions up to compacted would see.
// Needs s.mu.
func (s *Store) forgetRecords(compacted int64) {
	kept := s.records[:0]
	for i, v := range s.records {
		overtaken := i+1 < len(s.records) && s.records[i+1].path == v.path && s.records[i+1].revision <= compacted
		if !overtaken && (v.version != 0 || v.revision > compacted) {
			kept = append(kept, v)
		}
	}
	s.records = kept
}

// Records implements onpath.Store.
func (s *Store) Records(ctx context.Context, r onpath.RecordRange) (onpath.RecordPage, error) {
	if err := ctx.Err(); err != nil {
		return onpath.RecordPage{}, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	at := cmp.Or(r.Revision, s.revision)
	switch {
	case at > s.revision:
		return onpath.RecordPage{}, store.Ahead(at)
	case at < s.compacted:
		return onpath.RecordPage{}, store.Compacted(at)
	}
	out := onpath.RecordPage{Records: []onpath.Record{}, Revision: at}
	for i := s.seek(r.From, 0); i < len(s.records) && (r.To == "" || s.records[i].path < r.To); i++ {
		v := s.records[i]
		if v.version == 0 || v.revision > at || s.recordAt(v.path, at).revision != v.revision {
			continue
		}
		if len(out.Records) == store.PageSize(r) {
			out.Next = v.path
			break
		}
		out.Records = append(out.Records, onpath.Record{Path: v.path, Value: bytes.Clone(v.value), Version: v.version})
	}
	return out, nil
}
