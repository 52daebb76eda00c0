package client

import (
	"context"
	"net/http"
	"net/url"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/api/wire"
)

// Counters reads the hop counters of one node, or ("") of all.
func (c *Client) Counters(ctx context.Context, node string) (*wire.PerNode[onpath.Counters], error) {
	var out wire.PerNode[onpath.Counters]
	return &out, c.do(ctx, http.MethodGet, "/v1/counters", nodeQuery(node), nil, &out)
}

// Usage reads what the instances ("tenant/name") of one node, or ("") of all,
// use.
func (c *Client) Usage(ctx context.Context, node string) (*wire.PerNode[map[string]onpath.Usage], error) {
	var out wire.PerNode[map[string]onpath.Usage]
	return &out, c.do(ctx, http.MethodGet, "/v1/usage", nodeQuery(node), nil, &out)
}

// Distances reads what the nodes measured last.
func (c *Client) Distances(ctx context.Context) (*wire.PerNode[[]onpath.Distance], error) {
	var out wire.PerNode[[]onpath.Distance]
	return &out, c.do(ctx, http.MethodGet, "/v1/distances", nil, nil, &out)
}

func nodeQuery(node string) url.Values {
	q := url.Values{}
	set(q, "node", node)
	return q
}
