package pool

import (
	"slices"
	"strings"
	"time"

	"github.com/onpath/onpath"
)

// admission decides on reservations: by what is promised, stored and paid, a request and the
// time. It writes nothing, and asks nobody.
type admission struct {
	promises   *promises
	rows       *rows
	accounting *accounting
	use        func(reservation onpath.Key) Use // nil: unknown
	now        time.Time
	// touched are the reservations that the request names, and those that make room for them.
	touched map[onpath.Key]bool
}

// usedFor is what a reservation is used for.
func (a admission) usedFor(k onpath.Key) (u Use) {
	if a.use != nil {
		u = a.use(k)
	}
	return u
}

// decideAll decides one after the other, and holds all or nothing.
func (a admission) decideAll(puts []demand, cancels []onpath.Key) (held []*decision, err error) {
	take := func(d *decision, err error) error {
		if err != nil {
			a.letDecisionsGo(held)
			return err
		}
		held = append(held, d)
		return nil
	}
	for _, k := range cancels {
		if err := take(a.cancelOne(k)); err != nil {
			return nil, err
		}
	}
	for _, r := range puts {
		if err := take(a.decideOne(r)); err != nil {
			return nil, err
		}
	}
	return held, nil
}

// decideOne finds what becomes of a request, and holds it in the calendar.
func (a admission) decideOne(r demand) (d *decision, err error) {
	old := a.rows.entries[r.key]
	if t := r.readTerms(old, a.now); old != nil && old.obj.Status.State.Live() {
		d, err = a.changeLive(old, r, t, a.now)
	} else {
		d, err = a.admitNew(old, r, t, a.now)
	}
	return d, about(r.key, err)
}

// admitNew finds a place for a new reservation, also where the one of its name is over.
func (a admission) admitNew(old *entry, asked demand, t terms, now time.Time) (*decision, error) {
	if t.refused != nil && t.same { // a file that is applied again
		return leftAlone(old), nil
	}
	if t.refused != nil {
		return nil, t.refused
	}
	r, slots := asked.obj, t.slots
	order, notes, err := a.promises.orderCloudlets(&r.Spec)
	if err != nil {
		return nil, err
	}
	for _, cl := range order {
		nodes, fitted := a.promises.choosePlaces(cl, slots, &r.Spec)
		if nodes == nil {
			continue
		}
		d := &decision{key: asked.key, old: old, obj: copyOf(r), confirm: nodes}
		if old != nil {
			identify(d.obj, old.obj)
		}
		st := &d.obj.Status
		*st = onpath.ReservationStatus{Cloudlet: cl, Slots: fitted, Notes: notes}
		for _, n := range nodes {
			st.Places = append(st.Places, onpath.ReservedPlace{Node: n})
		}
		st.Step(onpath.ReservationRequested, now, "")
		st.Step(onpath.ReservationConfirmed, now, "on "+strings.Join(unique(nodes), ", "))
		if capacityOf(fitted).Disk > 0 {
			st.Notes = append(st.Notes, "disk is counted and paid for, and limited when a node's disk is full")
		}
		if err := a.settlePayments(d, now); err != nil {
			return nil, err
		}
		d.quote = quoteOf(d, onpath.ReservationQuoted)
		if err := d.checkMaxPrice(); err != nil {
			return nil, err
		}
		a.promises.bookPlaces(d.obj)
		return d, nil
	}
	return nil, a.promises.explainRefusal(r, slots, order)
}

func capacityOf(slots []onpath.ReservationSlot) (most onpath.Resources) {
	for _, s := range slots {
		most.Disk = max(most.Disk, s.Capacity.Disk)
	}
	return most
}

func unique(list []string) []string {
	s := slices.Clone(list)
	slices.Sort(s)
	return slices.Compact(s)
}

func text(t time.Time) string { return t.UTC().Format(time.RFC3339Nano) }
