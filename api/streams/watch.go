package streams

import (
	"context"
	"encoding/json"
	"net/http"
	"strings"
	"time"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/api/rights"
	"github.com/onpath/onpath/api/router"
	"github.com/onpath/onpath/api/wire"
)

// heartbeat is how often an idle watch says where it is: the caller learns that
// it is alive, and resumes from there after changes that did not concern it.
const heartbeat = 5 * time.Second

// watched says which changes a watch is about.
type watched struct {
	kinds  map[onpath.Kind]bool // nil: all
	tenant string               // empty: all
	user   bool                 // a user sees what is his tenant's only
}

func (f watched) covers(k onpath.Key) bool {
	if f.kinds != nil && !f.kinds[k.Kind] {
		return false
	}
	if k.Kind.Tenanted() {
		return f.tenant == "" || k.Tenant == f.tenant
	}
	return !f.user || (k.Kind == onpath.KindTenant && k.Name == f.tenant)
}

func (s *Streams) watch(w http.ResponseWriter, r *http.Request) error {
	q := router.Query(r, "from", "kinds", "tenant")
	last := int64(q.Integer("from", 0))
	if q.Err != nil {
		return q.Err
	}
	f, err := watchFilter(r.Context(), q)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	if last == 0 { // from now: the caller learns when that is, to resume from it
		if _, last, err = s.d.Store.List(ctx, onpath.KindCloudlet, ""); err != nil {
			return err
		}
	}
	events, err := s.d.Store.Watch(ctx, last, f.covers)
	if err != nil {
		return err
	}
	s.d.Watches.Inc()
	defer s.d.Watches.Dec()
	out := router.NewStream(w, "application/x-ndjson")
	out.Send(progress(last))
	tick := time.NewTicker(heartbeat)
	defer tick.Stop()
	for {
		select {
		case e, ok := <-events:
			if !ok {
				e.Err = onpath.Errorf(onpath.CodeUnavailable, "the store was closed; watch again from the last revision")
			}
			if e.Err != nil {
				out.End(e.Err)
				return nil
			}
			if last = e.Revision; e.Key.Kind != "" {
				out.Send(watchLine(e))
			}
		case <-tick.C:
			out.Send(progress(last - 1)) // perhaps not all of the last write was sent
		case <-ctx.Done():
			out.End(router.Stopped(ctx, nil))
			return nil
		}
	}
}

// progress is a line that says from where to resume.
func progress(revision int64) []byte {
	b, _ := json.Marshal(wire.WatchEvent{Revision: revision})
	return append(b, '\n')
}

func watchLine(e onpath.StoreEvent) []byte {
	ref := wire.RefOf(e.Key)
	line := wire.WatchEvent{Revision: e.Revision, Key: &ref}
	if e.Object != nil {
		line.Object, _ = json.Marshal(e.Object) // every Object marshals
	}
	b, _ := json.Marshal(line)
	return append(b, '\n')
}

func watchFilter(ctx context.Context, q *router.Values) (f watched, err error) {
	f.tenant, f.user = rights.ScopeTenant(ctx, q.Get("tenant")), rights.WhoIs(ctx).Tenanted()
	names := strings.FieldsFunc(q.Get("kinds"), func(r rune) bool { return r == ',' })
	for _, n := range names {
		k, ok := onpath.ParseKind(n)
		if !ok {
			return f, onpath.Errorf(onpath.CodeInvalid, "there is no kind %q", n)
		}
		if f.kinds == nil {
			f.kinds = map[onpath.Kind]bool{}
		}
		f.kinds[k] = true
	}
	return f, nil
}
