package api

import (
	"context"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/api/auth"
	"github.com/onpath/onpath/api/rights"
	"github.com/onpath/onpath/api/router"
	"github.com/onpath/onpath/api/wire"
)

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
	var last lastReady
	router.Register(s.router, router.Operation(http.MethodGet, "/readyz", "ready", "The server can do its work"),
		func(ctx context.Context, _ *struct{}) (*readyOutput, error) {
			out := &readyOutput{Status: http.StatusOK}
			stranger := rights.WhoIs(ctx).Role != auth.RoleOperator
			if stranger {
				out.Body = last.reply(s.o.Clock(), func() wire.Ready { return s.ready(context.WithoutCancel(ctx)) })
			} else {
				out.Body = s.ready(ctx)
			}
			if !out.Body.Ready {
				out.Status = http.StatusServiceUnavailable
			}
			if stranger {
				out.Body.Nodes, out.Body.Problems, out.Body.Store = nil, nil, nil // for strangers the status must do
			}
			return out, nil
		})
}

// lastReady is the last answer for strangers: however many ask, the store and the controller
// are asked once in readyFor.
type lastReady struct {
	mu   sync.Mutex
	at   time.Time
	last wire.Ready
}

const readyFor = time.Second

func (l *lastReady) reply(now time.Time, ask func() wire.Ready) wire.Ready {
	l.mu.Lock()
	defer l.mu.Unlock()
	if age := now.Sub(l.at); l.at.IsZero() || age < 0 || age >= readyFor {
		l.last, l.at = ask(), now
	}
	return l.last
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
