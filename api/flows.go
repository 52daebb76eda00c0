package api

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"net/http"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/api/rights"
	"github.com/onpath/onpath/api/wire"
)

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
		tenant, name := onpath.Ref(name).Resolve(rights.OwnTenant(r.Context()))
		i, err := s.instance(r.Context(), tenant, name)
		if err != nil {
			return err
		}
		f.Vport, node = i.Spec.Vport, i.Spec.Node
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
