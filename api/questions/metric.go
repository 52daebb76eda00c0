package questions

import (
	"context"
	"net/http"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/api/router"
	"github.com/onpath/onpath/api/wire"
)

type metricInput struct {
	router.Item
	Body wire.MetricValue
}

func (s *Questions) registerMetric() {
	op := router.ItemOperation(http.MethodPost, "/v1/chains/{tenant}/{name}/metric", "push-metric",
		"Report a value that a chain's scaling goes by")
	router.Register(s.router, op, func(ctx context.Context, in *metricInput) (*struct{}, error) {
		k := in.Key(onpath.KindChain)
		if err := s.d.Planner.PushMetric(ctx, k, in.Body.Value, in.Body.Time); err != nil {
			return nil, err
		}
		return nil, nil
	})
}
