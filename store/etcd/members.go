package etcd

import (
	"context"
	"time"

	"github.com/onpath/onpath"
)

// askMembers is how often the members of a cluster are asked what they hold.
const askMembers = 30 * time.Second

// watchMembers keeps what the fullest member of a cluster holds, until ctx ends, and warns
// before etcd closes the cluster for all changes.
func (s *Store) watchMembers(ctx context.Context) {
	warned := false
	for {
		if u := s.fullest(ctx); u.File > 0 {
			s.members.Store(&u)
			full := u.Quota > 0 && u.InUse >= u.Quota/100*usersPart
			if full && !warned {
				s.o.Logger.Warn("the etcd cluster is nearly full: at its quota it refuses every change, deletions too; "+
					"compact and defragment its members, or raise their --quota-backend-bytes", "bytes", u.InUse, "quota", u.Quota)
			}
			warned = full
		}
		select {
		case <-time.After(askMembers):
		case <-ctx.Done():
			return
		}
	}
}

// fullest is what the fullest member holds; nothing if none answers. Its file is what etcd holds
// against its quota, whatever of the file is unused. A member before 3.6 does not tell its quota.
func (s *Store) fullest(ctx context.Context) (u onpath.StoreUse) {
	for _, e := range s.o.Endpoints {
		ctx, cancel := s.limit(ctx)
		r, err := s.client.Status(ctx, e)
		cancel()
		if err == nil && r.DbSize > u.File {
			u.InUse, u.File, u.Quota = r.DbSize, r.DbSize, r.DbSizeQuota
		}
	}
	return u
}
