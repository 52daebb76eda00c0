package api

import (
	"context"
	"net/http"
	"time"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/api/rights"
	"github.com/onpath/onpath/api/router"
	"github.com/onpath/onpath/api/wire"
	"github.com/onpath/onpath/store"
)

// Pool admits reservations and keeps the accounts. Package control/pool implements it.
type Pool interface {
	Reservations
	Accounts
}

// Reservations admits reservations and places their instances.
type Reservations interface {
	// Apply admits, changes and cancels reservations, all or none; CodeNoCapacity: declined.
	Apply(ctx context.Context, puts []*onpath.Reservation, cancels []onpath.Key, dryRun bool) ([]onpath.Quote, error)
	// Move has an instance of a reservation leave its node, for the named one or ("")
	// the least loaded.
	Move(ctx context.Context, reservation onpath.Key, from, to string) (onpath.Quote, error)
	// Exists reports whether a reservation is stored.
	Exists(reservation onpath.Key) bool
	// Capacity is what nodes have promised; zero times: from now on, for a day.
	Capacity(cloudlet string, from, until time.Time) (onpath.CapacityView, error)
	// Held says why a leap of the clock holds all decisions; nil: they go on.
	Held() error
}

// Accounts keeps the money of tenants.
type Accounts interface {
	// RemoveTenant closes a tenant's account by records that are to be written with its removal;
	// done is told by which revision they were, or 0.
	RemoveTenant(ctx context.Context, t *onpath.Tenant) (records []onpath.Record, done func(revision int64), err error)
	Account(ctx context.Context, tenant string) (onpath.Account, error)
	// Enter takes money of a tenant in, gives it back, or corrects such an entry.
	Enter(ctx context.Context, tenant string, e onpath.MoneyEntry) (onpath.Account, error)
	// Postings are a page of a tenant's, from a number on; from 0: the newest.
	Postings(ctx context.Context, tenant string, from int64, limit int) (onpath.PostingPage, error)
	// Invoice is a tenant's of a month, such as 2026-11.
	Invoice(ctx context.Context, tenant, month string) (onpath.Invoice, error)
	// CheckLedger recomputes every posting and balance.
	CheckLedger(ctx context.Context) (onpath.LedgerCheck, error)
}

// Past is what the files of closed days hold. Package control/pool implements it.
type Past interface {
	// Days are the closed days of the ledger.
	Days(ctx context.Context) ([]onpath.LedgerDay, error)
	// Ended is a reservation of a closed day; CodeNotFound.
	Ended(ctx context.Context, reservation onpath.Key) (*onpath.Reservation, error)
}

// partReservations takes the reservations out of a changeSet: the pool admits them.
func partReservations(c changeSet) (own, rest changeSet) {
	own, rest = c, c
	own.puts, own.deletes, rest.puts, rest.deletes = nil, nil, nil, nil
	for _, o := range c.puts {
		if o.ObjectKind() == onpath.KindReservation {
			own.puts = append(own.puts, o)
		} else {
			rest.puts = append(rest.puts, o)
		}
	}
	for _, k := range c.deletes {
		if k.Kind == onpath.KindReservation {
			own.deletes = append(own.deletes, k)
		} else {
			rest.deletes = append(rest.deletes, k)
		}
	}
	return own, rest
}

// reserve has the pool decide on reservations, beside other changes: those are checked
// before, and written after it.
func (s *Server) reserve(ctx context.Context, own, rest changeSet) ([]changed, *wire.Pending, error) {
	if own.confirm > 0 {
		e := onpath.Errorf(onpath.CodeInvalid, "reservations cannot be undone: what was given back for them is less than what was paid")
		e.Remedy = "apply them without --confirm"
		return nil, nil, e
	}
	var others []changed
	var err error
	if len(rest.puts)+len(rest.deletes) > 0 {
		try := rest
		try.dryRun = true
		if others, _, err = s.changeObjects(ctx, try); err != nil {
			return nil, nil, err
		}
	}
	all, err := s.compare(ctx, own)
	if err != nil {
		return nil, nil, err
	}
	for _, c := range all {
		if own.version != 0 && (c.prev == nil || c.prev.Meta().Version != own.version) {
			e := onpath.Errorf(onpath.CodeConflict, "it is not at version %d any more", own.version)
			e.Object, e.Remedy = c.change.Key.String(), "read it again, and change what is there now"
			return nil, nil, e
		}
	}
	var puts []*onpath.Reservation
	for _, o := range own.puts {
		puts = append(puts, o.(*onpath.Reservation))
	}
	var cancels []onpath.Key // what is not there is none
	for _, c := range all {
		if c.change.Object == nil && c.prev != nil {
			cancels = append(cancels, c.change.Key)
		}
	}
	if len(puts) == 0 {
		ctx = store.FollowUp(ctx) // a cancellation makes room, though its entries are written
	}
	quotes, err := s.o.Pool.Apply(context.WithoutCancel(ctx), puts, cancels, own.dryRun)
	if err != nil {
		return nil, nil, err
	}
	quote(all, quotes[:len(cancels)], quotes[len(cancels):])
	if len(rest.puts)+len(rest.deletes) > 0 && !rest.dryRun {
		if others, _, err = s.changeObjects(ctx, rest); err != nil {
			return nil, nil, onpath.Errorf(onpath.CodeOf(err),
				"the reservations are made, and the other objects are not: apply them again: %w", err)
		}
	}
	if !own.dryRun {
		s.log.Info("reservations changed", "by", rights.WhoIs(ctx).URI(), "objects", len(all), "first", all[0].change.Key)
	}
	return append(all, others...), nil, nil
}

// quote puts the pool's answers beside the changes, each list in their order.
func quote(all []changed, cancels, puts []onpath.Quote) {
	for i := range all {
		switch c := &all[i]; {
		case c.change.Object != nil:
			c.result.Quote, puts = &puts[0], puts[1:]
			if c.prev == nil && over(c.result.Quote.State) { // of a closed day
				c.result.Action, c.result.Diff = wire.Unchanged, nil
			}
		case c.prev != nil:
			c.result.Quote, cancels = &cancels[0], cancels[1:]
		}
	}
}

func over(s onpath.ReservationState) bool {
	return s == onpath.ReservationEnded || s == onpath.ReservationFailed || s == onpath.ReservationCancelled
}

// ended is a reservation of a closed day, where the store has none of its name.
func ended(ctx context.Context, past Past, k onpath.Key, err error) (onpath.Object, error) {
	if k.Kind != onpath.KindReservation || past == nil || onpath.CodeOf(err) != onpath.CodeNotFound {
		return nil, err
	}
	r, err := past.Ended(ctx, k)
	if err != nil {
		return nil, err
	}
	return r, nil
}

type moveInput struct {
	Tenant string `path:"tenant"`
	Name   string `path:"name"`
	Body   wire.Move
}

func (s *Server) registerReservations() {
	type capacityInput struct {
		Cloudlet string    `query:"cloudlet" doc:"only this one"`
		From     time.Time `query:"from" doc:"default now"`
		Until    time.Time `query:"until" doc:"default a day later"`
	}
	router.Register(s.router, router.Operation(http.MethodGet, "/v1/capacity", "capacity",
		"What nodes have, have promised and have free over time"),
		func(ctx context.Context, in *capacityInput) (*struct{ Body onpath.CapacityView }, error) {
			v, err := s.o.Pool.Capacity(in.Cloudlet, in.From, in.Until)
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
	s.registerAccounts()
}

// move finds the reservation of an instance, and has the pool move it.
func (s *Server) move(ctx context.Context, k onpath.Key, to string) (q onpath.Quote, err error) {
	o, err := s.o.Store.Get(ctx, k)
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
	return s.o.Pool.Move(context.WithoutCancel(ctx), onpath.Key{Kind: onpath.KindReservation, Tenant: tenant, Name: name}, i.Spec.Node, to)
}

// reservationOf is the reservation of a deployment, or of the short form that makes it.
func (s *Server) reservationOf(ctx context.Context, tenant, deployment string) (onpath.Ref, error) {
	o, err := s.o.Store.Get(ctx, onpath.Key{Kind: onpath.KindDeployment, Tenant: tenant, Name: deployment})
	if d, ok := o.(*onpath.Deployment); ok && err == nil {
		return d.Spec.Reservation, nil
	}
	if onpath.CodeOf(err) != onpath.CodeNotFound {
		return "", err
	}
	chains, _, err := s.o.Store.List(ctx, onpath.KindChain, tenant)
	for _, o := range chains {
		for _, e := range o.(*onpath.Chain).Spec.Through {
			if e.Function != "" && onpath.ShortDeployment(o.Meta().Name, e.Function) == deployment {
				return e.Reservation, nil
			}
		}
	}
	return "", err
}

// checkReservation refuses the name of a reservation that neither is there nor comes with
// the same request.
func (s *Server) checkReservation(o onpath.Object, puts []onpath.Object) error {
	var errs onpath.Errors
	check := func(field string, r onpath.Ref) {
		if r == "" || s.o.Pool == nil {
			return
		}
		tenant, name := r.Resolve(o.Meta().Tenant)
		k := onpath.Key{Kind: onpath.KindReservation, Tenant: tenant, Name: name}
		for _, p := range puts {
			if onpath.KeyOf(p) == k {
				return
			}
		}
		if !s.o.Pool.Exists(k) {
			errs = append(errs, &onpath.Error{Code: onpath.CodeNotFound, Field: field,
				Message: "there is no " + k.String(), Remedy: "apply it, or correct the name"})
		}
	}
	switch o := o.(type) {
	case *onpath.Deployment:
		check("spec.reservation", o.Spec.Reservation)
	case *onpath.Chain:
		for i, e := range o.Spec.Through {
			check(fieldAt("spec.through", i)+".reservation", e.Reservation)
		}
	}
	return errs.Err()
}
