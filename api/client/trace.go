package client

import (
	"context"
	"net/http"
	"strconv"

	"github.com/onpath/onpath"
)

// Trace finds the way of a packet; gateway "" means all gateways.
func (c *Client) Trace(ctx context.Context, t onpath.Tuple, gateway string) (*onpath.Trace, error) {
	q := tuple(&t)
	q.Set("protocol", strconv.Itoa(int(t.Protocol)))
	set(q, "gateway", gateway)
	var out onpath.Trace
	return &out, c.do(ctx, http.MethodGet, "/v1/trace", q, nil, &out)
}
