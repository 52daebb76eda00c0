package pool

import (
	"bytes"
	"encoding/json"
	"maps"
	"slices"
	"time"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/plan/calendar"
)

// mostSlots bounds what was promised and is, so that a reservation that is changed on and on
// stays small enough to be stored, and quick to decide on.
const mostSlots = onpath.MaxSlots + 100

// identify gives next the identity that the store knows.
func identify(next, old *onpath.Reservation) {
	m, o := &next.Metadata, old.Metadata
	m.UID, m.Version, m.Generation, m.Created = o.UID, o.Version, o.Generation, o.Created
}

// changeLive decides on another request for a live reservation: it grows or is cut from now
// on, later slots change, it ends sooner or later.
func (a admission) changeLive(e *entry, r *onpath.Reservation, now time.Time) (*decision, error) {
	k := onpath.KeyOf(r)
	if sameRequest(e.obj, r) {
		d := &decision{key: k, old: e, obj: e.obj, same: true}
		d.quote = quoteOf(d, e.obj.Status.State)
		return d, nil
	}
	old := &e.obj.Status
	next := slotsOf(&r.Spec, old.Begin())
	if err := changeable(e.obj, r, next, now); err != nil {
		return nil, err
	}
	if r.Spec.Nodes > 0 {
		next[0].Capacity = old.Slots[0].Capacity
	}
	d := &decision{key: k, old: e, obj: copyOf(r)}
	identify(d.obj, e.obj)
	d.obj.Status = copyOf(e.obj).Status
	st := &d.obj.Status
	from := now
	if old.Begin().After(now) {
		st.Slots = next
	} else {
		st.Slots = spliced(old.Slots, next, now)
	}
	if len(st.Slots) > mostSlots {
		e := onpath.Errorf(onpath.CodeInvalid, "it has changed too often: it would have %d slots, at most %d", len(st.Slots), mostSlots)
		e.Remedy = "cancel it, and make another"
		return nil, e
	}
	d.pay = e.payments
	d.creditLost(now)
	slices.SortStableFunc(st.Places, func(a, b onpath.ReservedPlace) int { // of fewer instances the lost ones go
		switch {
		case a.Lost.IsZero() == b.Lost.IsZero():
			return 0
		case a.Lost.IsZero():
			return -1
		}
		return 1
	})
	if err := a.findPlaces(d, next, from); err != nil {
		return nil, err
	}
	if err := a.settlePayments(d, now); err != nil {
		a.letDecisionsGo(d.moved)
		return nil, err
	}
	st.Step(stateOf(st, now), now, "changed")
	d.quote = quoteOf(d, onpath.ReservationQuoted)
	d.quote.Holds = st.Holds
	if err := a.checkMaxPrice(d); err != nil {
		a.letDecisionsGo(d.moved)
		return nil, err
	}
	a.holdDecision(d)
	return d, nil
}

func sameRequest(a, b *onpath.Reservation) bool {
	same := func(s, t onpath.ReservationSlot) bool {
		return s.From.Equal(t.From) && s.Until.Equal(t.Until) && s.Capacity == t.Capacity
	}
	if !slices.EqualFunc(a.Spec.Slots, b.Spec.Slots, same) {
		return false
	}
	s, t := a.Spec, b.Spec
	s.Slots, t.Slots = nil, nil
	x, _ := json.Marshal(s)
	y, _ := json.Marshal(t)
	return bytes.Equal(x, y) && maps.Equal(a.Metadata.Labels, b.Metadata.Labels)
}

// changeable refuses what no live reservation can become.
func changeable(old, r *onpath.Reservation, next []onpath.ReservationSlot, now time.Time) error {
	refuse := func(field, remedy, format string, args ...any) error {
		e := onpath.Errorf(onpath.CodeInvalid, format, args...)
		e.Field, e.Remedy = field, remedy
		return e
	}
	anew := "cancel it, and make another"
	s, was := &r.Spec, &old.Spec
	begun := !old.Status.Begin().After(now)
	switch {
	case s.Cloudlet != was.Cloudlet && s.Cloudlet != old.Status.Cloudlet:
		return refuse("spec.cloudlet", anew, "it is in cloudlet %s", old.Status.Cloudlet)
	case s.Near != was.Near && s.Near.IsValid():
		return refuse("spec.near", anew, "where a reservation is cannot be changed")
	case s.Nodes != was.Nodes:
		return refuse("spec.nodes", anew, "machines cannot be added or given back one by one")
	case begun && !next[0].From.Equal(old.Status.Begin()):
		return refuse("spec.from", "leave it as it is", "it has begun at %s", text(old.Status.Begin()))
	case !begun:
		return notPast(s, next, now)
	}
	if z := next[len(next)-1].Until; !z.IsZero() && !z.After(now) {
		return refuse("spec.until", "delete it, which cancels it", "%s is past", text(z))
	}
	return nil
}

// findPlaces finds nodes for what a live reservation becomes: it stays where it is if that
// fits; if not, others make room, or it moves. What d makes of others is held.
func (a admission) findPlaces(d *decision, next []onpath.ReservationSlot, now time.Time) (err error) {
	st := &d.obj.Status
	instances := max(d.obj.Spec.Instances, d.obj.Spec.Nodes)
	st.Places = slices.Clone(st.Places)
	if len(st.Places) > instances {
		st.Places = st.Places[:instances]
	}
	a.promises.freePlaces(d.old.obj)
	defer a.promises.bookPlaces(d.old.obj)
	var tried []calendar.Booking
	defer func() {
		for _, b := range tried {
			a.promises.cal.Free(b)
		}
		if err != nil {
			a.letDecisionsGo(d.moved)
		}
	}()
	try := func(b calendar.Booking) {
		a.promises.cal.Book(b)
		tried = append(tried, b)
	}
	for i := range st.Places {
		x := &st.Places[i]
		if x.Leaving != "" && !a.promises.canStay(x.Leaving, booked(st.Slots, now, x.LeavingUntil, 1), d.old.obj, now) {
			e := onpath.Errorf(onpath.CodeNoCapacity, "an instance of it leaves node %s until %s, and cannot grow there",
				x.Leaving, text(x.LeavingUntil))
			e.Remedy = "ask again then"
			return e
		}
		if x.Leaving != "" { // before others make room: none may move there
			try(calendar.Booking{Node: x.Leaving, Slots: booked(st.Slots, now, x.LeavingUntil, 1)})
		}
	}
	for i := range st.Places {
		x := &st.Places[i]
		stays := x.Leaving == ""
		slots := booked(st.Slots, now, calendar.Forever, 1)
		if !a.promises.canStay(x.Node, slots, d.old.obj, now) {
			if err := a.makeRoom(d, i, next, now); err != nil {
				return err
			}
			slots = booked(st.Slots, now, calendar.Forever, 1)
		}
		try(calendar.Booking{Node: x.Node, Slots: slots})
		if x.Leaving != "" && stays { // it moves itself
			try(calendar.Booking{Node: x.Leaving, Slots: booked(st.Slots, now, x.LeavingUntil, 1)})
		}
		if !a.promises.nodes[x.Node].Gone { // which cannot answer, and keeps what it has
			d.confirm = append(d.confirm, x.Node)
		}
	}
	for len(st.Places) < instances {
		slots := booked(st.Slots, now, calendar.Forever, 1)
		more := a.promises.cal.Place(st.Cloudlet, slots, 1, d.obj.Spec.Nodes > 0)
		if more == nil {
			return a.promises.explainRefusal(d.obj, spliced(nil, st.Slots, now), []string{st.Cloudlet})
		}
		try(calendar.Booking{Node: more[0], Slots: slots})
		st.Places = append(st.Places, onpath.ReservedPlace{Node: more[0]})
		d.confirm = append(d.confirm, more[0])
	}
	return nil
}

// cancelOne decides on the end of a live reservation; of one that is over, nothing is left.
func (a admission) cancelOne(k onpath.Key) (*decision, error) {
	e, now := a.rows.entries[k], a.now
	if e == nil {
		err := onpath.Errorf(onpath.CodeNotFound, "it does not exist")
		err.Object = k.String()
		return nil, err
	}
	d := &decision{key: k, old: e, obj: copyOf(e.obj), pay: e.payments}
	if !e.obj.Status.State.Live() {
		d.gone = true
		d.quote = quoteOf(d, e.obj.Status.State)
		return d, nil
	}
	err := a.closeLive(d, onpath.ReservationCancelled, now, "cancelled by request", onpath.PostingRefund)
	return d, about(k, err)
}

// closeLive ends a live reservation now, and gives back what is due of the rest; d.pay is what
// is paid.
func (a admission) closeLive(d *decision, state onpath.ReservationState, now time.Time, reason string, back onpath.PostingKind) error {
	st := &d.obj.Status
	d.creditLost(now)
	for _, x := range differences(paidFor(st), nil, len(st.Places), 0, now) {
		d.giveBack(x, back)
	}
	st.Slots = spliced(st.Slots, nil, now)
	for i := range st.Places {
		st.Places[i].Leaving, st.Places[i].LeavingUntil = "", time.Time{}
	}
	st.Holds = time.Time{}
	if err := a.accounting.reckonAmounts(d, now); err != nil {
		return err
	}
	st.Step(state, now, reason)
	d.quote = quoteOf(d, state)
	a.holdDecision(d)
	return nil
}
