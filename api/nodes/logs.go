package nodes

import (
	"context"
	"net/http"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/api/router"
)

func (s *Nodes) logs(w http.ResponseWriter, r *http.Request) error {
	q := router.Query(r, "tail", "follow", "previous", "since", "timestamps")
	request := onpath.LogsRequest{Tail: q.Integer("tail", -1), Follow: q.Boolean("follow"), Previous: q.Boolean("previous"),
		Since: q.Duration("since"), Timestamps: q.Boolean("timestamps")}
	if q.Err != nil {
		return q.Err
	}
	if request.Follow && request.Previous {
		return onpath.Errorf(onpath.CodeInvalid, "an earlier run writes nothing more: there is nothing to follow")
	}
	node, instance, err := writer(r.Context(), s, r.PathValue("tenant"), r.PathValue("name"))
	if err != nil {
		return err
	}
	request.Instance = instance
	return s.relay(w, r, "text/plain; charset=utf-8", node, onpath.OpLogs, request)
}

// writer is where an instance is, and its name there; of a lease, the engine with all modules
// of its publisher's.
func writer(ctx context.Context, s *Nodes, tenant, name string) (node, instance string, err error) {
	i, err := s.instance(ctx, tenant, name)
	if err == nil {
		return i.Spec.Node, tenant + "/" + name, nil
	}
	if onpath.CodeOf(err) == onpath.CodeNotFound {
		if o, lerr := s.d.Store.Get(ctx, onpath.Key{Kind: onpath.KindLease, Tenant: tenant, Name: name}); lerr == nil {
			l := o.(*onpath.Lease)
			return l.Spec.Node, l.Spec.Publisher + "/" + onpath.LeaseInstance, nil
		}
	}
	return "", "", err
}
