package pool

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/plan/calendar"
)

// decision is one reservation's next state, held in the calendar until it is written or
// let go.
type decision struct {
	key   onpath.Key
	old   *entry // nil: it is new
	obj   *onpath.Reservation
	pay   []payment
	quote onpath.Quote
	// moved are others' reservations that make room.
	moved []*decision
	// confirm are the nodes that promise more than before.
	confirm []string
	// same: nothing changes. gone: the object goes.
	same, gone bool
	// postings for the account, in order.
	postings []onpath.Posting
	// displacedBy is the tenant whose reservation an instance of another one makes room for.
	displacedBy string
	displacedAt time.Time
	// mayDisplace is how many running instances of others may make room for it; from displaceAgain
	// on one more may.
	mayDisplace   int
	displaceAgain time.Time
}

// change is a decision by which nothing of a reservation is different yet.
func (e *entry) change() *decision {
	return &decision{key: e.key, old: e, obj: copyOf(e.obj), pay: e.payments}
}

// changeTo is one by which a reservation has another specification.
func (e *entry) changeTo(r *onpath.Reservation) *decision {
	d := e.change()
	status := d.obj.Status
	d.obj = copyOf(r)
	identify(d.obj, e.obj)
	d.obj.Status = status
	return d
}

// asItIs is a decision by which a reservation stays as it is.
func (e *entry) asItIs() *decision {
	d := &decision{key: e.key, old: e, obj: e.obj, same: true}
	d.quote = quoteOf(d, e.obj.Status.State)
	return d
}

// copyOf is a copy whose status may be changed; the rest is not changed in place.
func copyOf(r *onpath.Reservation) *onpath.Reservation {
	c := *r
	st := &c.Status
	st.Steps, st.Places = slices.Clone(st.Steps), slices.Clone(st.Places)
	st.Slots, st.Notes = slices.Clone(st.Slots), slices.Clone(st.Notes)
	return &c
}

// identify gives next the identity that the store knows.
func identify(next, old *onpath.Reservation) {
	m, o := &next.Metadata, old.Metadata
	m.UID, m.Version, m.Generation, m.Created = o.UID, o.Version, o.Generation, o.Created
}

// leftAlone is what becomes of a request for what is over already.
func leftAlone(e *entry) *decision {
	d := e.asItIs()
	note := fmt.Sprintf("it is %s and left as it is; write other times to reserve again", e.obj.Status.State)
	d.quote.Notes = append(slices.Clip(d.quote.Notes), note)
	return d
}

func quoteOf(d *decision, state onpath.ReservationState) onpath.Quote {
	st := &d.obj.Status
	return onpath.Quote{Reservation: d.key.Tenant + "/" + d.key.Name, State: state, Reason: st.Reason,
		Cloudlet: st.Cloudlet, Places: st.Places, Notes: st.Notes}
}

// stateOf is a live reservation's state by its time and its places.
func stateOf(st *onpath.ReservationStatus, now time.Time) onpath.ReservationState {
	switch {
	case slices.ContainsFunc(st.Places, func(x onpath.ReservedPlace) bool { return !x.Lost.IsZero() }):
		return onpath.ReservationInterrupted
	case st.Begin().After(now):
		return onpath.ReservationConfirmed
	}
	return onpath.ReservationActive
}

// flat are decisions with those that make room for them.
func flat(held []*decision) (out []*decision) {
	for _, d := range held {
		out = append(out, d.moved...)
		if !d.same {
			out = append(out, d)
		}
	}
	return out
}

// charges reports whether something is paid by the price list of now.
func (d *decision) charges() bool {
	return slices.ContainsFunc(d.postings, func(x onpath.Posting) bool { return x.Kind == onpath.PostingCharge })
}

// due is what a decision has to be paid, given back what it gives back.
func (d *decision) due() (sum onpath.Money) {
	for _, x := range d.postings {
		if x.Kind == onpath.PostingCharge {
			sum += x.Amount
		}
	}
	return sum
}

// holdDecision holds what d decides in the calendar, instead of what was promised before.
func (a admission) holdDecision(d *decision) {
	if d.old != nil {
		a.promises.freePlaces(d.old.obj)
	}
	a.promises.bookPlaces(d.obj)
}

// letDecisionsGo takes decisions back, the last first.
func (a admission) letDecisionsGo(held []*decision) {
	for i := len(held) - 1; i >= 0; i-- {
		d := held[i]
		if d.same || d.gone {
			continue
		}
		a.promises.freePlaces(d.obj)
		if d.old != nil {
			a.promises.bookPlaces(d.old.obj)
		}
		a.promises.displaced.takeBack(d)
		a.letDecisionsGo(d.moved)
	}
}

// bookPlaces books what a reservation promises.
func (p *promises) bookPlaces(r *onpath.Reservation) { p.eachBooking(r, p.cal.Book, p.tenants.Book) }

// freePlaces frees what enter booked.
func (p *promises) freePlaces(r *onpath.Reservation) { p.eachBooking(r, p.cal.Free, p.tenants.Free) }

func (p *promises) eachBooking(r *onpath.Reservation, node, tenant func(calendar.Booking)) {
	st := &r.Status
	if !st.State.Live() {
		return
	}
	slots := whole(st.Slots)
	for _, x := range st.Places {
		node(calendar.Booking{Node: x.Node, Slots: slots})
		if x.Leaving != "" {
			node(calendar.Booking{Node: x.Leaving, Slots: booked(st.Slots, time.Time{}, x.LeavingUntil, 1)})
		}
	}
	for _, cl := range []string{st.Cloudlet, ""} { // "": all together
		name := tenantNode(cmp.Or(r.Metadata.Tenant, onpath.DefaultTenant), cl)
		if _, _, known := p.tenants.Room(name); !known {
			p.tenants.SetNode(name, name, onpath.Resources{}, true)
		}
		tenant(calendar.Booking{Node: name, Slots: booked(st.Slots, time.Time{}, calendar.Forever, len(st.Places))})
	}
}

func tenantNode(tenant, cloudlet string) string { return tenant + "/" + cloudlet }

// So many running instances of other tenants move at most within a time so that the
// reservations of one tenant can grow.
const (
	mostDisplaced   = 10
	displacedWithin = time.Hour
)

// displaced are the times at which instances made room for other tenants, by the tenant whose
// reservation grew.
type displaced map[string][]time.Time

// left is how many more instances of others may move for a tenant; next is from when on one
// more may.
func (d displaced) left(tenant string, now time.Time) (n int, next time.Time) {
	d[tenant] = slices.DeleteFunc(d[tenant], func(at time.Time) bool { return now.Sub(at).Abs() >= displacedWithin })
	if len(d[tenant]) == 0 {
		delete(d, tenant)
		return mostDisplaced, now
	}
	return mostDisplaced - len(d[tenant]), d[tenant][0].Add(displacedWithin)
}

// note counts a decision that makes room.
func (d displaced) note(x *decision) {
	if x.displacedBy != "" {
		d[x.displacedBy] = append(d[x.displacedBy], x.displacedAt)
	}
}

// takeBack forgets a decision that is let go.
func (d displaced) takeBack(x *decision) {
	if i := slices.IndexFunc(d[x.displacedBy], x.displacedAt.Equal); i >= 0 {
		d[x.displacedBy] = slices.Delete(d[x.displacedBy], i, i+1)
	}
}

// about has an error say which reservation it is of.
func about(k onpath.Key, err error) error {
	var e *onpath.Error
	if errors.As(err, &e) && e.Object == "" {
		c := *e
		c.Object = k.String()
		return &c
	}
	return err
}

// checkMaxPrice refuses a decision by which its reservation costs more than maxPrice: all that
// it has paid, or of an open-ended one, what is paid for an hour ahead.
func (d *decision) checkMaxPrice() error {
	st := &d.obj.Status
	limit, due := d.obj.Spec.MaxPrice, d.due()
	if !st.End().IsZero() {
		due += st.Paid - st.Refunded
	}
	if limit == nil || due <= *limit {
		return nil
	}
	e := onpath.Errorf(onpath.CodeNoCapacity, "declined: %s %s is to be paid, more than maxPrice %s", due, st.Currency, *limit)
	e.Field, e.Remedy = "spec.maxPrice", "raise it, or ask for less"
	return e
}
