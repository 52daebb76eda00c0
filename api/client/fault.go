package client

import (
	"context"
	"net/http"

	"github.com/onpath/onpath"
)

// Fault causes a fault of an instance on purpose.
func (c *Client) Fault(ctx context.Context, r onpath.FaultRequest) (*onpath.Fault, error) {
	var f onpath.Fault
	if err := c.do(ctx, http.MethodPost, "/v1/faults", nil, r, &f); err != nil {
		return nil, err
	}
	return &f, nil
}
