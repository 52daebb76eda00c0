package api

import (
	"context"
	"net/http"

	"github.com/onpath/onpath/api/change"
	"github.com/onpath/onpath/api/join"
	"github.com/onpath/onpath/api/nodes"
	"github.com/onpath/onpath/api/questions"
	"github.com/onpath/onpath/api/registry"
	"github.com/onpath/onpath/api/reservations"
	"github.com/onpath/onpath/api/resources"
	"github.com/onpath/onpath/api/streams"
)

// parts makes the parts and has each register its routes, which describes the whole interface
// (OpenAPI). A part has what it needs in its Deps, and nothing of the server.
func (s *Server) parts() (err error) {
	o, rt := s.o, s.router
	members := join.Register(rt, join.Deps{Store: o.Store, Authority: o.Authority, Admission: o.Admission, Hub: o.Hub,
		Notifications: o.Notifications, Address: o.Address, Secrets: o.Secrets, Sealed: o.Sealed, Log: s.log})
	s.changes, err = change.New(context.Background(), change.Deps{Store: o.Store, Planner: o.Controller, Pool: o.Pool, Departures: members,
		Functions: o.Functions, Sealed: o.Sealed, Dir: o.Dir, Version: o.Version, Log: s.log, Clock: o.Clock})
	if err != nil {
		return err
	}
	s.changes.Register(rt)
	images := registry.Deps{Dir: o.Dir, Quota: o.ImageQuota, Used: s.changes.UsedImages, Log: s.log, Clock: o.Clock}
	if o.Admission != nil {
		images.Planned = o.Admission.NodeMayPull
	}
	if s.images, err = registry.New(images); err != nil {
		return err
	}
	s.images.Register(rt)
	resources.Register(rt, resources.Deps{Store: o.Store, Changes: s.changes, Past: o.Past, Sealed: o.Sealed,
		SecretsPlanned: o.SecretsPlanned, WebhookState: o.WebhookState})
	reservations.Register(rt, reservations.Deps{Store: o.Store, Pool: o.Pool, Past: o.Past})
	questions.Register(rt, questions.Deps{Planner: o.Controller})
	nodes.Register(rt, nodes.Deps{Store: o.Store, Hub: o.Hub, Counters: o.Controller, Authority: o.Authority, Log: s.log})
	streams.Register(rt, streams.Deps{Store: o.Store, Notifications: o.Notifications, Public: o.Log,
		Watches: s.metrics.watches, Clock: o.Clock})
	s.registerHealth()
	rt.Handle("GET /metrics", "metrics", s.serveMetrics)
	rt.HandleOwn("/", func(w http.ResponseWriter, r *http.Request) { rt.Fail(w, r, nothingThere(r)) })
	return nil
}
