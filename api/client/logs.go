package client

import (
	"context"
	"io"
	"net/url"
	"strconv"
	"time"
)

// LogsOptions say what of an instance's output is meant.
type LogsOptions struct {
	Tail     int  // last lines; negative: all
	Follow   bool // what comes as well, until ctx ends
	Previous bool // of the run before the present one
	// Since: only what was printed that long ago at most, by the node's clock; 0: all.
	Since      time.Duration
	Timestamps bool // before each line, when it was printed
}

// Logs copies an instance's output to w.
func (c *Client) Logs(ctx context.Context, tenant, name string, o LogsOptions, w io.Writer) error {
	q := url.Values{"tail": {strconv.Itoa(o.Tail)}, "follow": {strconv.FormatBool(o.Follow)}, "previous": {strconv.FormatBool(o.Previous)}}
	if o.Since > 0 {
		q.Set("since", o.Since.String())
	}
	if o.Timestamps {
		q.Set("timestamps", "true")
	}
	return c.copy(ctx, instancePath(tenant, name, "logs"), q, w)
}
