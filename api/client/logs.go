package client

import (
	"context"
	"io"
	"net/url"
	"strconv"
)

// LogsOptions say what of an instance's output is meant.
type LogsOptions struct {
	Tail     int  // last lines; negative: all
	Follow   bool // what comes as well, until ctx ends
	Previous bool // of the run before the present one
}

// Logs copies an instance's output to w.
func (c *Client) Logs(ctx context.Context, tenant, name string, o LogsOptions, w io.Writer) error {
	q := url.Values{"tail": {strconv.Itoa(o.Tail)}, "follow": {strconv.FormatBool(o.Follow)}, "previous": {strconv.FormatBool(o.Previous)}}
	return c.copy(ctx, instancePath(tenant, name, "logs"), q, w)
}
