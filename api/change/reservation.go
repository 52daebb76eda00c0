package change

import (
	"context"
	"fmt"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/api/rights"
	"github.com/onpath/onpath/api/wire"
	"github.com/onpath/onpath/store"
)

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
func (s *writer) reserve(ctx context.Context, own, rest changeSet) ([]changed, *wire.Pending, error) {
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
	quotes, err := s.d.Pool.Apply(context.WithoutCancel(ctx), puts, cancels, own.dryRun)
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
		s.d.Log.Info("reservations changed", "by", rights.WhoIs(ctx).URI(), "objects", len(all), "first", all[0].change.Key)
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

// checkReservation refuses the name of a reservation that neither is there nor comes with
// the same request.
func (s *examiner) checkReservation(o onpath.Object, puts []onpath.Object) error {
	var errs onpath.Errors
	check := func(field string, r onpath.Ref) {
		if r == "" || s.d.Pool == nil {
			return
		}
		tenant, name := r.Resolve(o.Meta().Tenant)
		k := onpath.Key{Kind: onpath.KindReservation, Tenant: tenant, Name: name}
		for _, p := range puts {
			if onpath.KeyOf(p) == k {
				return
			}
		}
		if !s.d.Pool.Exists(k) {
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

func fieldAt(list string, i int) string { return fmt.Sprintf("%s[%d]", list, i) }

func over(s onpath.ReservationState) bool {
	return s == onpath.ReservationEnded || s == onpath.ReservationFailed || s == onpath.ReservationCancelled
}
