package client

import (
	"context"
	"net/http"

	"github.com/onpath/onpath"
)

// AcceptNode has a node that waits follow the server's store.
func (c *Client) AcceptNode(ctx context.Context, name string) error {
	return c.do(ctx, http.MethodPost, path(onpath.Key{Kind: onpath.KindNode, Name: name})+"/accept", nil, nil, nil)
}
