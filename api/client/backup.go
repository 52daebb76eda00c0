package client

import (
	"context"
	"io"
	"net/url"
	"strconv"
)

// Backup copies all that the server keeps to w, as a tar file: the store as it is at one
// moment, the authority, the secret of tunnels, and, if wanted, the images that were
// pushed. The server must be on this machine.
func (c *Client) Backup(ctx context.Context, images bool, w io.Writer) error {
	return c.copy(ctx, "/v1/backup", url.Values{"images": {strconv.FormatBool(images)}}, w)
}
