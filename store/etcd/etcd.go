// Package etcd keeps resources in etcd: one embedded in this process, which
// listens on nothing and whose data lie in one directory, or an external
// cluster. Behind Open both are the same code.
package etcd

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/store"
)

// Options say where the data are. Exactly one of Dir and Endpoints is set.
type Options struct {
	// Dir is the data directory of an embedded etcd.
	Dir string
	// Endpoints of an external cluster ("https://10.0.0.1:2379"), with TLS.
	Endpoints []string
	TLS       *tls.Config

	Logger *slog.Logger // default: none
	Clock  onpath.Clock // default time.Now; stamps Created

	// Buffer is how many events may wait for a watcher (default 4096), and BufferBytes how
	// many bytes of them (default 1 MiB; one event may be larger). Patience is how long a full
	// buffer may stay full before the watcher is closed (default 5 s).
	Buffer, BufferBytes int
	Patience            time.Duration

	// Reserve is how many bytes must be free on the disk of Dir for a write to be
	// accepted; default 160 MiB. Deletions, and writes that follow from stored
	// objects (store.FollowUp), need half of that.
	Reserve int64
	// Quota is how many bytes an embedded etcd may hold, old versions included; default 4 GiB.
	Quota int64
	// Spare is the size of a file that holds disk space, in bytes, and that is
	// deleted when a deletion needs the space; default 96 MiB, none in memory (tmpfs).
	Spare int64
}

// requestTimeout ends a request to a cluster that has no quorum.
const requestTimeout = 5 * time.Second

// page is how many objects one range request reads.
const page = onpath.MaxList

// Store is an onpath.Store in etcd. It is safe for concurrent use.
type Store struct {
	o        Options
	client   *clientv3.Client
	embedded *embedded // nil with an external cluster
	ctx      context.Context
	cancel   context.CancelFunc
	closing  sync.Once
	requests requestLease
	waiting  atomic.Int64                    // bytes of changes that wait for watchers
	members  atomic.Pointer[onpath.StoreUse] // what the fullest member of an external cluster holds
}

// Open opens the store; with an embedded etcd it returns when that is ready.
func Open(ctx context.Context, o Options) (*Store, error) {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Clock == nil {
		o.Clock = time.Now
	}
	if o.Buffer == 0 {
		o.Buffer = 4096
	}
	if o.BufferBytes == 0 {
		o.BufferBytes = 1 << 20
	}
	if o.Patience == 0 {
		o.Patience = 5 * time.Second
	}
	if o.Reserve == 0 {
		o.Reserve = reserveAll
	}
	if o.Quota == 0 {
		o.Quota = quota
	}
	s := &Store{o: o}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	var err error
	switch {
	case (o.Dir == "") == (len(o.Endpoints) == 0):
		err = onpath.Errorf(onpath.CodeInvalid, "the store needs either a data directory or the endpoints of an etcd cluster")
	case o.Dir != "":
		if s.embedded, err = startEmbedded(ctx, o); err == nil {
			s.client = s.embedded.client
			go s.embedded.keepRoom(s.ctx)
		}
	default:
		if s.client, err = connect(ctx, o); err == nil {
			go s.watchMembers(s.ctx)
		}
	}
	if err != nil {
		s.cancel()
		return nil, err
	}
	return s, nil
}

func connect(ctx context.Context, o Options) (*clientv3.Client, error) {
	c, err := clientv3.New(clientv3.Config{
		Endpoints: o.Endpoints, TLS: o.TLS, Logger: zapTo(o.Logger, nil, nil, nil),
		DialTimeout: requestTimeout, DialKeepAliveTime: 5 * time.Second, DialKeepAliveTimeout: 3 * time.Second,
		MaxCallSendMsgSize: maxRequest + 1<<20, // the cluster's own limit is to refuse, in its words
	})
	if err != nil {
		return nil, onpath.Errorf(onpath.CodeInvalid, "etcd cluster %v: %w", o.Endpoints, err)
	}
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	if _, err := c.Get(ctx, store.Root, clientv3.WithCountOnly()); err != nil {
		_ = c.Close()
		e := onpath.Errorf(onpath.CodeUnavailable, "the etcd cluster at %v does not answer: %w", o.Endpoints, err)
		e.Remedy = "check its addresses, its TLS certificates and that a majority of it is up"
		return nil, e
	}
	return c, nil
}

// Get implements onpath.Store.
func (s *Store) Get(ctx context.Context, k onpath.Key) (onpath.Object, error) {
	ctx, cancel := s.limit(ctx)
	defer cancel()
	r, err := s.client.Get(ctx, store.Path(k))
	if err != nil {
		return nil, s.failed(ctx, "read "+k.String(), err)
	}
	if len(r.Kvs) == 0 {
		return nil, store.NotFound(k)
	}
	return store.Decode(r.Kvs[0].Value, r.Kvs[0].ModRevision)
}

// List implements onpath.Store.
func (s *Store) List(ctx context.Context, kind onpath.Kind, tenant string) ([]onpath.Object, int64, error) {
	prefix := store.KindPath(kind, tenant)
	end := clientv3.GetPrefixRangeEnd(prefix)
	list, revision, next := []onpath.Object{}, int64(0), prefix
	for {
		r, err := s.rangePage(ctx, next, end, revision, page)
		if err != nil {
			return nil, 0, s.failed(ctx, "list "+kind.Plural(), err)
		}
		if revision == 0 {
			revision = r.Header.Revision
		}
		for _, kv := range r.Kvs {
			o, err := store.Decode(kv.Value, kv.ModRevision)
			if err != nil {
				return nil, 0, fmt.Errorf("stored under %s: %w", kv.Key, err)
			}
			list = append(list, o)
		}
		if !r.More {
			store.Sort(list)
			return list, revision, nil
		}
		next = string(r.Kvs[len(r.Kvs)-1].Key) + "\x00"
	}
}

// ListPage implements onpath.Store.
func (s *Store) ListPage(ctx context.Context, kind onpath.Kind, tenant, after string, limit int) ([]onpath.Object, string, error) {
	from, end := store.PageRange(kind, tenant, after)
	r, err := s.rangePage(ctx, from, end, 0, int64(store.ListSize(limit)))
	if err != nil {
		return nil, "", s.failed(ctx, "list "+kind.Plural(), err)
	}
	list := make([]onpath.Object, len(r.Kvs))
	for i, kv := range r.Kvs {
		if list[i], err = store.Decode(kv.Value, kv.ModRevision); err != nil {
			return nil, "", fmt.Errorf("stored under %s: %w", kv.Key, err)
		}
	}
	return list, store.NextPage(list, r.More), nil
}

func (s *Store) rangePage(ctx context.Context, from, end string, revision, limit int64) (*clientv3.GetResponse, error) {
	ctx, cancel := s.limit(ctx)
	defer cancel()
	return s.client.Get(ctx, from, clientv3.WithRange(end), clientv3.WithLimit(limit), clientv3.WithRev(revision))
}

// NextIDs implements onpath.Store.
func (s *Store) NextIDs(ctx context.Context, sequence string, above uint64, n int) (uint64, error) {
	if n < 1 {
		return 0, onpath.Errorf(onpath.CodeInvalid, "sequence %s: %d numbers asked for", sequence, n)
	}
	if err := s.checkSpace(ctx, followUp); err != nil { // only what is decided uses numbers
		return 0, err
	}
	ctx, cancel := s.limit(ctx)
	defer cancel()
	key := store.Sequences + sequence
	for {
		r, err := s.client.Get(ctx, key)
		if err != nil {
			return 0, s.failed(ctx, "sequence "+sequence, err)
		}
		var last uint64
		var have int64
		if len(r.Kvs) > 0 {
			have = r.Kvs[0].ModRevision
			if _, err := fmt.Sscanf(string(r.Kvs[0].Value), "%d", &last); err != nil {
				return 0, fmt.Errorf("stored under %s: %q is no number", key, r.Kvs[0].Value)
			}
		}
		last = max(last, above)
		w, err := s.client.Txn(ctx).
			If(clientv3.Compare(clientv3.ModRevision(key), "=", have)).
			Then(clientv3.OpPut(key, fmt.Sprint(last+uint64(n)))).Commit()
		if err != nil {
			return 0, s.failed(ctx, "sequence "+sequence, err)
		}
		if w.Succeeded {
			return last + 1, nil
		}
	}
}

// Compact forgets the changes up to revision; an embedded etcd does so by
// itself, an external one as its operator configured it.
func (s *Store) Compact(ctx context.Context, revision int64) error {
	ctx, cancel := s.limit(ctx)
	defer cancel()
	_, err := s.client.Compact(ctx, revision)
	return s.failed(ctx, "compact", err)
}

// Close ends watchers and, with an embedded etcd, shuts it down.
func (s *Store) Close() (err error) {
	s.closing.Do(func() {
		s.cancel()
		if s.embedded != nil {
			<-s.embedded.room.ended
		}
		if err = s.client.Close(); errors.Is(err, context.Canceled) {
			err = nil
		}
		if s.embedded != nil {
			s.embedded.stop()
		}
	})
	return err
}

// limit gives a request an end, also when the store is closed meanwhile. The request begins when
// the store's file is not being rewritten.
func (s *Store) limit(ctx context.Context) (context.Context, context.CancelFunc) {
	end := func() {}
	if e := s.embedded; e != nil && e.rewriting.begin(ctx) {
		end = sync.OnceFunc(e.rewriting.end)
	}
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	stop := context.AfterFunc(s.ctx, cancel)
	return ctx, func() { stop(); cancel(); end() }
}

// failed turns an etcd error into one with words; nil stays nil.
func (s *Store) failed(ctx context.Context, doing string, err error) error {
	if err == nil {
		return nil
	}
	if s.embedded != nil {
		if e := s.embedded.broken(); e != nil {
			return e
		}
	}
	switch {
	case s.ctx.Err() != nil:
		return onpath.Errorf(onpath.CodeUnavailable, "%s: the store is closed", doing)
	case errors.Is(err, context.Canceled):
		return err
	case errors.Is(err, rpctypes.ErrNoSpace) || rpctypes.ErrorDesc(err) == rpctypes.ErrorDesc(rpctypes.ErrGRPCNoSpace):
		e := onpath.Errorf(onpath.CodeUnavailable, "%s: the store has reached its quota: %w", doing, err)
		e.Remedy = "compact and defragment the etcd cluster or raise its --quota-backend-bytes, " +
			"then disarm the alarm (etcdctl alarm disarm): until then it refuses deletions, too"
		return e
	case rpctypes.ErrorDesc(err) == rpctypes.ErrorDesc(rpctypes.ErrGRPCRequestTooLarge):
		e := onpath.Errorf(onpath.CodeInvalid, "%s: the objects are too large to be written at once: %w", doing, err)
		e.Remedy = "apply them in smaller parts, and put large files into the image"
		if s.embedded == nil {
			e.Remedy += fmt.Sprintf("; or start the members of the etcd cluster with --max-request-bytes=%d", maxRequest)
		}
		return e
	case rpctypes.ErrorDesc(err) == rpctypes.ErrorDesc(rpctypes.ErrGRPCTooManyOps):
		e := onpath.Errorf(onpath.CodeInvalid, "%s: the etcd cluster takes fewer changes at once: %w", doing, err)
		e.Remedy = fmt.Sprintf("start its members with --max-txn-ops=%d (128 by default), or apply in parts of at most %d objects, "+
			"those that others refer to first", maxOps, onpath.SureWrite)
		return e
	case errors.Is(err, rpctypes.ErrCompacted) || rpctypes.ErrorDesc(err) == rpctypes.ErrorDesc(rpctypes.ErrGRPCCompacted):
		return onpath.Errorf(onpath.CodeConflict, "%s: the revision is no longer kept: %w", doing, err)
	}
	e := onpath.Errorf(onpath.CodeUnavailable, "%s: the store does not answer: %w", doing, err)
	e.Remedy = "check that a majority of the etcd cluster is up, then try again"
	if s.embedded != nil {
		e.Remedy = "try again; see the server's log if it stays so"
	}
	return e
}
