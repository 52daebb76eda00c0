package nodes

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"sync"
	"time"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/api/router"
	"github.com/onpath/onpath/api/wire"
)

// nodeTime is how long one node may take to answer what all are asked.
const nodeTime = 3 * time.Second

type nodeInput struct {
	Node string `query:"node" doc:"only this one; default all that are connected"`
}

func (s *Nodes) registerPerNode() {
	registerPerNode[onpath.Counters](s, "/v1/counters", "counters", "Hop counters, by node", onpath.OpCounters)
	registerPerNode[[]onpath.Distance](s, "/v1/distances", "distances", "What nodes measured last of each other, by node",
		onpath.OpDistances)
	registerPerNode[map[string]onpath.Usage](s, "/v1/usage", "usage", "What instances use, by node", onpath.OpUsage)
}

func registerPerNode[T any](s *Nodes, path, id, summary string, op onpath.NodeOp) {
	router.Register(s.router, router.Operation(http.MethodGet, path, id, summary),
		func(ctx context.Context, in *nodeInput) (*struct{ Body wire.PerNode[T] }, error) {
			out, err := askNodes[T](ctx, s, in.Node, op)
			if err != nil {
				return nil, err
			}
			return &struct{ Body wire.PerNode[T] }{*out}, nil
		})
}

// askNodes has all nodes, or one, answer with a JSON value.
func askNodes[T any](ctx context.Context, s *Nodes, node string, op onpath.NodeOp) (*wire.PerNode[T], error) {
	out, err := eachNode(ctx, s.nodesMeant(node), func(ctx context.Context, n string) (v T, err error) {
		return v, s.askNode(ctx, n, op, &v)
	})
	if err != nil {
		return nil, err
	}
	if why, ok := out.Away[node]; ok && node != "" {
		return nil, onpath.Errorf(onpath.CodeUnavailable, "%s", why)
	}
	return out, nil
}

// eachNode asks nodes at once. It fails only if the request ends.
func eachNode[T any](ctx context.Context, nodes []string, ask func(context.Context, string) (T, error)) (*wire.PerNode[T], error) {
	request := ctx
	ctx, cancel := context.WithTimeout(ctx, nodeTime)
	defer cancel()
	out := &wire.PerNode[T]{Nodes: map[string]T{}, Away: map[string]string{}}
	var mu sync.Mutex
	var wg sync.WaitGroup
	for _, n := range nodes {
		wg.Go(func() {
			v, err := ask(ctx, n)
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				out.Away[n] = err.Error()
			} else {
				out.Nodes[n] = v
			}
		})
	}
	wg.Wait()
	return out, router.Stopped(request, nil) // then no node was away
}

func (s *Nodes) askNode(ctx context.Context, node string, op onpath.NodeOp, v any) error {
	c, err := s.d.Hub.Call(ctx, node, op, struct{}{})
	if err != nil {
		return err
	}
	defer c.Close()
	b, err := io.ReadAll(c)
	if err != nil {
		return err
	}
	return json.Unmarshal(b, v)
}

func (s *Nodes) nodesMeant(node string) []string {
	if node != "" {
		return []string{node}
	}
	return s.d.Hub.Connected()
}
