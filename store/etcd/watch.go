package etcd

import (
	"context"
	"time"

	mvccpb "go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/store"
)

// Watch implements onpath.Store.
func (s *Store) Watch(ctx context.Context, from int64) (<-chan onpath.StoreEvent, error) {
	start, err := s.watchStart(ctx, from)
	if err != nil {
		return nil, err
	}
	wctx, cancel := context.WithCancel(clientv3.WithRequireLeader(ctx))
	stop := context.AfterFunc(s.ctx, cancel)
	in := s.client.Watch(wctx, store.Root, clientv3.WithPrefix(), clientv3.WithRev(start))
	out := make(chan onpath.StoreEvent, s.o.Buffer)
	go func() {
		defer close(out)
		defer cancel()
		defer stop()
		s.feed(wctx, in, out)
	}()
	return out, nil
}

// watchStart is the first revision to watch. It asks for it to be read, so that
// a compacted one is an error now and not a silent end later.
func (s *Store) watchStart(ctx context.Context, from int64) (int64, error) {
	if from < 0 {
		return 0, store.Ahead(from)
	}
	ctx, cancel := s.limit(ctx)
	defer cancel()
	var opts []clientv3.OpOption
	if from != 0 {
		opts = append(opts, clientv3.WithRev(from+1))
	}
	r, err := s.client.Get(ctx, store.Root, append(opts, clientv3.WithCountOnly())...)
	switch {
	case err != nil && rpctypes.ErrorDesc(err) == rpctypes.ErrorDesc(rpctypes.ErrGRPCCompacted):
		return 0, store.Compacted(from)
	case err != nil && rpctypes.ErrorDesc(err) == rpctypes.ErrorDesc(rpctypes.ErrGRPCFutureRev):
		return s.startAfter(ctx, from) // nothing has happened since, or it never was
	case err != nil:
		return 0, s.failed(ctx, "watch", err)
	case from == 0:
		return r.Header.Revision + 1, nil
	}
	return from + 1, nil
}

// startAfter is the revision behind from, which is the store's last one or was never its.
func (s *Store) startAfter(ctx context.Context, from int64) (int64, error) {
	r, err := s.client.Get(ctx, store.Root, clientv3.WithCountOnly())
	switch {
	case err != nil:
		return 0, s.failed(ctx, "watch", err)
	case from > r.Header.Revision:
		return 0, store.Ahead(from)
	}
	return from + 1, nil
}

func (s *Store) feed(ctx context.Context, in clientv3.WatchChan, out chan<- onpath.StoreEvent) {
	for r := range in {
		if err := r.Err(); err != nil {
			if ctx.Err() == nil {
				s.o.Logger.Warn("watch ended", "error", err)
			}
			return
		}
		for _, ev := range r.Events {
			e, err := event(ev)
			if err != nil {
				s.o.Logger.Error("watch: stored object cannot be read", "key", string(ev.Kv.Key), "error", err)
				continue
			}
			if !s.hand(ctx, e, out) {
				return
			}
		}
	}
}

// hand gives e to the watcher; false if it is too slow or gone.
func (s *Store) hand(ctx context.Context, e onpath.StoreEvent, out chan<- onpath.StoreEvent) bool {
	select {
	case out <- e:
		return true
	default:
	}
	t := time.NewTimer(s.o.Patience)
	defer t.Stop()
	select {
	case out <- e:
		return true
	case <-t.C:
		s.o.Logger.Warn("a watcher is too slow and was closed", "revision", e.Revision, "waiting", len(out))
	case <-ctx.Done():
	}
	return false
}

func event(ev *clientv3.Event) (onpath.StoreEvent, error) {
	k, ok := store.ParsePath(string(ev.Kv.Key))
	if !ok {
		return onpath.StoreEvent{}, onpath.Errorf(onpath.CodeInternal, "not an object's key")
	}
	e := onpath.StoreEvent{Revision: ev.Kv.ModRevision, Key: k}
	if ev.Type == mvccpb.Event_DELETE {
		return e, nil
	}
	o, err := store.Decode(ev.Kv.Value, ev.Kv.ModRevision)
	e.Object = o
	return e, err
}
