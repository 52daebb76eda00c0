package router

import (
	"context"
	"strings"

	"github.com/danielgtaylor/huma/v2"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/api/rights"
)

// Item is the input of an operation on the object that a path names; the parts of the path
// depend on the kind, so they are read by hand.
type Item struct{ tenant, name string }

// Resolve implements huma.Resolver.
func (i *Item) Resolve(ctx huma.Context) []error {
	i.tenant, i.name = ctx.Param("tenant"), ctx.Param("name")
	return nil
}

// Key is that of the object, which is of a kind.
func (i *Item) Key(kind onpath.Kind) onpath.Key {
	return onpath.Key{Kind: kind, Tenant: i.tenant, Name: i.name}
}

// Body is an input or an answer that is nothing but a body.
type Body[T any] struct{ Body T }

// NewBody is an answer of a body.
func NewBody[T any](body T) *Body[T] { return &Body[T]{Body: body} }

// Operation describes an operation.
func Operation(method, path, id, summary string) huma.Operation {
	tag := strings.Split(strings.TrimPrefix(path, "/v1/"), "/")[0]
	op := huma.Operation{
		OperationID: id, Method: method, Path: path, Summary: summary, Tags: []string{strings.Trim(tag, "/")},
		Errors: []int{400, 403, 404, 409, 503},
	}
	if isOpen(path) {
		op.Security = []map[string][]string{{}}
	}
	return op
}

// ItemOperation describes an operation with an Item, and the parameters that its path names.
func ItemOperation(method, path, id, summary string) huma.Operation {
	op := Operation(method, path, id, summary)
	op.Parameters = pathParams(path)
	return op
}

func pathParams(path string) (params []*huma.Param) {
	for _, name := range pathNames(path) {
		params = append(params, &huma.Param{Name: name, In: "path", Required: true, Schema: &huma.Schema{Type: huma.TypeString}})
	}
	return params
}

func pathNames(path string) (names []string) {
	for i := 0; i < len(path); i++ {
		if path[i] == '{' {
			j := i
			for path[j] != '}' {
				j++
			}
			names = append(names, path[i+1:j])
			i = j
		}
	}
	return names
}

// Register adds an operation.
func Register[In, Out any](rt *Router, op huma.Operation, do func(context.Context, *In) (*Out, error)) {
	huma.Register(rt.doc, op, func(ctx context.Context, in *In) (*Out, error) {
		out, err := do(ctx, in)
		return out, rt.problem(ctx, err)
	})
}

// RegisterSmall adds an operation with a small body.
func RegisterSmall[In, Out any](rt *Router, method, path, id, summary string, do func(context.Context, *In) (*Out, error)) {
	op := Operation(method, path, id, summary)
	op.MaxBodyBytes = 64 << 10
	Register(rt, op, do)
}

// Allow says who may use an operation that is about a kind of objects.
func (rt *Router) Allow(id string, v rights.Verb, kind onpath.Kind) {
	rt.access[id] = access{v, kind}
}
