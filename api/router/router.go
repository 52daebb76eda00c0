// Package router is what all parts of the API stand on: it finds the handler of a request,
// says who makes it, refuses what he may not, bounds how much anybody asks at once, gives
// errors one form, and describes it all (OpenAPI).
package router

import (
	"context"
	"log/slog"
	"net/http"
	"reflect"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/onpath/onpath"
)

// Options of a router.
type Options struct {
	Store onpath.Store // has the quotas of tenants
	// Note writes an entry of the public log; nil: there is no log.
	Note     func(context.Context, onpath.LogEntry) error
	Requests *prometheus.HistogramVec // seconds, by route and status
	Version  string
	Log      *slog.Logger
	Clock    onpath.Clock
}

// Router has the routes of the API. Parts add theirs by Register, RegisterSmall, Stream and
// Handle before it serves.
type Router struct {
	o      Options
	mux    *http.ServeMux
	doc    huma.API
	access map[string]access // by operation id

	live     live
	rates    requestRates
	refusals refusals
}

// New makes a router without routes. Values that a schema cannot be derived from have those
// of aliases.
func New(o Options, aliases map[reflect.Type]reflect.Type) *Router {
	registry := huma.NewMapRegistry("#/components/schemas/", huma.DefaultSchemaNamer)
	for typ, alias := range aliases {
		registry.RegisterTypeAlias(typ, alias)
	}
	rt := &Router{o: o, mux: http.NewServeMux(), access: accesses(), refusals: refusals{of: map[string]*refused{}}}
	rt.doc = humago.New(rt.mux, huma.Config{
		OpenAPI: &huma.OpenAPI{
			OpenAPI: "3.1.0",
			Info: &huma.Info{
				Title: "onpath", Version: o.Version,
				Description: "In-network services: which traffic passes through which functions. Errors are application/problem+json " +
					"with a list `errors` of {code, object, field, message, remedy}.",
				License: &huma.License{Name: "Apache-2.0", Identifier: "Apache-2.0"},
			},
			Components: &huma.Components{Schemas: registry, SecuritySchemes: map[string]*huma.SecurityScheme{
				"bearer":      {Type: "http", Scheme: "bearer", Description: "a token of onpath token"},
				"certificate": {Type: "mutualTLS", Description: "a client certificate that the server's authority signed"},
			}},
			// The unix socket asks for neither: its file's permissions say who may open it.
			Security: []map[string][]string{{"bearer": {}}, {"certificate": {}}, {}},
		},
		OpenAPIPath: "/openapi", Formats: map[string]huma.Format{"application/json": huma.DefaultJSONFormat,
			"json": huma.DefaultJSONFormat},
		DefaultFormat: "application/json", RejectUnknownQueryParameters: true,
	})
	rt.doc.UseMiddleware(rt.guard)
	return rt
}

// OpenAPI describes all routes.
func (rt *Router) OpenAPI() *huma.OpenAPI { return rt.doc.OpenAPI() }

// SchemaOf is the schema of a type.
func (rt *Router) SchemaOf(t reflect.Type) *huma.Schema {
	return rt.doc.OpenAPI().Components.Schemas.Schema(t, true, "")
}

// Handle has a plain handler answer a pattern, for who may by the operation's id.
func (rt *Router) Handle(pattern, id string, do func(http.ResponseWriter, *http.Request) error) {
	rt.mux.HandleFunc(pattern, rt.guarded(id, do))
}

// HandleOwn has a handler answer a pattern that decides itself who may.
func (rt *Router) HandleOwn(pattern string, do http.HandlerFunc) { rt.mux.HandleFunc(pattern, do) }

// EndRequests ends what an identity has begun, and says why.
func (rt *Router) EndRequests(uri string) { rt.live.revoke(uri) }

// Unowned are the operations that do not say who may use them, which nobody may.
func (rt *Router) Unowned() (ids []string) {
	for _, item := range rt.doc.OpenAPI().Paths {
		for _, op := range []*huma.Operation{item.Get, item.Put, item.Post, item.Delete} {
			if op != nil && rt.access[op.OperationID].verb == "" {
				ids = append(ids, op.OperationID)
			}
		}
	}
	return ids
}
