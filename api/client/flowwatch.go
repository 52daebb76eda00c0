package client

import (
	"context"
	"net/http"
	"strconv"

	"github.com/onpath/onpath"
)

// WatchFlow has a flow's packets counted at each hop; every call within ten
// seconds of the one before reads what was counted since the first.
func (c *Client) WatchFlow(ctx context.Context, t onpath.Tuple, gateway string) (*onpath.FlowWatch, error) {
	q := tuple(&t)
	q.Set("protocol", strconv.Itoa(int(t.Protocol)))
	set(q, "gateway", gateway)
	var out onpath.FlowWatch
	return &out, c.do(ctx, http.MethodGet, "/v1/watchflow", q, nil, &out)
}
