package streams

import (
	"context"
	"encoding/json"
	"net/http"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/api/rights"
	"github.com/onpath/onpath/api/router"
)

const (
	defaultNotifications = 100
	mostNotifications    = 100_000
)

// notifications sends what functions told their owners. A user sees those of his tenant.
func (s *Streams) notifications(w http.ResponseWriter, r *http.Request) error {
	q := router.Query(r, "tenant", "instance", "limit", "follow")
	f := onpath.NotificationFilter{Tenant: q.Get("tenant"), Instance: q.Get("instance")}
	f.Limit = q.Integer("limit", defaultNotifications)
	follow := q.Boolean("follow")
	switch {
	case q.Err != nil:
		return q.Err
	case f.Limit < 0 || f.Limit > mostNotifications:
		return onpath.Errorf(onpath.CodeInvalid, "limit: %d is out of range: 0 to %d", f.Limit, mostNotifications)
	case s.d.Notifications == nil:
		return onpath.Errorf(onpath.CodeUnsupported, "this server keeps no notifications")
	}
	if who := rights.WhoIs(r.Context()); who.Tenanted() {
		f.Tenant = who.Tenant
	}
	out := router.NewStream(w, "application/x-ndjson")
	write := func(n onpath.Notification) error {
		b, err := json.Marshal(&n)
		out.Send(append(b, '\n'))
		return err
	}
	if follow {
		ctx, cancel := context.WithCancel(r.Context())
		defer cancel()
		out.Send(nil)
		err := s.d.Notifications.Follow(ctx, f, write)
		out.End(router.Stopped(r.Context(), err))
		return nil
	}
	if f.Limit > 0 {
		list, err := s.d.Notifications.List(f)
		if err != nil {
			return err
		}
		for _, n := range list {
			if err := write(n); err != nil {
				return err
			}
		}
	}
	out.End(nil)
	return nil
}
