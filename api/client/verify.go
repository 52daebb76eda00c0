package client

import (
	"context"
	"net/http"
	"net/url"

	"github.com/onpath/onpath"
)

// Verify proves what chains ("name" or "tenant/name"; none: all) promise, on
// the newest rules planned or, live, on those that nodes have acknowledged.
func (c *Client) Verify(ctx context.Context, chains []string, live bool) (*onpath.Verification, error) {
	q := url.Values{}
	for _, name := range chains {
		q.Add("chain", name)
	}
	if live {
		q.Set("live", "true")
	}
	var out onpath.Verification
	return &out, c.do(ctx, http.MethodGet, "/v1/verify", q, nil, &out)
}
