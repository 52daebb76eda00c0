package client

import (
	"context"
	"net/http"
	"net/url"

	"github.com/onpath/onpath/api/wire"
)

// Secrets are those of an instance that a node runs, by file. node is for the server's own
// machine; others are known by their certificate.
func (c *Client) Secrets(ctx context.Context, node, tenant, instance string) (map[string][]byte, error) {
	var out wire.Secrets
	path := "/v1/instances/" + url.PathEscape(tenant) + "/" + url.PathEscape(instance) + "/secrets"
	err := c.do(ctx, http.MethodGet, path, url.Values{"node": {node}}, nil, &out)
	return out.Files, err
}
