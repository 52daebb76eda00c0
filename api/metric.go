package api

import (
	"context"
	"net/http"

	"github.com/danielgtaylor/huma/v2"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/api/wire"
)

type metricInput struct {
	at   item
	Body wire.MetricValue
}

// Resolve implements huma.Resolver.
func (in *metricInput) Resolve(ctx huma.Context) []error { in.at = itemOf(ctx); return nil }

func (s *Server) registerMetric() {
	op := itemOperation(http.MethodPost, "/v1/chains/{tenant}/{name}/metric", "push-metric",
		"Report a value that a chain's scaling goes by")
	huma.Register(s.doc, op, func(ctx context.Context, in *metricInput) (*struct{}, error) {
		k := in.at.key(onpath.KindChain)
		if err := s.o.Controller.PushMetric(ctx, k, in.Body.Value, in.Body.Time); err != nil {
			return nil, s.answer(ctx, err)
		}
		return nil, nil
	})
}
