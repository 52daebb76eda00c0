package api

import (
	"context"
	"net/http"
	"strings"

	"github.com/danielgtaylor/huma/v2"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/api/auth"
	"github.com/onpath/onpath/api/join"
	"github.com/onpath/onpath/api/nodes"
	"github.com/onpath/onpath/api/questions"
	"github.com/onpath/onpath/api/rights"
	"github.com/onpath/onpath/api/router"
	"github.com/onpath/onpath/api/streams"
	"github.com/onpath/onpath/api/wire"
)

// routes builds the whole interface, and its OpenAPI description with it.
func (s *Server) routes() {
	registerObjects[*onpath.Tenant](s, onpath.KindTenant)
	registerObjects[*onpath.Cloudlet](s, onpath.KindCloudlet)
	registerObjects[*onpath.Node](s, onpath.KindNode)
	registerObjects[*onpath.Hosts](s, onpath.KindHosts)
	registerObjects[*onpath.Function](s, onpath.KindFunction)
	registerObjects[*onpath.Deployment](s, onpath.KindDeployment)
	registerObjects[*onpath.Chain](s, onpath.KindChain)
	registerObjects[*onpath.Measurement](s, onpath.KindMeasurement)
	registerObjects[*onpath.Accelerator](s, onpath.KindAccelerator)
	registerObjects[*onpath.Instance](s, onpath.KindInstance)
	registerObjects[*onpath.Lease](s, onpath.KindLease)
	registerObjects[*onpath.Event](s, onpath.KindEvent)
	registerObjects[*onpath.PriceList](s, onpath.KindPriceList)
	reservationList{s}.register()
	registerItem[*onpath.Reservation](s, onpath.KindReservation)
	registerObjects[*onpath.PrefixClaim](s, onpath.KindPrefixClaim)
	registerObjects[*onpath.Webhook](s, onpath.KindWebhook)
	registerObjects[*onpath.Service](s, onpath.KindService)
	registerWebhookState(s)
	registerObjects[*onpath.Secret](s, onpath.KindSecret)
	secrets{s}.register()
	s.registerReservations()
	s.registerApply()
	s.registerConfirm()
	s.registerHealth()
	s.router.Stream("/v1/backup", "backup", "All that the server keeps, as a tar file; for operators on its own machine",
		"application/x-tar", s.backup, router.Boolean("images", "the images that were pushed, too"))
	questions.Register(s.router, questions.Deps{Planner: s.o.Controller})
	nodes.Register(s.router, nodes.Deps{Store: s.o.Store, Hub: s.o.Hub, Counters: s.o.Controller, Authority: s.o.Authority, Log: s.log})
	streams.Register(s.router, streams.Deps{Store: s.o.Store, Notifications: s.o.Notifications, Public: s.o.Log,
		Watches: s.metrics.watches, Clock: s.o.Clock})
	s.join = join.Register(s.router, join.Deps{Store: s.o.Store, Authority: s.o.Authority, Admission: s.o.Admission, Hub: s.o.Hub,
		Notifications: s.o.Notifications, Address: s.o.Address, Log: s.log})
	s.images.Register(s.router)
	s.router.Handle("GET /metrics", "metrics", s.serveMetrics)
	s.router.HandleOwn("/", func(w http.ResponseWriter, r *http.Request) { s.router.Fail(w, r, nothingThere(r)) })
}

// nothingThere says why a request finds no handler.
func nothingThere(r *http.Request) error {
	if r.Method == http.MethodPut || r.Method == http.MethodDelete {
		word, name, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/v1/"), "/")
		k, ok := onpath.ParseKind(word)
		if tenant, name, one := strings.Cut(name, "/"); ok && one && k.ReadOnly() && k.Plural() == word {
			return rights.ReadOnly(onpath.Key{Kind: k, Tenant: tenant, Name: name})
		}
	}
	e := onpath.Errorf(onpath.CodeNotFound, "there is no %s %s", r.Method, r.URL.Path)
	e.Remedy = "see /openapi.json"
	return e
}

// endpointsSchema describes onpath.Endpoints, which is "any" or an object.
type endpointsSchema struct{}

// Schema implements huma.SchemaProvider.
func (endpointsSchema) Schema(r huma.Registry) *huma.Schema {
	prefixes := &huma.Schema{Type: huma.TypeArray, Items: &huma.Schema{Type: huma.TypeString}, Description: "addresses or prefixes"}
	name := func(d string) *huma.Schema { return &huma.Schema{Type: huma.TypeString, Description: d} }
	return &huma.Schema{OneOf: []*huma.Schema{
		{Type: huma.TypeString, Enum: []any{"any"}},
		{Type: huma.TypeObject, AdditionalProperties: false, Properties: map[string]*huma.Schema{
			"prefixes": prefixes, "hosts": name("a Hosts object"), "deployment": name("a Deployment"),
		}},
	}}
}

// scalingMetricSchema describes onpath.ScalingMetric, which is a word or an object.
type scalingMetricSchema struct{}

// Schema implements huma.SchemaProvider.
func (scalingMetricSchema) Schema(huma.Registry) *huma.Schema {
	text := func(d string) *huma.Schema { return &huma.Schema{Type: huma.TypeString, Description: d} }
	return &huma.Schema{OneOf: []*huma.Schema{
		{Type: huma.TypeString, Enum: []any{"pushed", "packets", "bytes", "dropped"}},
		{Type: huma.TypeObject, AdditionalProperties: false, Properties: map[string]*huma.Schema{
			"url": text("of a Prometheus server"), "query": text("whose result is one number"),
		}},
	}}
}

func (s *Server) registerHealth() {
	health := router.Operation(http.MethodGet, "/healthz", "health", "The server answers")
	router.Register(s.router, health, func(context.Context, *struct{}) (*struct{}, error) { return nil, nil })
	router.Register(s.router, router.Operation(http.MethodGet, "/version", "version", "What the server is"),
		func(context.Context, *struct{}) (*struct{ Body wire.Version }, error) {
			return &struct{ Body wire.Version }{wire.Version{Version: s.o.Version, API: onpath.APIVersion}}, nil
		})
	type readyOutput struct {
		Status int
		Body   wire.Ready
	}
	router.Register(s.router, router.Operation(http.MethodGet, "/readyz", "ready", "The server can do its work"),
		func(ctx context.Context, _ *struct{}) (*readyOutput, error) {
			out := &readyOutput{Status: http.StatusOK, Body: s.ready(ctx)}
			if !out.Body.Ready {
				out.Status = http.StatusServiceUnavailable
			}
			if rights.WhoIs(ctx).Role != auth.RoleOperator {
				out.Body.Nodes, out.Body.Problems, out.Body.Store = nil, nil, nil // for strangers the status must do
			}
			return out, nil
		})
}

func (s *Server) ready(ctx context.Context) wire.Ready {
	r := wire.Ready{Nodes: s.o.Hub.Connected()}
	if u := s.o.StoreUse(); u.Quota > 0 {
		r.Store = &u
	}
	if _, _, err := s.o.Store.List(ctx, onpath.KindCloudlet, ""); err != nil {
		r.Problems = append(r.Problems, err.Error())
	}
	if err := s.o.Controller.Ready(ctx); err != nil {
		r.Problems = append(r.Problems, err.Error())
	}
	r.Ready = len(r.Problems) == 0
	return r
}
