package pool

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/control/ledger"
	"github.com/onpath/onpath/plan/calendar"
)

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
		name := tenantNode(onpath.KeyOf(r).Tenant, cl)
		if _, _, known := p.tenants.Room(name); !known {
			p.tenants.SetNode(name, name, onpath.Resources{}, true)
		}
		tenant(calendar.Booking{Node: name, Slots: booked(st.Slots, time.Time{}, calendar.Forever, len(st.Places))})
	}
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

// bookRecords adds a group's postings, and the price lists by which they were found.
func (ac *accounting) bookRecords(g *group, b *onpath.Batch) error {
	lists := map[int64]bool{}
	for _, tenant := range sortedKeys(g.books) {
		book := g.books[tenant]
		if book.Version = 0; ac.accounts[tenant] != nil {
			book.Version = ac.accounts[tenant].Version
		}
		records, err := book.Records()
		if err != nil {
			return err
		}
		b.Records = append(b.Records, records...)
		for _, x := range book.Added() {
			lists[x.Prices] = x.Prices != 0 && !ac.kept[x.Prices]
		}
	}
	for version, wanted := range lists {
		if !wanted {
			continue
		}
		list, err := json.Marshal(ac.lists[version])
		if err != nil {
			return err
		}
		b.Records = append(b.Records, onpath.Record{Path: ledger.PricesPath(version), Value: list, Version: onpath.AnyVersion})
	}
	return nil
}

func nodesOf(r *onpath.Reservation) []string {
	var out []string
	for _, x := range r.Status.Places {
		out = append(out, x.Node)
		if x.Leaving != "" {
			out = append(out, x.Leaving)
		}
	}
	return unique(out)
}

// Where records lie.
const (
	payments = "pool/payment/"
	nodePath = "pool/node/"
)

func paymentPath(k onpath.Key) string { return payments + k.Tenant + "/" + k.Name }

// write tries on as long as it is not known what became of a batch, and not for long.
// unsure: that stays unknown, or somebody else wrote.
func (q *queue) write(ctx context.Context, b onpath.Batch) (w onpath.Written, unsure bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	for {
		w, err := q.store.Write(ctx, b)
		switch onpath.CodeOf(err) {
		case "":
			return w, false, nil
		case onpath.CodeInvalid, onpath.CodeNoCapacity:
			return w, false, err
		case onpath.CodeConflict:
			var e *onpath.Error
			if errors.As(err, &e) && e.Object == priceList.String() { // another list: nothing is written
				q.priceList.last.Store(nil)
				return w, false, errAgain
			}
			return w, true, onpath.Errorf(onpath.CodeUnavailable, "somebody else changed what was decided on; try again: %w", err)
		case onpath.CodeUnavailable:
			if ctx.Err() == nil {
				select {
				case <-time.After(100 * time.Millisecond):
					continue
				case <-ctx.Done():
				}
			}
		}
		return w, true, onpath.Errorf(onpath.CodeUnavailable, "it is not known whether the decision was written; try again: %w", err)
	}
}

const writeTimeout = 10 * time.Second
