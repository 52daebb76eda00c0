package pool

import (
	"slices"
	"time"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/control/ledger"
)

// doNext is the next step of what is due of a reservation, held, and what it costs; nil: it only
// begins soon.
func (a admission) doNext(e *entry) (*decision, map[string]*ledger.Book, error) {
	st, now := &e.obj.Status, a.now
	d := e.change()
	next := &d.obj.Status
	switch {
	case !st.End().IsZero() && !st.End().After(now):
		next.Holds = time.Time{}
		d.creditLost(next.End())
		books, err := a.accounting.payDecision(d, now)
		if err != nil {
			return nil, nil, err
		}
		next.Step(onpath.ReservationEnded, now, "its time is over")
		d.pay = nil
		a.holdDecision(d)
		return d, books, nil
	case st.State == onpath.ReservationConfirmed && !st.Begin().After(now):
		next.Step(onpath.ReservationActive, now, "")
	case st.End().IsZero() && !st.PaidUntil.After(now):
		return a.payNextHour(d)
	case !st.Holds.IsZero() && !st.Holds.After(now):
		next.Holds = time.Time{}
	default:
		left := false
		for i := range next.Places {
			if x := &next.Places[i]; x.Leaving != "" && !x.LeavingUntil.After(now) {
				x.Leaving, x.LeavingUntil, left = "", time.Time{}, true
			}
		}
		if !left { // it only begins soon
			return nil, nil, nil
		}
	}
	a.holdDecision(d)
	return d, nil, nil
}

// payNextHour pays the next hour of an open-ended reservation, slot by slot, or ends it.
func (a admission) payNextHour(d *decision) (*decision, map[string]*ledger.Book, error) {
	st, now := &d.obj.Status, a.now
	d.creditLost(now)
	paid := *st
	st.PaidUntil = st.PaidUntil.Add(hour)
	d.pay = slices.DeleteFunc(d.pay, func(pay payment) bool { // of hours that are over nothing is given back
		return !slices.ContainsFunc(pay.Segments, func(s onpath.PaidSegment) bool { return s.Until.After(now) })
	})
	n := len(st.Places)
	for _, x := range differences(paidFor(&paid), paidFor(st), n, n, paid.PaidUntil) {
		a.chargePart(d, x, now)
	}
	if err := a.accounting.reckonAmounts(d, now); err != nil {
		return nil, nil, err
	}
	books := map[string]*ledger.Book{}
	err := d.checkMaxPrice()
	if err == nil {
		err = a.accounting.chargeDecision(books, d)
	}
	if onpath.CodeOf(err) == onpath.CodeNoCapacity {
		d = d.old.change()
		d.creditLost(now)
		paid, payErr := a.accounting.payDecision(d, now)
		if payErr != nil {
			return nil, nil, payErr
		}
		books, d.pay = paid, nil
		d.obj.Status.Slots = spliced(d.obj.Status.Slots, nil, now)
		d.obj.Status.Step(onpath.ReservationEnded, now, err.Error())
	} else if err != nil {
		return nil, nil, err
	}
	a.holdDecision(d)
	return d, books, nil
}

// failWhole ends a reservation that cannot be kept, and credits what is not delivered: of each
// place since it was lost.
func (a admission) failWhole(d *decision, reason string) (map[string]*ledger.Book, error) {
	if err := a.closeLive(d, onpath.ReservationFailed, a.now, reason, onpath.PostingCompensation); err != nil {
		return nil, err
	}
	books := map[string]*ledger.Book{}
	if err := a.accounting.chargeDecision(books, d); err != nil {
		a.letDecisionsGo([]*decision{d})
		return nil, err
	}
	return books, nil
}
