package pool

import (
	"cmp"
	"container/heap"
	"context"
	"slices"
	"time"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/control/ledger"
	"github.com/onpath/onpath/store"
)

// agenda orders reservations by when something of them is due next.
type agenda []*entry

func (a agenda) Len() int           { return len(a) }
func (a agenda) Less(i, j int) bool { return a[i].due.Before(a[j].due) }
func (a agenda) Swap(i, j int) {
	a[i], a[j] = a[j], a[i]
	a[i].index, a[j].index = i, j
}

// Push implements heap.Interface.
func (a *agenda) Push(x any) {
	e := x.(*entry)
	e.index = len(*a)
	*a = append(*a, e)
}

// Pop implements heap.Interface.
func (a *agenda) Pop() any {
	e := (*a)[len(*a)-1]
	*a = (*a)[:len(*a)-1]
	e.index = -1
	return e
}

func (a *agenda) drop(e *entry) {
	if e.index >= 0 {
		heap.Remove(a, e.index)
	}
}

// plan notes when something of a reservation is due next, and whether the planner is to
// know of it now.
func (p *Pool) plan(e *entry) {
	soon := p.rows.schedule(e, p.o.Clock())
	p.board.show(onpath.KeyOf(e.obj), e.obj, soon)
	p.poke()
}

// publish has the planner see what was to be shown.
func (p *Pool) publish() {
	if p.board.publish() {
		p.o.Changed()
	}
}

// nextDue is when something of a live reservation is to be done, after now or at last.
func nextDue(st *onpath.ReservationStatus, now time.Time) (due time.Time) {
	if !st.State.Live() {
		return due
	}
	note := func(t time.Time) {
		if !t.IsZero() && (due.IsZero() || t.Before(due)) {
			due = t
		}
	}
	note(st.End())
	if st.State == onpath.ReservationConfirmed {
		note(st.Begin())
		if soon := st.Begin().Add(-Soon); soon.After(now) {
			note(soon)
		}
	}
	if st.End().IsZero() {
		note(st.PaidUntil)
	}
	note(st.Holds)
	for _, x := range st.Places {
		note(x.LeavingUntil)
	}
	return due
}

// Run does what is due until ctx ends.
func (p *Pool) Run(ctx context.Context) error {
	for ctx.Err() == nil {
		wait := p.Tick(ctx)
		timer := time.NewTimer(wait)
		select {
		case <-ctx.Done():
		case <-timer.C:
		case <-p.wake:
		}
		timer.Stop()
	}
	return nil
}

// look is how often moves are looked at, and longest wait of Run.
const look = time.Second

// Tick does what is due by now, and says how long nothing will be.
func (p *Pool) Tick(ctx context.Context) time.Duration {
	ctx = store.FollowUp(ctx)
	wait, held := p.doDue(ctx)
	if !held {
		p.relieve(ctx)
	}
	return wait
}

// doDue does what is due of reservations; held: nothing is decided now.
func (p *Pool) doDue(ctx context.Context) (wait time.Duration, held bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.takeUp()
	p.promises.tryRefused(p.clock())
	if p.broken {
		if err := p.load(ctx); err != nil {
			p.log.Error("reservations cannot be read; it is tried on", "err", err)
			return look, true
		}
	}
	if p.holdsStill() {
		p.finish()
		return look, true
	}
	p.tendOutages(ctx)
	p.finish()
	p.finishMoves(ctx)
	for !p.broken {
		now := p.clock()
		due := p.rows.agenda.due(now)
		if len(due) == 0 {
			break
		}
		if !p.doAll(ctx, due, now) {
			return look, p.broken
		}
	}
	if len(p.rows.agenda) == 0 || p.broken {
		return look, p.broken
	}
	return min(p.rows.agenda[0].due.Sub(p.clock()), look), false
}

// doAll is one step of what is due of some reservations, in as few transactions as may be.
// It is false if something has to be tried again.
func (p *Pool) doAll(ctx context.Context, due []*entry, now time.Time) bool {
	if slices.ContainsFunc(due, paysHourly) {
		p.mu.Unlock()
		list, err := p.priceList.readPrices(ctx)
		p.mu.Lock()
		if err != nil {
			p.log.Error("the price list cannot be read; it is tried on", "err", err)
			return false
		}
		p.accounting.usePrices(list)
	}
	done := true
	for _, e := range due {
		k := onpath.KeyOf(e.obj)
		p.awaitKeys(k)
		if p.broken {
			break
		}
		if p.rows.entries[k] != e {
			continue // changed meanwhile
		}
		if err := p.do(ctx, e, now); err != nil {
			p.log.Error("what is due of a reservation cannot be done; it is tried on", "reservation", k, "err", err)
			done = false
		}
	}
	return p.finish() && done
}

func paysHourly(e *entry) bool { return e.obj.Status.End().IsZero() }

// dueAtOnce bounds how long one step keeps others waiting.
const dueAtOnce = 500

// due are entries of which something is due, the earliest first.
func (a agenda) due(now time.Time) []*entry {
	var out []*entry
	at := []int{0}
	for len(at) > 0 && len(out) < dueAtOnce { // nothing below one that is not due is
		i := at[0]
		if at = at[1:]; i < len(a) && !a[i].due.After(now) {
			out = append(out, a[i])
			at = append(at, 2*i+1, 2*i+2)
		}
	}
	slices.SortFunc(out, func(x, y *entry) int {
		return cmp.Or(x.due.Compare(y.due), cmp.Compare(onpath.KeyOf(x.obj).String(), onpath.KeyOf(y.obj).String()))
	})
	return out
}

// do is one step of what is due of a reservation.
func (p *Pool) do(ctx context.Context, e *entry, now time.Time) error {
	st := &e.obj.Status
	d := &decision{key: onpath.KeyOf(e.obj), old: e, obj: copyOf(e.obj), pay: e.payments}
	next := &d.obj.Status
	switch {
	case !st.End().IsZero() && !st.End().After(now):
		next.Holds = time.Time{}
		d.creditLost(next.End())
		if err := p.accounting.reckonAmounts(d, now); err != nil {
			return err
		}
		books := map[string]*ledger.Book{}
		if err := p.accounting.chargeDecision(books, d); err != nil {
			return err
		}
		next.Step(onpath.ReservationEnded, now, "its time is over")
		d.pay = nil
		p.admission().holdDecision(d)
		return p.settleUp(ctx, d, books)
	case st.State == onpath.ReservationConfirmed && !st.Begin().After(now):
		next.Step(onpath.ReservationActive, now, "")
	case st.End().IsZero() && !st.PaidUntil.After(now):
		return p.payHour(ctx, d, now)
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
			p.plan(e)
			p.publish()
			return nil
		}
	}
	p.admission().holdDecision(d)
	return p.settleUp(ctx, d, nil)
}

// settling is a decision that is being written.
type settling struct {
	d *decision
	g *group
}

// settleUp has one decision that is held written; finish waits for it.
func (p *Pool) settleUp(ctx context.Context, d *decision, books map[string]*ledger.Book) error {
	g, err := p.join(ctx, joining{held: []*decision{d}, books: books, priced: d.charges(), list: p.accounting.prices.version})
	if err == nil {
		p.settled = append(p.settled, settling{d, g})
	}
	return err
}

// finish waits until what was settled is written. It is false if something was not.
func (p *Pool) finish() bool {
	list, all := p.settled, true
	p.settled = nil
	for _, x := range list {
		if err := p.await(x.g); err != nil {
			p.log.Error("what is decided on a reservation cannot be written; it is tried on", "reservation", x.d.key, "err", err)
			all = false
			continue
		}
		st := &x.d.obj.Status
		message := string(st.State)
		if st.Reason != "" {
			message += ": " + st.Reason
		}
		p.o.Tell(x.d.key, reasonOf(st.State), message, st.State == onpath.ReservationFailed || st.State == onpath.ReservationInterrupted)
	}
	return all
}

func reasonOf(s onpath.ReservationState) string {
	switch s {
	case onpath.ReservationActive:
		return "ReservationActive"
	case onpath.ReservationEnded:
		return "ReservationEnded"
	case onpath.ReservationFailed:
		return "ReservationFailed"
	case onpath.ReservationInterrupted:
		return "ReservationInterrupted"
	}
	return "ReservationChanged"
}

// payHour pays the next hour of an open-ended reservation, slot by slot, or ends it.
func (p *Pool) payHour(ctx context.Context, d *decision, now time.Time) error {
	st := &d.obj.Status
	d.creditLost(now)
	paid := *st
	st.PaidUntil = st.PaidUntil.Add(hour)
	d.pay = slices.DeleteFunc(d.pay, func(pay payment) bool { // of hours that are over nothing is given back
		return !slices.ContainsFunc(pay.Segments, func(s onpath.PaidSegment) bool { return s.Until.After(now) })
	})
	n := len(st.Places)
	for _, x := range differences(paidFor(&paid), paidFor(st), n, n, paid.PaidUntil) {
		p.admission().chargePart(d, x, now)
	}
	if err := p.accounting.reckonAmounts(d, now); err != nil {
		return err
	}
	books := map[string]*ledger.Book{}
	err := p.admission().checkMaxPrice(d)
	if err == nil {
		err = p.accounting.chargeDecision(books, d)
	}
	if onpath.CodeOf(err) == onpath.CodeNoCapacity {
		d = &decision{key: d.key, old: d.old, obj: copyOf(d.old.obj), pay: d.old.payments}
		d.creditLost(now)
		if err := p.accounting.reckonAmounts(d, now); err != nil {
			return err
		}
		books = map[string]*ledger.Book{}
		if err := p.accounting.chargeDecision(books, d); err != nil {
			return err
		}
		d.pay = nil
		d.obj.Status.Slots = spliced(d.obj.Status.Slots, nil, now)
		d.obj.Status.Step(onpath.ReservationEnded, now, err.Error())
	} else if err != nil {
		return err
	}
	p.admission().holdDecision(d)
	return p.settleUp(ctx, d, books)
}

// fail ends a reservation that cannot be kept, and credits what is not delivered: of each
// place since it was lost.
func (p *Pool) fail(ctx context.Context, d *decision, now time.Time, reason string) error {
	if err := p.admission().closeLive(d, onpath.ReservationFailed, now, reason, onpath.PostingCompensation); err != nil {
		return err
	}
	books := map[string]*ledger.Book{}
	if err := p.accounting.chargeDecision(books, d); err != nil {
		p.admission().letDecisionsGo([]*decision{d})
		return err
	}
	return p.settleUp(ctx, d, books)
}
