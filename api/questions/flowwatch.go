package questions

import (
	"context"
	"net/http"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/api/router"
)

func (s *Questions) registerWatchFlow() {
	router.Register(s.router, router.Operation(http.MethodGet, "/v1/watchflow", "watchFlow",
		"Count a flow's packets at each hop, and read what was counted since the first request; ends by itself ten seconds after the "+
			"last one"),
		func(ctx context.Context, in *traceInput) (*struct{ Body onpath.FlowWatch }, error) {
			w, err := s.watchFlow(ctx, in)
			if err != nil {
				return nil, err
			}
			return &struct{ Body onpath.FlowWatch }{*w}, nil
		})
}

func (s *Questions) watchFlow(ctx context.Context, in *traceInput) (*onpath.FlowWatch, error) {
	t, ok := tupleOf(in)
	if !ok {
		return nil, noTuple(in)
	}
	return s.d.Planner.WatchFlow(ctx, onpath.WatchRequest{Tuple: t, Gateway: in.Gateway})
}
