package etcd

import (
	"context"
	"fmt"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/store"
)

// attempts is how often a write with AnyVersion is tried against concurrent ones.
const attempts = 16

// Write implements onpath.Store.
func (s *Store) Write(ctx context.Context, b onpath.Batch) (onpath.Written, error) {
	if err := store.Check(b); err != nil {
		return onpath.Written{}, err
	}
	if len(b.Changes)+len(b.Records) == 0 {
		return s.repeated(ctx, b.Request)
	}
	if err := s.checkSpace(ctx, purposeOf(ctx, b)); err != nil {
		return onpath.Written{}, err
	}
	ctx, cancel := s.limit(ctx)
	defer cancel()
	for range attempts {
		done, w, err := s.tryWrite(ctx, b)
		if done || err != nil {
			return w, err
		}
	}
	return onpath.Written{}, onpath.Errorf(onpath.CodeConflict,
		"others write the same objects again and again: %d attempts came too late", attempts)
}

// repeated looks whether a request was written.
func (s *Store) repeated(ctx context.Context, request string) (w onpath.Written, err error) {
	if request == "" {
		return w, nil
	}
	ctx, cancel := s.limit(ctx)
	defer cancel()
	r, err := s.client.Get(ctx, store.Requests+request)
	if err != nil || len(r.Kvs) == 0 {
		return w, s.failed(ctx, "look for a request", err)
	}
	return onpath.Written{Revision: r.Kvs[0].ModRevision, Repeated: true, Note: r.Kvs[0].Value}, nil
}

// transaction is a batch in etcd's words. It is written only if every compare
// holds; else reads tell, one for each compare and in its order, what is there.
type transaction struct {
	compares []clientv3.Cmp
	writes   []clientv3.Op
	reads    []clientv3.Op
	versions []int64
	refuse   []func(have int64) error // one for each compare; nil: try again
}

// expect adds a compare of the version under key.
func (t *transaction) expect(key string, version int64, refuse func(have int64) error) {
	t.compares = append(t.compares, clientv3.Compare(clientv3.ModRevision(key), "=", version))
	t.reads = append(t.reads, clientv3.OpGet(key))
	t.versions = append(t.versions, version)
	t.refuse = append(t.refuse, refuse)
}

// tryWrite reads what the batch's new versions are made from, where there is such a
// thing, and writes if that is still there. done is false when another writer came
// between.
func (s *Store) tryWrite(ctx context.Context, b onpath.Batch) (done bool, w onpath.Written, err error) {
	before, err := s.before(ctx, b.Changes)
	if err != nil {
		return false, w, err
	}
	t := &transaction{}
	if b.Request != "" {
		if err := s.request(ctx, t, b); err != nil {
			return false, w, err
		}
	}
	for _, c := range b.Changes {
		if err := s.change(t, c, before); err != nil {
			return false, w, err
		}
	}
	for _, g := range b.Guards {
		if g.Version != onpath.AnyVersion {
			t.expect(store.GuardPath(g), g.Version, func(have int64) error { return store.GuardConflict(g, have) })
		}
	}
	for _, r := range b.Records {
		record(t, r)
	}
	r, err := s.client.Txn(ctx).If(t.compares...).Then(t.writes...).Else(t.reads...).Commit()
	if err != nil {
		return false, w, s.failed(ctx, "write", err)
	}
	if !r.Succeeded {
		return t.refused(r, b)
	}
	if err := s.stillThere(); err != nil { // it may have been taken away meanwhile
		return false, w, err
	}
	w.Revision = r.Header.Revision
	if s.embedded != nil {
		s.embedded.wrote(ctx, w.Revision, t)
	}
	b.SetVersions(w.Revision)
	return true, w, nil
}

// stored is an object in the store, or (0, nil) that there is none.
type stored struct {
	version int64
	object  onpath.Object
}

// before reads the objects from which new ones get their identity, and which
// nobody named a version of.
func (s *Store) before(ctx context.Context, changes []onpath.Change) (map[onpath.Key]stored, error) {
	var keys []onpath.Key
	var reads []clientv3.Op
	for _, c := range changes {
		if c.Object != nil && c.Version != 0 {
			keys, reads = append(keys, c.Key), append(reads, clientv3.OpGet(store.Path(c.Key)))
		}
	}
	if len(keys) == 0 {
		return nil, nil
	}
	r, err := s.client.Txn(ctx).Then(reads...).Commit()
	if err != nil {
		return nil, s.failed(ctx, "write", err)
	}
	out := make(map[onpath.Key]stored, len(keys))
	for i, k := range keys {
		kvs := r.Responses[i].GetResponseRange().Kvs
		if len(kvs) == 0 {
			continue
		}
		o, err := store.Decode(kvs[0].Value, kvs[0].ModRevision)
		if err != nil {
			return nil, fmt.Errorf("stored under %s: %w", kvs[0].Key, err)
		}
		out[k] = stored{kvs[0].ModRevision, o}
	}
	return out, nil
}

// change adds a change of an object, given what is stored now.
func (s *Store) change(t *transaction, c onpath.Change, before map[onpath.Key]stored) error {
	key := store.Path(c.Key)
	refuse := func(have int64) error { return store.Conflict(c.Key, c.Version, have) }
	if c.Object == nil {
		if t.writes = append(t.writes, clientv3.OpDelete(key)); c.Version != onpath.AnyVersion {
			t.expect(key, c.Version, refuse)
		}
		return nil
	}
	prev, version := before[c.Key], c.Version
	if version == onpath.AnyVersion {
		version, refuse = prev.version, nil
	}
	t.expect(key, version, refuse)
	store.Stamp(prev.object, c.Object, s.o.Clock())
	data, err := store.Encode(c.Object)
	if err != nil {
		return err
	}
	t.writes = append(t.writes, clientv3.OpPut(key, string(data)))
	return nil
}

func record(t *transaction, r onpath.Record) {
	key := store.Records + r.Path
	if r.Version != onpath.AnyVersion {
		t.expect(key, r.Version, func(have int64) error { return store.RecordConflict(r, have) })
	}
	if r.Delete {
		t.writes = append(t.writes, clientv3.OpDelete(key))
		return
	}
	t.writes = append(t.writes, clientv3.OpPut(key, string(r.Value)))
}

// refused tells why nothing was written: the request was before, or a version is
// not there any more. Without either it is to be tried again.
func (t *transaction) refused(r *clientv3.TxnResponse, b onpath.Batch) (done bool, w onpath.Written, err error) {
	for i, refuse := range t.refuse {
		kvs := r.Responses[i].GetResponseRange().Kvs
		var have int64
		if len(kvs) > 0 {
			have = kvs[0].ModRevision
		}
		if i == 0 && b.Request != "" && have != 0 {
			w = onpath.Written{Revision: have, Repeated: true, Note: kvs[0].Value}
			b.SetVersions(have)
			return true, w, nil
		}
		if refuse != nil && t.versions[i] != have {
			return false, w, refuse(have)
		}
	}
	return false, w, nil
}

// requestLease forgets ids of requests: all of one stretch of time share a lease.
type requestLease struct {
	mu    sync.Mutex
	id    clientv3.LeaseID
	since time.Time // by the monotonic clock
}

// request adds the id of the batch's request, as the first compare.
func (s *Store) request(ctx context.Context, t *transaction, b onpath.Batch) error {
	lease, err := s.requestLease(ctx)
	if err != nil {
		return s.failed(ctx, "write", err)
	}
	key := store.Requests + b.Request
	t.expect(key, 0, nil)
	t.writes = append(t.writes, clientv3.OpPut(key, string(b.Note), clientv3.WithLease(lease)))
	return nil
}

// requestLease is good for another store.RequestKept at least.
func (s *Store) requestLease(ctx context.Context) (clientv3.LeaseID, error) {
	r := &s.requests
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.id != 0 && time.Since(r.since) < store.RequestKept {
		return r.id, nil
	}
	granted, err := s.client.Grant(ctx, int64(2*store.RequestKept/time.Second)+60)
	if err != nil {
		return 0, err
	}
	r.id, r.since = granted.ID, time.Now()
	return r.id, nil
}
