package api

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"sync"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/api/auth"
	"github.com/onpath/onpath/api/wire"
)

// nodeTime is how long one node may take to answer what all are asked.
const nodeTime = 3 * time.Second

type traceInput struct {
	Src      string `query:"src" required:"true" doc:"source address"`
	Dst      string `query:"dst" required:"true" doc:"destination address"`
	Protocol int    `query:"protocol" required:"true" doc:"IP protocol number"`
	SrcPort  int    `query:"srcPort" doc:"0: any flow"`
	DstPort  int    `query:"dstPort"`
	Gateway  string `query:"gateway" doc:"the node where the packet enters; default all"`
}

func (s *Server) registerTrace() {
	huma.Register(s.doc, operation(http.MethodGet, "/v1/trace", "trace", "The way of a packet, both directions, from the plan and live flow entries"),
		func(ctx context.Context, in *traceInput) (*struct{ Body onpath.Trace }, error) {
			t, err := s.trace(ctx, in)
			if err != nil {
				return nil, s.answer(ctx, err)
			}
			return &struct{ Body onpath.Trace }{*t}, nil
		})
}

func (s *Server) trace(ctx context.Context, in *traceInput) (*onpath.Trace, error) {
	r, ok := onpath.TraceRequest{Gateway: in.Gateway}, true
	if who := whoIs(ctx); who.Role == auth.RoleUser {
		r.Tenant = who.Tenant
	} else if who.Role == auth.RoleNode {
		return nil, forbidden(who, "trace")
	}
	r.Tuple, ok = tupleOf(in)
	if !ok {
		return nil, noTuple(in)
	}
	return s.o.Controller.Trace(ctx, r)
}

func noTuple(in *traceInput) error {
	e := onpath.Errorf(onpath.CodeInvalid, "%s to %s, protocol %d, ports %d and %d: this is not a packet's tuple", in.Src, in.Dst, in.Protocol, in.SrcPort, in.DstPort)
	e.Remedy = "give two addresses of one family, and ports between 0 and 65535"
	return e
}

func tupleOf(in *traceInput) (t onpath.Tuple, ok bool) {
	q := values{Values: map[string][]string{"src": {in.Src}, "dst": {in.Dst}}}
	src, dst := q.address("src"), q.address("dst")
	ok = q.err == nil && src.IsValid() && dst.IsValid() && src.Is4() == dst.Is4() &&
		in.Protocol >= 0 && in.Protocol <= 255 && in.SrcPort >= 0 && in.SrcPort <= 65535 && in.DstPort >= 0 && in.DstPort <= 65535
	return onpath.Tuple{Protocol: uint8(in.Protocol), Src: src, Dst: dst, SrcPort: uint16(in.SrcPort), DstPort: uint16(in.DstPort)}, ok
}

type nodeInput struct {
	Node string `query:"node" doc:"only this one; default all that are connected"`
}

func (s *Server) registerPerNode() {
	registerPerNode[onpath.Counters](s, "/v1/counters", "counters", "Hop counters, by node", onpath.OpCounters)
	registerPerNode[map[string]onpath.Usage](s, "/v1/usage", "usage", "What instances use, by node", onpath.OpUsage)
}

func registerPerNode[T any](s *Server, path, id, summary string, op onpath.NodeOp) {
	huma.Register(s.doc, operation(http.MethodGet, path, id, summary),
		func(ctx context.Context, in *nodeInput) (*struct{ Body wire.PerNode[T] }, error) {
			out, err := askNodes[T](ctx, s, in.Node, op)
			if err != nil {
				return nil, s.answer(ctx, err)
			}
			return &struct{ Body wire.PerNode[T] }{*out}, nil
		})
}

// askNodes has all nodes, or one, answer with a JSON value.
func askNodes[T any](ctx context.Context, s *Server, node string, op onpath.NodeOp) (*wire.PerNode[T], error) {
	if err := mayOperate(ctx, "see the "+string(op)+" of whole nodes"); err != nil {
		return nil, err
	}
	request := ctx
	ctx, cancel := context.WithTimeout(ctx, nodeTime)
	defer cancel()
	out := &wire.PerNode[T]{Nodes: map[string]T{}, Away: map[string]string{}}
	var mu sync.Mutex
	var wg sync.WaitGroup
	for _, n := range s.nodesMeant(node) {
		wg.Go(func() {
			var v T
			err := s.askNode(ctx, n, op, &v)
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
	if err := stopped(request, nil); err != nil {
		return nil, err // no node was away
	}
	if why, ok := out.Away[node]; ok && node != "" {
		return nil, onpath.Errorf(onpath.CodeUnavailable, "%s", why)
	}
	return out, nil
}

func (s *Server) askNode(ctx context.Context, node string, op onpath.NodeOp, v any) error {
	c, err := s.o.Hub.Call(ctx, node, op, struct{}{})
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

func (s *Server) nodesMeant(node string) []string {
	if node != "" {
		return []string{node}
	}
	return s.o.Hub.Connected()
}

// flows sends the flow entries of all nodes. A user sees those at his
// instances, one of which he names.
func (s *Server) flows(w http.ResponseWriter, r *http.Request) error {
	q := query(r, withTuple("path", "node", "instance")...)
	f := onpath.FlowFilter{Tuple: q.tuple(), Path: onpath.PathID(q.integer("path", 0))}
	if q.err != nil {
		return q.err
	}
	node := q.Get("node")
	if name := q.Get("instance"); name != "" {
		tenant, name := onpath.Ref(name).Resolve(ownTenant(r.Context()))
		i, err := s.instance(r.Context(), tenant, name)
		if err != nil {
			return err
		}
		f.Vport, node = i.Spec.Vport, i.Spec.Node
	} else if err := mayOperate(r.Context(), "see all flows; name one of your instances"); err != nil {
		return err
	}
	out := &lazyHeader{w: w, mediaType: "application/x-ndjson"}
	for _, n := range s.nodesMeant(node) {
		if err := stopped(r.Context(), s.nodeFlows(r.Context(), n, f, out)); err != nil && !out.begun && node != "" {
			return err
		} else if err != nil {
			out.end(err)
			return nil
		}
	}
	out.end(nil)
	return nil
}

func (s *Server) nodeFlows(ctx context.Context, node string, f onpath.FlowFilter, out *lazyHeader) error {
	c, err := s.o.Hub.Call(ctx, node, onpath.OpFlows, f)
	if err != nil {
		return err
	}
	defer c.Close()
	d := json.NewDecoder(bufio.NewReader(c))
	for {
		var e onpath.FlowEntry
		if err := d.Decode(&e); err == io.EOF {
			return nil
		} else if err != nil {
			return err
		}
		b, _ := json.Marshal(wire.Flow{Node: node, Entry: e})
		out.write(append(b, '\n'))
	}
}
