package client

import (
	"context"
	"io"

	"github.com/onpath/onpath"
)

// CaptureAt says where to capture: at an instance, or at a gateway's uplinks.
type CaptureAt struct {
	Instance string // tenant/name
	Back     bool   // the second side of a bridged instance
	Node     string
	Count    int // packets; 0: until ctx ends
	Length   int // bytes kept of each; 0: all
	Tuple    *onpath.Tuple
}

// Capture writes packets to w as pcapng. Also where it breaks off, w ends with a
// whole block.
func (c *Client) Capture(ctx context.Context, at CaptureAt, w io.Writer) error {
	q := tuple(at.Tuple)
	set(q, "instance", at.Instance)
	set(q, "node", at.Node)
	if at.Back {
		q.Set("back", "true")
	}
	setInt(q, "count", at.Count)
	setInt(q, "length", at.Length)
	out := &blocks{w: w}
	if err := c.copy(ctx, "/v1/capture", q, out); err != nil {
		return err
	}
	return out.end()
}
