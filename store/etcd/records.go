package etcd

import (
	"context"
	"strings"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/store"
)

// Records implements onpath.Store.
func (s *Store) Records(ctx context.Context, r onpath.RecordRange) (onpath.RecordPage, error) {
	ctx, cancel := s.limit(ctx)
	defer cancel()
	end := clientv3.GetPrefixRangeEnd(store.Records)
	if r.To != "" {
		end = store.Records + r.To
	}
	answer, err := s.client.Get(ctx, store.Records+r.From, clientv3.WithRange(end),
		clientv3.WithLimit(int64(store.PageSize(r))), clientv3.WithRev(r.Revision))
	if err != nil {
		return onpath.RecordPage{}, s.failed(ctx, "read records", err)
	}
	out := onpath.RecordPage{Records: make([]onpath.Record, 0, len(answer.Kvs)), Revision: r.Revision}
	if out.Revision == 0 {
		out.Revision = answer.Header.Revision
	}
	for _, kv := range answer.Kvs {
		path := strings.TrimPrefix(string(kv.Key), store.Records)
		out.Records = append(out.Records, onpath.Record{Path: path, Value: kv.Value, Version: kv.ModRevision})
	}
	if answer.More {
		out.Next = out.Records[len(out.Records)-1].Path + "\x00"
	}
	return out, nil
}
