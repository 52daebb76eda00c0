package nodes

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"time"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/api/rights"
	"github.com/onpath/onpath/api/router"
	"github.com/onpath/onpath/api/wire"
)

// flows sends the flow entries of all nodes. A user sees those at his
// instances, one of which he names.
func (s *Nodes) flows(w http.ResponseWriter, r *http.Request) error {
	q := router.Query(r, router.WithTuple("path", "node", "instance")...)
	f := onpath.FlowFilter{Tuple: q.Tuple(), Path: onpath.PathID(q.Integer("path", 0))}
	if q.Err != nil {
		return q.Err
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
	out := router.NewStream(w, "application/x-ndjson")
	for _, n := range s.nodesMeant(node) {
		if err := router.Stopped(r.Context(), s.nodeFlows(r.Context(), n, f, out)); err != nil && !out.Begun() && node != "" {
			return err
		} else if err != nil {
			out.End(err)
			return nil
		}
	}
	out.End(nil)
	return nil
}

// flowsIdle is how long a node may be silent between two entries.
const flowsIdle = 10 * time.Second

func (s *Nodes) nodeFlows(ctx context.Context, node string, f onpath.FlowFilter, out *router.StreamWriter) error {
	c, err := s.d.Hub.Call(ctx, node, onpath.OpFlows, f)
	if err != nil {
		return err
	}
	defer c.Close()
	idle := time.AfterFunc(flowsIdle, func() { _ = c.Close() })
	defer idle.Stop()
	d := json.NewDecoder(bufio.NewReader(c))
	for {
		var e onpath.FlowEntry
		idle.Reset(flowsIdle)
		if err := d.Decode(&e); err == io.EOF {
			return nil
		} else if err != nil {
			return err
		}
		b, _ := json.Marshal(wire.Flow{Node: node, Entry: e})
		out.Send(append(b, '\n'))
	}
}
