package nodes

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"time"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/api/rights"
	"github.com/onpath/onpath/api/router"
)

// faultTime is how long a node may take to cause a fault.
const faultTime = 10 * time.Second

func (s *Nodes) registerFaults() {
	op := router.Operation(http.MethodPost, "/v1/faults", "fault", "Cause a fault of an instance or a node on purpose; it ends by itself")
	router.Register(s.router, op, func(ctx context.Context, in *struct{ Body onpath.FaultRequest }) (*struct{ Body onpath.Fault }, error) {
		f, err := s.fault(ctx, in.Body)
		if err != nil {
			return nil, err
		}
		return &struct{ Body onpath.Fault }{*f}, nil
	})
}

// fault has the node cause a fault, of itself or an instance. The node's event, and the
// log here, tell who asked.
func (s *Nodes) fault(ctx context.Context, r onpath.FaultRequest) (*onpath.Fault, error) {
	if err := r.Validate(); err != nil {
		return nil, err
	}
	node := r.Node
	if r.Kind.OfNode() {
		if _, err := s.d.Store.Get(ctx, onpath.Key{Kind: onpath.KindNode, Name: node}); err != nil {
			return nil, err
		}
	} else {
		tenant, name := onpath.Ref(r.Instance).Resolve(rights.OwnTenant(ctx))
		i, err := s.instance(ctx, tenant, name)
		if err != nil {
			return nil, err
		}
		r.Instance, node = tenant+"/"+name, i.Spec.Node
	}
	r.By = rights.WhoIs(ctx).URI()
	s.d.Log.Warn("a fault is caused on purpose", "kind", r.Kind, "instance", r.Instance, "node", node, "for", r.For.String(), "by", r.By)
	ctx, cancel := context.WithTimeout(ctx, faultTime)
	defer cancel()
	c, err := s.d.Hub.Call(ctx, node, onpath.OpFault, r)
	if err != nil {
		return nil, ofOlder(err, node, r.Kind)
	}
	defer c.Close()
	answer, err := io.ReadAll(c)
	if err != nil {
		return nil, ofOlder(err, node, r.Kind)
	}
	var f onpath.Fault
	if err := json.Unmarshal(answer, &f); err != nil {
		return nil, onpath.Errorf(onpath.CodeInternal, "node %s answered what cannot be read: %w", node, err)
	}
	return &f, nil
}

// ofOlder explains that a node refuses a kind which this server has found to be one.
func ofOlder(err error, node string, kind onpath.FaultKind) error {
	var e *onpath.Error
	if !errors.As(err, &e) || e.Code != onpath.CodeInvalid || e.Field != "kind" {
		return err
	}
	older := onpath.Errorf(onpath.CodeUnsupported, "the agent of node %s does not know the fault %s: its version is older", node, kind)
	older.Remedy = "upgrade it"
	return older
}
