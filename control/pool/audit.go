package pool

import (
	"fmt"
	"time"

	"github.com/onpath/onpath"
)

// findMisbilled compares what live reservations have paid for with their calendar, from a time on:
// what is paid and not promised, and what is promised and not paid. It says of each
// reservation the first instant that is wrong.
func (r *rows) findMisbilled(now time.Time) (wrong []string) {
	for _, k := range sortedKeysOf(r.entries) {
		e := r.entries[k]
		st := &e.obj.Status
		if !st.State.Live() || r.pending[k] != nil {
			continue
		}
		slots, from := paidFor(st), latest(now, e.decided())
		for _, at := range paidEdges(slots, e.payments, from) {
			paid, promised := paidAt(e.payments, at), multiply(capacityAt(slots, at), len(st.Places))
			if paid == promised {
				continue
			}
			wrong = append(wrong, fmt.Sprintf("reservation %s/%s has paid for %s at %s, its calendar has %s",
				k.Tenant, k.Name, amount(paid), text(at), amount(promised)))
			break
		}
	}
	return wrong
}

// fillUnpaid notes what a reservation was promised without a price list: an older version
// noted nothing of that.
func (e *entry) fillUnpaid() {
	st := &e.obj.Status
	if !st.State.Live() || len(e.payments) > 0 || st.Paid > 0 {
		return
	}
	for _, s := range paidFor(st) {
		e.payments = append(e.payments, payment{At: s.From, Begin: s.From, Prices: noList, Segments: []onpath.PaidSegment{{
			From: s.From, Until: s.Until, Tiers: []onpath.Resources{multiply(s.Capacity, len(st.Places))}}}})
	}
}

// decided is when something was last decided on a reservation. Where the clock was set back
// since, that lies ahead, and what is paid until then was decided for a time that comes twice.
func (e *entry) decided() (at time.Time) {
	for _, x := range e.obj.Status.Steps {
		at = latest(at, x.At)
	}
	for _, pay := range e.payments {
		at = latest(at, pay.At)
	}
	return at
}
