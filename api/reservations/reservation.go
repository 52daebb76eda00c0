package reservations

import (
	"context"
	"net/http"
	"time"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/api/router"
	"github.com/onpath/onpath/api/wire"
)

type moveInput struct {
	Tenant string `path:"tenant"`
	Name   string `path:"name"`
	Body   wire.Move
}

func (s *Reservations) registerPool() {
	type capacityInput struct {
		Cloudlet string    `query:"cloudlet" doc:"only this one"`
		From     time.Time `query:"from" doc:"default now"`
		Until    time.Time `query:"until" doc:"default a day later"`
	}
	router.Register(s.router, router.Operation(http.MethodGet, "/v1/capacity", "capacity",
		"What nodes have, have promised and have free over time"),
		func(ctx context.Context, in *capacityInput) (*struct{ Body onpath.CapacityView }, error) {
			v, err := s.d.Pool.Capacity(in.Cloudlet, in.From, in.Until)
			if err != nil {
				return nil, err
			}
			return &struct{ Body onpath.CapacityView }{v}, nil
		})
	router.Register(s.router, router.Operation(http.MethodPost, "/v1/instances/{tenant}/{name}/move", "move-instance",
		"Have an instance of a reservation leave its node"),
		func(ctx context.Context, in *moveInput) (*struct{ Body onpath.Quote }, error) {
			q, err := s.move(ctx, onpath.Key{Kind: onpath.KindInstance, Tenant: in.Tenant, Name: in.Name}, in.Body.To)
			if err != nil {
				return nil, err
			}
			return &struct{ Body onpath.Quote }{q}, nil
		})
}

// move finds the reservation of an instance, and has the pool move it.
func (s *Reservations) move(ctx context.Context, k onpath.Key, to string) (q onpath.Quote, err error) {
	o, err := s.d.Store.Get(ctx, k)
	if err != nil {
		return q, err
	}
	i := o.(*onpath.Instance)
	r, err := s.reservationOf(ctx, k.Tenant, i.Spec.Deployment)
	if err != nil {
		return q, err
	}
	if r == "" {
		e := onpath.Errorf(onpath.CodeUnsupported, "it has no reservation: where it runs is the planner's choice")
		e.Object = k.String()
		e.Remedy = "onpath drain moves all instances off a node; spec.place.nodes of its deployment says where it may run"
		return q, e
	}
	tenant, name := r.Resolve(k.Tenant)
	return s.d.Pool.Move(context.WithoutCancel(ctx), onpath.Key{Kind: onpath.KindReservation, Tenant: tenant, Name: name}, i.Spec.Node, to)
}

// reservationOf is the reservation of a deployment, or of the short form that makes it.
func (s *Reservations) reservationOf(ctx context.Context, tenant, deployment string) (onpath.Ref, error) {
	o, err := s.d.Store.Get(ctx, onpath.Key{Kind: onpath.KindDeployment, Tenant: tenant, Name: deployment})
	if d, ok := o.(*onpath.Deployment); ok && err == nil {
		return d.Spec.Reservation, nil
	}
	if onpath.CodeOf(err) != onpath.CodeNotFound {
		return "", err
	}
	chains, _, err := s.d.Store.List(ctx, onpath.KindChain, tenant)
	for _, o := range chains {
		for _, e := range o.(*onpath.Chain).Spec.Through {
			if e.Function != "" && onpath.ShortDeployment(o.Meta().Name, e.Function) == deployment {
				return e.Reservation, nil
			}
		}
	}
	return "", err
}
