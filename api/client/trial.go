package client

import (
	"context"
	"net/http"

	"github.com/onpath/onpath/measure/trial"
)

// Trial has two nodes try the network between them.
func Trial(ctx context.Context, c *Client, r trial.Request) (*trial.Result, error) {
	var t trial.Result
	if err := c.do(ctx, http.MethodPost, "/v1/trials", nil, r, &t); err != nil {
		return nil, err
	}
	return &t, nil
}
