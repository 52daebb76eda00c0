package client

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/url"
	"strconv"

	"github.com/onpath/onpath"
)

// Notifications calls yield for what functions told their owners, the latest last, and with
// follow for what comes, until ctx ends.
func (c *Client) Notifications(ctx context.Context, f onpath.NotificationFilter, follow bool,
	yield func(onpath.Notification) error) error {
	q := url.Values{"tenant": {f.Tenant}, "instance": {f.Instance}, "limit": {strconv.Itoa(f.Limit)},
		"follow": {strconv.FormatBool(follow)}}
	r, w := io.Pipe()
	go func() { w.CloseWithError(c.copy(ctx, "/v1/notifications", q, w)) }()
	defer r.Close()
	d := json.NewDecoder(bufio.NewReader(r))
	for {
		var n onpath.Notification
		if err := d.Decode(&n); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		if err := yield(n); err != nil {
			return err
		}
	}
}
