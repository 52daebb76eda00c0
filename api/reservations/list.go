package reservations

import (
	"context"
	"net/http"
	"time"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/api/rights"
	"github.com/onpath/onpath/api/router"
	"github.com/onpath/onpath/api/wire"
)

type reservationListInput struct {
	Tenant   string    `query:"tenant" doc:"only this tenant's; default all that you may see"`
	Cloudlet string    `query:"cloudlet" doc:"only those in this cloudlet"`
	From     time.Time `query:"from" doc:"only those that go on after this time"`
	Until    time.Time `query:"until" doc:"only those that begin before this time"`
	Limit    int       `query:"limit" minimum:"0" maximum:"1000" doc:"look at so many, and say where to go on; 0: list all"`
	Continue string    `query:"continue" doc:"what the page before said; it goes on as others write"`
}

func (s *Reservations) registerList() {
	router.Register(s.router, router.Operation(http.MethodGet, "/v1/reservations", "list-reservations", "List reservations, in pages"),
		func(ctx context.Context, in *reservationListInput) (*router.Body[wire.List[*onpath.Reservation]], error) {
			out, err := s.list(ctx, in)
			if err != nil {
				return nil, err
			}
			return router.NewBody(out), nil
		})
}

func (s *Reservations) list(ctx context.Context, in *reservationListInput) (out wire.List[*onpath.Reservation], err error) {
	if !in.From.IsZero() && !in.Until.IsZero() && !in.From.Before(in.Until) {
		return out, onpath.Errorf(onpath.CodeInvalid, "from=%s is not before until=%s",
			in.From.Format(time.RFC3339), in.Until.Format(time.RFC3339))
	}
	var list []onpath.Object
	if in.Limit > 0 {
		list, out.Continue, err = s.d.Store.ListPage(ctx, onpath.KindReservation, rights.ScopeTenant(ctx, in.Tenant), in.Continue, in.Limit)
	} else if in.Continue != "" {
		err = onpath.Errorf(onpath.CodeInvalid, "continue=%s: write limit too, as for the page before", in.Continue)
	} else {
		list, out.Revision, err = s.d.Store.List(ctx, onpath.KindReservation, rights.ScopeTenant(ctx, in.Tenant))
	}
	out.Items = make([]*onpath.Reservation, 0, len(list))
	for _, o := range list {
		if r := o.(*onpath.Reservation); in.chooses(r) {
			out.Items = append(out.Items, r)
		}
	}
	return out, err
}

// chooses reports whether a reservation is in the cloudlet and time that are asked for.
func (in *reservationListInput) chooses(r *onpath.Reservation) bool {
	st := &r.Status
	begin, end := st.Begin(), st.End()
	switch {
	case in.Cloudlet != "" && st.Cloudlet != in.Cloudlet,
		!in.From.IsZero() && !end.IsZero() && !end.After(in.From),
		!in.Until.IsZero() && !begin.Before(in.Until):
		return false
	}
	return true
}
