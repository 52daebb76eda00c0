package etcd

import (
	"context"

	mvccpb "go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/store"
)

// Watch implements onpath.Store.
func (s *Store) Watch(ctx context.Context, from int64, covers func(onpath.Key) bool) (<-chan onpath.StoreEvent, error) {
	start, err := s.watchStart(ctx, from)
	if err != nil {
		return nil, err
	}
	wctx, cancel := context.WithCancel(clientv3.WithRequireLeader(ctx))
	stop := context.AfterFunc(s.ctx, cancel)
	in := s.client.Watch(wctx, store.Root, clientv3.WithPrefix(), clientv3.WithRev(start))
	q, out := newQueue(s.o, &s.waiting), make(chan onpath.StoreEvent)
	go func() {
		defer cancel()
		defer stop()
		q.end(s.feed(wctx, in, q, covers))
	}()
	go func() {
		defer close(out)
		defer cancel()
		s.hand(ctx, q, out)
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

// feed fills a watcher's queue until the watch ends; the error is what the watcher is told.
func (s *Store) feed(ctx context.Context, in clientv3.WatchChan, q *queue, covers func(onpath.Key) bool) error {
	for r := range in {
		if err := r.Err(); err != nil {
			if ctx.Err() == nil {
				s.o.Logger.Warn("watch ended", "error", err)
			}
			return nil
		}
		for _, ev := range r.Events {
			k, ok := store.ParsePath(string(ev.Kv.Key))
			if ok && covers != nil && !covers(k) {
				continue
			}
			if !q.put(ctx, ev, s.o.Patience) {
				if ctx.Err() != nil {
					return nil
				}
				err := tooSlow(q)
				s.o.Logger.Warn("a watcher is too slow and was closed", "revision", ev.Kv.ModRevision, "error", err)
				return err
			}
		}
		if n := len(r.Events); n > 0 {
			q.pass(r.Events[n-1].Kv.ModRevision)
		}
	}
	return nil
}

// hand gives a watcher what its queue holds, until that ends or ctx does.
func (s *Store) hand(ctx context.Context, q *queue, out chan<- onpath.StoreEvent) {
	var told int64 // the last revision that the watcher knows
	for {
		ev, seen, ended, why := q.take()
		e := onpath.StoreEvent{Revision: seen, Err: why}
		if ev != nil {
			var err error
			if e, err = event(ev); err != nil {
				s.o.Logger.Error("watch: stored object cannot be read", "key", string(ev.Kv.Key), "error", err)
				continue
			}
		}
		if ev == nil && why == nil && (ended || seen <= told) {
			if ended {
				return
			}
			select {
			case <-q.news:
			case <-ctx.Done():
				return
			}
			continue
		}
		select {
		case out <- e:
		case <-ctx.Done():
			return
		}
		if told = max(told, e.Revision); why != nil {
			return
		}
	}
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
