// Package streams is the part of the API that goes on answering: changes of objects,
// notifications of functions, and the public log.
package streams

import (
	"context"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/api/router"
	"github.com/onpath/onpath/internal/fairshare"
)

// Notifications are what functions told their owners.
type Notifications interface {
	// List is what is stored, the latest last.
	List(onpath.NotificationFilter) ([]onpath.Notification, error)
	// Follow calls yield for the latest Limit that are stored (0: none), and for what is
	// stored from then on, each once, until yield fails or ctx ends.
	Follow(ctx context.Context, f onpath.NotificationFilter, yield func(onpath.Notification) error) error
}

// Deps are what the part needs of others.
type Deps struct {
	Store         onpath.Store
	Notifications Notifications    // nil: there are none
	Public        Log              // nil: there is none
	Watches       prometheus.Gauge // those that are open
	Clock         onpath.Clock
}

// Streams serves what goes on.
type Streams struct {
	d       Deps
	readers *fairshare.Rates // of the public log
}

// Register adds the part's routes.
func Register(rt *router.Router, d Deps) {
	s := &Streams{d: d, readers: fairshare.NewRates(d.Clock, logRate, logBurst)}
	rt.Stream("/v1/watch", "watch", "Changes of objects, one JSON line each, after revision from", "application/x-ndjson", s.watch,
		router.Text("kinds", "comma-separated; default all you may see"), router.Text("tenant", ""),
		router.Integer("from", "revision of a list, or of the last line seen; default from now"))
	rt.Stream("/v1/notifications", "notifications", "What functions told their owners, one JSON line each, the latest last",
		"application/x-ndjson", s.notifications, router.Text("tenant", "default all you may see"),
		router.Text("instance", "only this one's"), router.Integer("limit", "the latest so many; default 100"),
		router.Boolean("follow", "go on with what comes"))
	rt.Stream("/v1/audit", "audit", "Entries of the log in clear, one JSON line each, the latest last", "application/x-ndjson",
		s.audit, router.Text("tenant", "default all you may see"), router.Integer("limit", "the latest so many; default 100"))
	rt.Handle("GET /log/", "log", s.serveLog)
}
