package pool

import (
	"slices"
	"time"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/plan/calendar"
)

// mostSlots bounds what was promised and is, so that a reservation that is changed on and on
// stays small enough to be stored, and quick to decide on.
const mostSlots = onpath.MaxSlots + 100

// changeLive decides on another request for a live reservation: it grows or is cut from now
// on, later slots change, it ends sooner or later.
func (a admission) changeLive(e *entry, r demand, t terms, now time.Time) (*decision, error) {
	if t.same {
		return e.asItIs(), nil
	}
	if t.refused != nil {
		return nil, t.refused
	}
	old, next := &e.obj.Status, t.slots
	if r.obj.Spec.Nodes > 0 {
		next[0].Capacity = old.Slots[0].Capacity
	}
	d := e.changeTo(r.obj)
	d.mayDisplace, d.displaceAgain = a.promises.displaced.left(r.key.Tenant, now)
	st := &d.obj.Status
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
	if err := a.findPlaces(d, next, now); err != nil {
		return nil, err
	}
	if err := a.settlePayments(d, now); err != nil {
		a.letDecisionsGo(d.moved)
		return nil, err
	}
	st.Step(stateOf(st, now), now, "changed")
	d.quote = quoteOf(d, onpath.ReservationQuoted)
	d.quote.Holds = st.Holds
	if err := d.checkMaxPrice(); err != nil {
		a.letDecisionsGo(d.moved)
		return nil, err
	}
	a.holdDecision(d)
	return d, nil
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
	canStay := func(node string, slots []calendar.Slot) bool { return a.promises.canStay(node, slots, d.old.obj, now) }
	refusal := func(node string) error { // node: where others made room as often as they have to
		if node != "" {
			return tooManyDisplaced(d, node)
		}
		return a.promises.explainRefusal(d.obj, spliced(nil, st.Slots, now), []string{st.Cloudlet})
	}
	for i := range st.Places {
		x := &st.Places[i]
		if x.Leaving != "" && !canStay(x.Leaving, booked(st.Slots, now, x.LeavingUntil, 1)) {
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
		if !canStay(x.Node, slots) {
			switch found, bounded := a.makeRoom(d, i, next, now); {
			case bounded:
				return refusal(x.Node)
			case !found:
				return refusal("")
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
			return refusal("")
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
	d := e.change()
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

// canStay reports whether an instance can stay on its node: it fits, or is nowhere more
// than it was.
func (p *promises) canStay(node string, slots []calendar.Slot, old *onpath.Reservation, now time.Time) bool {
	if p.cal.Fits(node, slots) {
		return true
	}
	for _, s := range slots {
		for _, x := range differences(old.Status.Slots, []onpath.ReservationSlot{{From: s.From, Until: s.Until,
			Capacity: s.Capacity}}, 1, 1, latest(s.From, now)) {
			if x.more != (onpath.Resources{}) && x.from.Before(s.Until) {
				return false
			}
		}
	}
	return true
}
