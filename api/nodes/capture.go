package nodes

import (
	"context"
	"net/http"
	"time"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/api/rights"
	"github.com/onpath/onpath/api/router"
)

func (s *Nodes) capture(w http.ResponseWriter, r *http.Request) error {
	q := router.Query(r, router.WithTuple("count", "length", "back", "node", "instance")...)
	spec := onpath.CaptureSpec{Count: q.Amount("count"), Length: q.Amount("length"), Tuple: q.Tuple()}
	back := q.Boolean("back")
	if q.Err != nil {
		return q.Err
	}
	node, err := s.captureAt(r.Context(), q, back, &spec)
	if err != nil {
		return err
	}
	tenant, object := "", "node "+node
	if name := q.Get("instance"); name != "" {
		tenant, name = onpath.Ref(name).Resolve(rights.OwnTenant(r.Context()))
		object = onpath.Key{Kind: onpath.KindInstance, Tenant: tenant, Name: name}.String()
	}
	if err := s.router.WriteEntry(r.Context(), onpath.LogCapture, tenant, object, "packets are read"); err != nil {
		return err
	}
	if who := rights.WhoIs(r.Context()); who.Tenanted() { // a node has one at a time
		e := onpath.Errorf(onpath.CodeUnavailable, "a capture of a user ends after %s", userCapture)
		e.Remedy = "begin another one"
		ctx, cancel := context.WithTimeoutCause(r.Context(), userCapture, e)
		defer cancel()
		r = r.WithContext(ctx)
	}
	return s.relay(w, r, "application/x-pcapng", node, onpath.OpCapture, spec)
}

// userCapture is how long a user may keep others from capturing at a node.
const userCapture = 10 * time.Minute

// captureAt finds the vport meant, and its node.
func (s *Nodes) captureAt(ctx context.Context, q *router.Values, back bool, spec *onpath.CaptureSpec) (string, error) {
	if name := q.Get("node"); name != "" {
		o, err := s.d.Store.Get(ctx, onpath.Key{Kind: onpath.KindNode, Name: name})
		if err != nil {
			return "", err
		}
		if spec.Vport = o.(*onpath.Node).Status.Edge; spec.Vport == 0 {
			e := onpath.Errorf(onpath.CodeInvalid, "node %s has no uplinks in use", name)
			e.Remedy = "capture at an instance, or name a gateway"
			return "", e
		}
		return name, nil
	}
	tenant, name := onpath.Ref(q.Get("instance")).Resolve(rights.OwnTenant(ctx))
	if name == "" {
		return "", onpath.Errorf(onpath.CodeInvalid, "name an instance or a node to capture at")
	}
	i, err := s.instance(ctx, tenant, name)
	if err != nil {
		return "", err
	}
	spec.Vport = i.Spec.Vport
	if back {
		if spec.Vport = i.Spec.Back; spec.Vport == 0 {
			return "", onpath.Errorf(onpath.CodeInvalid, "instance %s/%s is not bridged: it has one side only", tenant, name)
		}
	}
	return i.Spec.Node, nil
}
