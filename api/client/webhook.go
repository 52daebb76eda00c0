package client

import (
	"context"
	"net/http"

	"github.com/onpath/onpath"
)

// WebhookState asks how a webhook fares, and for its secret.
func (c *Client) WebhookState(ctx context.Context, k onpath.Key) (s onpath.WebhookState, err error) {
	return s, c.do(ctx, http.MethodGet, path(k)+"/state", nil, nil, &s)
}
