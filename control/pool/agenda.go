package pool

import (
	"container/heap"
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/control/ledger"
	"github.com/onpath/onpath/plan"
	"github.com/onpath/onpath/plan/calendar"
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
	k, now := onpath.KeyOf(e.obj), p.o.Clock()
	st := &e.obj.Status
	p.agenda.drop(e)
	soon := st.State.Live() && !st.Begin().Add(-Soon).After(now)
	p.show(k, e.obj, soon)
	delete(p.leaving, k)
	if slices.ContainsFunc(st.Places, func(x onpath.ReservedPlace) bool { return x.Leaving != "" }) {
		p.leaving[k] = true
	}
	if e.due = nextDue(st, now); !e.due.IsZero() {
		heap.Push(&p.agenda, e)
		p.poke()
	}
}

// show has the planner see a reservation, or not any more.
func (p *Pool) show(k onpath.Key, r *onpath.Reservation, soon bool) {
	p.view.Lock()
	defer p.view.Unlock()
	old := p.view.running[k]
	if soon == (old != nil) && (!soon || old.Reservation == r) {
		return
	}
	next := maps.Clone(p.view.running)
	delete(next, k)
	if soon {
		next[k] = &plan.Reserved{Reservation: r}
	}
	p.view.running = next
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

// run has the planner look at what runs.
func (p *Pool) run() { p.o.Changed() }

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
	p.mu.Lock()
	defer p.mu.Unlock()
	p.takeUp()
	for name := range p.refused {
		p.setNode(p.nodes[name])
	}
	if p.broken {
		if err := p.load(ctx); err != nil {
			p.log.Error("reservations cannot be read; it is tried on", "err", err)
			return look
		}
	}
	p.leaveGone(ctx)
	p.finishMoves(ctx)
	for len(p.agenda) > 0 && !p.broken {
		e, now := p.agenda[0], p.clock()
		if e.due.After(now) {
			return min(e.due.Sub(now), look)
		}
		if err := p.do(ctx, e, now); err != nil {
			p.log.Error("what is due of a reservation cannot be done; it is tried on", "reservation", onpath.KeyOf(e.obj), "err", err)
			return look
		}
	}
	return look
}

// do is one step of what is due of a reservation.
func (p *Pool) do(ctx context.Context, e *entry, now time.Time) error {
	st := &e.obj.Status
	d := &decision{key: onpath.KeyOf(e.obj), old: e, obj: onpath.Clone(e.obj), pay: e.payments}
	next := &d.obj.Status
	switch {
	case !st.End().IsZero() && !st.End().After(now):
		next.Holds = time.Time{}
		next.Step(onpath.ReservationEnded, now, "its time is over")
		d.pay = nil
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
			p.run()
			return nil
		}
	}
	p.swap(d)
	return p.settleUp(ctx, d, nil)
}

// settleUp writes one decision that is held.
func (p *Pool) settleUp(ctx context.Context, d *decision, books map[string]*ledger.Book) error {
	err := p.commit(ctx, []*decision{d}, books)
	if err != nil {
		p.letGo([]*decision{d})
		return err
	}
	p.o.Tell(d.key, reasonOf(d.obj.Status.State), fmt.Sprintf("%s: %s", d.obj.Status.State, d.obj.Status.Reason),
		d.obj.Status.State == onpath.ReservationFailed)
	return nil
}

func reasonOf(s onpath.ReservationState) string {
	switch s {
	case onpath.ReservationActive:
		return "ReservationActive"
	case onpath.ReservationEnded:
		return "ReservationEnded"
	case onpath.ReservationFailed:
		return "ReservationFailed"
	}
	return "ReservationChanged"
}

// payHour pays the next hour of an open-ended reservation, or ends it.
func (p *Pool) payHour(ctx context.Context, d *decision, now time.Time) error {
	list, err := p.readPrices(ctx)
	if err != nil {
		return err
	}
	p.prices = list
	st := &d.obj.Status
	x := part{st.PaidUntil, st.PaidUntil.Add(hour), multiply(capacityAt(st.Slots, st.PaidUntil), len(st.Places)), onpath.Resources{}}
	st.PaidUntil = x.until
	d.pay = slices.DeleteFunc(slices.Clone(d.pay), func(pay payment) bool { // of hours that are over nothing is given back
		return !slices.ContainsFunc(pay.Segments, func(s onpath.PaidSegment) bool { return s.Until.After(now) })
	})
	p.chargePart(d, x, now)
	books := map[string]*ledger.Book{}
	if err := p.reckon(d, now); err != nil {
		return err
	}
	if err := p.charge(books, d); onpath.CodeOf(err) == onpath.CodeNoRoom {
		d = &decision{key: d.key, old: d.old, obj: onpath.Clone(d.old.obj)}
		d.obj.Status.Slots = spliced(d.obj.Status.Slots, nil, now)
		d.obj.Status.Step(onpath.ReservationEnded, now, err.Error())
		books = nil
	} else if err != nil {
		return err
	}
	p.swap(d)
	return p.settleUp(ctx, d, books)
}

// leaveGone moves what nodes that are gone have promised to nodes where it fits, or has
// it fail; the time that was not delivered is credited.
func (p *Pool) leaveGone(ctx context.Context) {
	now, gone := p.clock(), false
	for _, n := range p.nodes {
		gone = gone || n.Gone && p.cal.Peak(n.Name, now, calendar.Forever) != (onpath.Resources{})
	}
	if !gone {
		return
	}
	for _, k := range sortedKeysOf(p.entries) {
		e := p.entries[k]
		if p.broken || !e.obj.Status.State.Live() || !slices.ContainsFunc(e.obj.Status.Places,
			func(x onpath.ReservedPlace) bool { return p.nodes[x.Node].Gone }) {
			continue
		}
		if err := p.rescue(ctx, e, now); err != nil {
			p.log.Error("a reservation of a node that is gone cannot be moved; it is tried on", "reservation", k, "err", err)
		}
	}
}

func (p *Pool) rescue(ctx context.Context, e *entry, now time.Time) error {
	d := &decision{key: onpath.KeyOf(e.obj), old: e, obj: onpath.Clone(e.obj), pay: e.payments}
	st := &d.obj.Status
	slots := booked(st.Slots, now, calendar.Forever, 1)
	var tried []calendar.Booking
	free := func() {
		for _, b := range tried {
			p.cal.Free(b)
		}
	}
	var words string
	lost := 0
	since := now
	for i := range st.Places {
		x := &st.Places[i]
		n := p.nodes[x.Node]
		if !n.Gone {
			continue
		}
		lost++
		since = earliest(since, n.Since)
		to := p.cal.Place(st.Cloudlet, slots, 1, false)
		if to == nil {
			free()
			return p.fail(ctx, e, now, fmt.Sprintf("node %s is gone, and no other of cloudlet %s has room", x.Node, st.Cloudlet), since)
		}
		b := calendar.Booking{Node: to[0], Slots: slots}
		p.cal.Book(b)
		tried = append(tried, b)
		words = fmt.Sprintf("node %s is gone: moved to node %s", x.Node, to[0])
		x.Node, x.Leaving, x.LeavingUntil = to[0], "", time.Time{}
	}
	free()
	st.Step(st.State, now, words)
	books := map[string]*ledger.Book{}
	if err := p.compensate(d, since, now, lost); err != nil {
		return err
	}
	if err := p.charge(books, d); err != nil {
		return err
	}
	p.swap(d)
	return p.settleUp(ctx, d, books)
}

// fail ends a reservation that cannot be kept, and credits what is not delivered.
func (p *Pool) fail(ctx context.Context, e *entry, now time.Time, reason string, since time.Time) error {
	d := &decision{key: onpath.KeyOf(e.obj), old: e, obj: onpath.Clone(e.obj)}
	if err := p.closeFrom(d, onpath.ReservationFailed, now, earliest(since, now), reason, onpath.PostingCompensation); err != nil {
		return err
	}
	books := map[string]*ledger.Book{}
	if err := p.charge(books, d); err != nil {
		p.letGo([]*decision{d})
		return err
	}
	return p.settleUp(ctx, d, books)
}

// compensate credits some instances' part of a time that is over.
func (p *Pool) compensate(d *decision, from, until time.Time, instances int) error {
	st := &d.obj.Status
	for _, s := range booked(paidFor(st), from, until, instances) {
		p.giveBack(d, part{s.From, s.Until, onpath.Resources{}, s.Capacity}, onpath.PostingCompensation)
	}
	return p.reckon(d, until)
}
