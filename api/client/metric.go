package client

import (
	"context"
	"net/http"
	"time"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/api/wire"
)

// PushMetric reports a value that a chain's scaling goes by; a zero time means now.
func (c *Client) PushMetric(ctx context.Context, k onpath.Key, value float64, at time.Time) error {
	return c.do(ctx, http.MethodPost, path(k)+"/metric", nil, wire.MetricValue{Value: value, Time: at}, nil)
}
