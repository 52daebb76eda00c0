// Package api is the server's HTTP interface: resources, apply, watches, what
// operators look at, the nodes' sessions, and the images that nodes pull. It
// authenticates, checks rights and moves data; everything that takes a decision
// is behind Controller.
package api

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"reflect"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/api/auth"
	"github.com/onpath/onpath/api/change"
	"github.com/onpath/onpath/api/join"
	"github.com/onpath/onpath/api/nodes"
	"github.com/onpath/onpath/api/questions"
	"github.com/onpath/onpath/api/registry"
	"github.com/onpath/onpath/api/reservations"
	"github.com/onpath/onpath/api/resources"
	"github.com/onpath/onpath/api/router"
	"github.com/onpath/onpath/api/session"
	"github.com/onpath/onpath/api/streams"
	"github.com/onpath/onpath/internal/sealed"
)

// Controller takes the decisions. Package control implements it.
type Controller interface {
	change.Planner
	questions.Planner
	nodes.Counters
	// Ready says why the controller does not work; nil if it does.
	Ready(ctx context.Context) error
}

// Pool admits reservations and keeps the accounts. Package control/pool implements it.
type Pool interface {
	change.Pool
	reservations.Pool
	// Held says why a leap of the clock holds all decisions; nil: they go on.
	Held() error
}

// Past is what the files of closed days hold. Package control/pool implements it.
type Past interface {
	reservations.Past
	resources.Past
}

// Admission says what nodes are given.
type Admission interface {
	join.Admission
	// NodeMayPull reports whether a node's plan names an image of a repository, TENANT/NAME.
	NodeMayPull(node, repository string) bool
}

// Log is the operator's public log.
type Log interface {
	streams.Log
	// Note writes an entry whose cause writes nothing.
	Note(ctx context.Context, e onpath.LogEntry) error
}

// Notifications are what functions told their owners.
type Notifications interface {
	streams.Notifications
	join.Notifications
}

// Options of a server.
type Options struct {
	Store onpath.Store
	// StoreUse is what the store holds, for /readyz and metrics; nil: nobody knows.
	StoreUse   func() onpath.StoreUse
	Controller Controller
	Admission  Admission
	// Pool admits reservations; nil: there are none.
	Pool Pool
	// Past is what the files of closed days hold; nil: no day is closed.
	Past Past
	Hub  *session.Hub
	// Log is the public log; nil: there is none.
	Log Log
	// Notifications that functions sent; nil: there are none.
	Notifications Notifications
	// Sealed seals secrets; SecretsPlanned are those that an instance in a node's plan names,
	// by file. Nil: there are none.
	Sealed         *sealed.Box
	SecretsPlanned func(node, tenant, instance string) map[string]onpath.SecretKey
	// WebhookState is how a Webhook fares; nil: nothing is sent.
	WebhookState func(*onpath.Webhook) onpath.WebhookState
	// Secrets are the server's own; nil: they are not rotated.
	Secrets join.Secrets
	// Authority for TLS; nil: the unix socket only, nobody can join.
	Authority *auth.Authority
	// Dir keeps images.
	Dir string
	// ImageQuota is how many bytes of images one tenant may keep there; default
	// 16 GiB.
	ImageQuota int64
	// Address is where nodes and users reach the TLS listener (host:port); it
	// is what join tokens carry if their request names no other.
	Address string
	// Connections that the TLS listener has open at once, the half of them at most of one
	// network; default three quarters of the files that the process may have: its store needs
	// the rest.
	Connections int
	Version     string
	// Functions look into functions before they are taken; those of a kind that is
	// not here only nodes look into.
	Functions map[onpath.FunctionKind]onpath.FunctionChecker
	// Metrics are served at /metrics, with the API's own among them; default a
	// new registry.
	Metrics *prometheus.Registry
	Logger  *slog.Logger // default: none
	Clock   onpath.Clock // default time.Now
}

// Server is the API: its parts, the router that they have registered their routes with, and
// the listeners. Handlers come from Local and Remote.
type Server struct {
	o       Options
	log     *slog.Logger
	router  *router.Router
	images  *registry.Registry
	changes *change.Changes
	metrics *metrics
}

// New makes a server. Run does its work in the background.
func New(o Options) (*Server, error) {
	if o.Store == nil || o.Controller == nil || o.Hub == nil || o.Dir == "" {
		return nil, errors.New("api: a store, a controller, a hub and a directory are needed")
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Clock == nil {
		o.Clock = time.Now
	}
	if o.StoreUse == nil {
		o.StoreUse = func() (u onpath.StoreUse) { return u }
	}
	if o.Metrics == nil {
		o.Metrics = prometheus.NewRegistry()
	}
	s := &Server{o: o, log: o.Logger}
	var err error
	if s.metrics, err = newMetrics(o.Metrics, o.Hub, o.StoreUse, o.Pool); err != nil {
		return nil, err
	}
	s.router = router.New(s.routerOptions(), map[reflect.Type]reflect.Type{
		reflect.TypeFor[onpath.Endpoints]():     reflect.TypeFor[endpointsSchema](),
		reflect.TypeFor[onpath.ScalingMetric](): reflect.TypeFor[scalingMetricSchema](),
	})
	return s, s.parts()
}

func (s *Server) routerOptions() router.Options {
	r := router.Options{Store: s.o.Store, Requests: s.metrics.requests, Version: s.o.Version, Log: s.log, Clock: s.o.Clock}
	if s.o.Log != nil {
		r.Note = s.o.Log.Note
	}
	return r
}

// Run undoes what is not confirmed in time and removes images that nothing
// refers to, until ctx ends.
func (s *Server) Run(ctx context.Context) {
	var wg sync.WaitGroup
	wg.Go(func() { s.changes.Run(ctx) })
	wg.Go(func() { s.images.Run(ctx) })
	wg.Wait()
}

// Local is the handler for the unix socket: who may open it is an operator.
func (s *Server) Local() http.Handler {
	return s.router.Handler(func(*http.Request) (auth.Identity, error) { return auth.LocalOperator(), nil })
}

// Remote is the handler for the TLS listener: who shows a certificate is whom it
// names.
func (s *Server) Remote() http.Handler {
	return s.router.Handler(func(r *http.Request) (auth.Identity, error) {
		if s.o.Authority == nil {
			return auth.Identity{}, onpath.Errorf(onpath.CodeForbidden, "the server has no certificate authority")
		}
		if word, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer "); ok {
			return s.o.Authority.Bearer(word)
		}
		return s.o.Authority.Identify(r.TLS)
	})
}
