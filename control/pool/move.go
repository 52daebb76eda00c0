package pool

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/plan/calendar"
)

// startTime is how long a moving instance may take to start elsewhere, beside its drain.
const startTime = 10 * time.Second

// mover is a place of a reservation that could move.
type mover struct {
	e     *entry
	place int
	use   Use
}

// makeRoom solves a scaling conflict (PacketCloud §3.5): place i of d does not fit on its
// node any more. The least disruptive set of instances there moves to the least loaded
// nodes of the cloudlet: such without state first, then by the time they take to drain,
// then by their flows. d grows once they are gone. Of other tenants' instances that run, no more
// move than mostDisplaced allows.
func (a admission) makeRoom(d *decision, i int, next []onpath.ReservationSlot, now time.Time) (found, bounded bool) {
	st := &d.obj.Status
	node, left, gone := st.Places[i].Node, d.mayDisplace, st.Holds
	var moved []*decision
	for _, m := range a.findMovers(d, i, node) {
		if m.e == d.old { // it moves itself
			if a.moveSelf(d, i, next, now, m.use) {
				a.letDecisionsGo(moved)
				return true, false
			}
			continue
		}
		if slices.ContainsFunc(moved, func(x *decision) bool { return x.old == m.e }) {
			continue // one instance of a reservation moves at a time
		}
		running := !m.e.obj.Status.Begin().After(now)
		others := running && m.e.key.Tenant != d.key.Tenant
		if others && left == 0 {
			bounded = true
			continue
		}
		x := a.moveAway(m, node, now)
		if x == nil {
			continue
		}
		if others {
			left--
			x.displacedBy, x.displacedAt = d.key.Tenant, now
			a.promises.displaced.note(x)
		}
		moved, a.touched[x.key] = append(moved, x), true
		gone = latest(gone, latest(now, x.obj.Status.Places[m.place].LeavingUntil))
		if z := end(next[len(next)-1].Until); !gone.Before(z) {
			break // it would be over by then
		}
		if slots := spliced(d.old.obj.Status.Slots, next, gone); a.promises.cal.Fits(node, booked(slots, now, calendar.Forever, 1)) {
			d.moved = append(d.moved, moved...)
			st.Slots, st.Holds, d.mayDisplace = slots, gone, left
			return true, false
		}
	}
	a.letDecisionsGo(moved)
	return false, bounded
}

// findMovers are the places on a node that could move, the least disruptive first.
func (a admission) findMovers(d *decision, i int, node string) []mover {
	var out []mover
	for k, e := range a.rows.entries {
		if !e.obj.Status.State.Live() || e != d.old && (a.rows.isBusy(k) || a.touched[k]) {
			continue
		}
		for j, x := range e.obj.Status.Places {
			busy := x.Leaving != "" || e.obj.Spec.Nodes > 0
			if x.Node != node || busy || e == d.old && j != i || slices.ContainsFunc(d.moved,
				func(m *decision) bool { return m.old == e }) {
				continue
			}
			out = append(out, mover{e: e, place: j, use: a.usedFor(k)})
		}
	}
	slices.SortFunc(out, func(a, b mover) int {
		return cmp.Or(first(a.use.Stateless, b.use.Stateless), cmp.Compare(a.use.Drain, b.use.Drain), cmp.Compare(a.use.Flows, b.use.Flows),
			cmp.Compare(a.e.key.String(), b.e.key.String()), cmp.Compare(a.place, b.place))
	})
	return out
}

func first(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return -1
	}
	return 1
}

// moveAway is the decision that a place moves to the least loaded node where it fits, held;
// nil if there is none.
func (a admission) moveAway(m mover, node string, now time.Time) *decision {
	st := &m.e.obj.Status
	to := a.promises.cal.LeastLoaded(st.Cloudlet, booked(st.Slots, now, calendar.Forever, 1), node)
	if to == "" {
		return nil
	}
	d := m.e.change()
	d.confirm = []string{to}
	x := &d.obj.Status.Places[m.place]
	x.Node = to
	if !st.Begin().After(now) { // something runs there
		x.Leaving, x.LeavingUntil = node, now.Add(m.use.Drain+startTime)
	}
	d.obj.Status.Step(st.State, now, fmt.Sprintf("moves from node %s to node %s", node, to))
	d.quote = quoteOf(d, st.State)
	a.holdDecision(d)
	return d
}

// moveSelf has the growing instance itself move. Its reservation is not in the calendar
// meanwhile.
func (a admission) moveSelf(d *decision, i int, next []onpath.ReservationSlot, now time.Time, use Use) bool {
	st := &d.obj.Status
	x := &st.Places[i]
	gone, old := now, booked(d.old.obj.Status.Slots, now, calendar.Forever, 1)
	running := !d.old.obj.Status.Begin().After(now)
	if running {
		gone = latest(now.Add(use.Drain+startTime), st.Holds)
	}
	slots := spliced(d.old.obj.Status.Slots, next, gone)
	if !running {
		slots = next
	}
	wanted, meanwhile, ends := booked(slots, now, calendar.Forever, 1), clip(old, gone), end(next[len(next)-1].Until)
	to := a.promises.cal.LeastLoaded(st.Cloudlet, wanted, x.Node)
	if to == "" || !gone.Before(ends) || running && !a.promises.cal.Fits(x.Node, meanwhile) {
		return false
	}
	st.Slots = slots
	if running {
		x.Leaving, x.LeavingUntil, st.Holds = x.Node, gone, gone
	}
	x.Node = to
	return true
}

// moveInstance has an instance of a reservation leave its node, and holds that.
func (a admission) moveInstance(k onpath.Key, from, to string) (*decision, error) {
	now, e := a.now, a.rows.entries[k]
	if e == nil || !e.obj.Status.State.Live() {
		return nil, onpath.Errorf(onpath.CodeNotFound, "it does not run")
	}
	st := &e.obj.Status
	i := slices.IndexFunc(st.Places, func(x onpath.ReservedPlace) bool { return x.Node == from && x.Leaving == "" })
	if i < 0 {
		return nil, onpath.Errorf(onpath.CodeConflict, "it has no instance on node %s that does not move already", from)
	}
	slots := booked(st.Slots, now, calendar.Forever, 1)
	if to != "" {
		if _, cl, _ := a.promises.cal.Room(to); cl != st.Cloudlet {
			return nil, onpath.Errorf(onpath.CodeInvalid,
				"cloudlet %s, where the reservation is, has no node %s", st.Cloudlet, to)
		}
		if !a.promises.cal.Fits(to, slots) {
			at, lack := a.promises.cal.Lack(to, slots)
			return nil, onpath.Errorf(onpath.CodeNoCapacity, "node %s lacks %s at %s", to, parts(lack), text(at))
		}
	}
	d := a.moveAway(mover{e: e, place: i, use: a.usedFor(k)}, from, now)
	if d == nil {
		return nil, onpath.Errorf(onpath.CodeNoCapacity, "no other node of cloudlet %s has room for it", st.Cloudlet)
	}
	if to != "" && d.obj.Status.Places[i].Node != to {
		a.promises.freePlaces(d.obj)
		d.obj.Status.Places[i].Node, d.confirm = to, []string{to}
		d.obj.Status.Steps = slices.Clone(st.Steps)
		d.obj.Status.Step(st.State, now, fmt.Sprintf("moves from node %s to node %s", from, to))
		d.quote = quoteOf(d, st.State)
		a.promises.bookPlaces(d.obj)
	}
	return d, nil
}

// finishMoves frees the places that instances have left before their time, and has the
// growth that waits for them begin.
func (p *Pool) finishMoves(ctx context.Context) {
	var leaving []onpath.Key
	p.queue.look(func(s *state) { leaving = sortedKeysOf(s.rows.leaving) })
	for _, k := range leaving {
		err := p.queue.commit(ctx, func(s *state) (j joining, err error) {
			if d := s.admission().leaveEarly(k); d != nil {
				j.held = []*decision{d}
			}
			return j, nil
		})
		if err != nil {
			p.log.Error("a move cannot be finished; it is tried on", "reservation", k, "err", err)
		}
	}
}

// leaveEarly frees the places of a reservation that its instances have left before their time,
// and holds that; nil: none has.
func (a admission) leaveEarly(k onpath.Key) *decision {
	e, now := a.rows.entries[k], a.now
	if e == nil || a.rows.isBusy(k) || a.use == nil {
		return nil
	}
	use := a.use(k)
	d := e.change()
	var grows []*decision
	left := false
	for i := range d.obj.Status.Places {
		x := &d.obj.Status.Places[i]
		if x.Leaving == "" || use.Nodes == nil || use.Nodes[x.Leaving] > 0 || use.Nodes[x.Node] == 0 {
			continue
		}
		left = true
		if e.obj.Status.Holds.Equal(x.LeavingUntil) {
			d.advance(now)
		}
		grows = append(grows, a.findWaiting(x.Leaving, x.LeavingUntil, k, now)...)
		x.Leaving, x.LeavingUntil = "", time.Time{}
	}
	if !left {
		return nil
	}
	a.holdDecision(d)
	for _, g := range grows {
		a.holdDecision(g)
	}
	d.moved = grows
	return d
}

// findWaiting are the decisions that reservations on a node grow now, that would at a later
// time.
func (a admission) findWaiting(node string, until time.Time, but onpath.Key, now time.Time) []*decision {
	var out []*decision
	for k, e := range a.rows.entries {
		st := &e.obj.Status
		if k == but || a.rows.isBusy(k) || !st.State.Live() || !st.Holds.Equal(until) || !slices.ContainsFunc(st.Places,
			func(x onpath.ReservedPlace) bool { return x.Node == node }) {
			continue
		}
		d := e.change()
		d.advance(now)
		out = append(out, d)
	}
	return out
}

// advance has the slot that begins at Holds begin now; the time until Holds costs nothing.
func (d *decision) advance(now time.Time) {
	st := &d.obj.Status
	was, holds := *st, st.Holds
	was.Slots = slices.Clone(st.Slots)
	for i := 1; i < len(st.Slots); i++ {
		if st.Slots[i].From.Equal(holds) && st.Slots[i-1].From.Before(now) && now.Before(holds) {
			st.Slots[i].From, st.Slots[i-1].Until = now, now
		}
	}
	st.Holds = time.Time{}
	d.pay = slices.Clone(d.pay)
	for _, x := range differences(paidFor(&was), paidFor(st), len(st.Places), len(st.Places), now) {
		d.pay = append(d.pay, payment{At: now, Begin: x.from, Prices: noList,
			Segments: []onpath.PaidSegment{{From: x.from, Until: x.until, Tiers: []onpath.Resources{x.more}}}})
	}
}
