package client

import (
	"context"
	"net/http"
	"net/url"
	"strconv"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/api/wire"
)

// Trace finds the way of a packet; gateway "" means all gateways.
func (c *Client) Trace(ctx context.Context, t onpath.Tuple, gateway string) (*onpath.Trace, error) {
	q := tuple(&t)
	q.Set("protocol", strconv.Itoa(int(t.Protocol)))
	set(q, "gateway", gateway)
	var out onpath.Trace
	return &out, c.do(ctx, http.MethodGet, "/v1/trace", q, nil, &out)
}

// WatchFlow has a flow's packets counted at each hop; every call within ten
// seconds of the one before reads what was counted since the first.
func (c *Client) WatchFlow(ctx context.Context, t onpath.Tuple, gateway string) (*onpath.FlowWatch, error) {
	q := tuple(&t)
	q.Set("protocol", strconv.Itoa(int(t.Protocol)))
	set(q, "gateway", gateway)
	var out onpath.FlowWatch
	return &out, c.do(ctx, http.MethodGet, "/v1/watchflow", q, nil, &out)
}

// Verify proves what chains ("name" or "tenant/name"; none: all) promise, on
// the newest rules planned or, live, on those that nodes have acknowledged.
func (c *Client) Verify(ctx context.Context, chains []string, live bool) (*onpath.Proof, error) {
	q := url.Values{}
	for _, name := range chains {
		q.Add("chain", name)
	}
	if live {
		q.Set("live", "true")
	}
	var out onpath.Proof
	return &out, c.do(ctx, http.MethodGet, "/v1/verify", q, nil, &out)
}

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

func nodeQuery(node string) url.Values {
	q := url.Values{}
	set(q, "node", node)
	return q
}

// Version is what the server is.
func (c *Client) Version(ctx context.Context) (wire.Version, error) {
	var out wire.Version
	return out, c.do(ctx, http.MethodGet, "/version", nil, nil, &out)
}

// Ready returns nil once the server can do its work, and else why not.
func (c *Client) Ready(ctx context.Context) error {
	return c.do(ctx, http.MethodGet, "/readyz", nil, nil, nil)
}
