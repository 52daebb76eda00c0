package pool

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"slices"
	"time"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/control/ledger"
	"github.com/onpath/onpath/plan/calendar"
)

// enter books what a reservation promises.
func (p *Pool) enter(r *onpath.Reservation) { p.each(r, p.cal.Book, p.tenants.Book) }

// leave frees what enter booked.
func (p *Pool) leave(r *onpath.Reservation) { p.each(r, p.cal.Free, p.tenants.Free) }

func (p *Pool) each(r *onpath.Reservation, node, tenant func(calendar.Booking)) {
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
	name := tenantNode(onpath.KeyOf(r).Tenant, st.Cloudlet)
	if _, _, known := p.tenants.Room(name); !known {
		p.tenants.SetNode(name, "", onpath.Resources{}, true)
	}
	tenant(calendar.Booking{Node: name, Slots: booked(st.Slots, time.Time{}, calendar.Forever, len(st.Places))})
}

// swap holds what d decides in the calendar, instead of what was promised before.
func (p *Pool) swap(d *decision) {
	if d.old != nil {
		p.leave(d.old.obj)
	}
	p.enter(d.obj)
}

// letGo takes decisions back, the last first.
func (p *Pool) letGo(held []*decision) {
	for i := len(held) - 1; i >= 0; i-- {
		d := held[i]
		if d.same || d.gone {
			continue
		}
		p.leave(d.obj)
		if d.old != nil {
			p.enter(d.old.obj)
		}
		p.letGo(d.moved)
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

// commit writes decisions and postings, all or nothing, and takes them up.
func (p *Pool) commit(ctx context.Context, held []*decision, books map[string]*ledger.Book) error {
	all := flat(held)
	if len(all) == 0 && len(books) == 0 {
		return nil
	}
	b, err := p.batch(all, books)
	if err != nil {
		return err
	}
	w, err := p.write(ctx, b)
	if err != nil {
		return err
	}
	b.SetVersions(w.Revision)
	for _, d := range all {
		if d.old != nil {
			p.agenda.drop(d.old)
			p.promise(nodesOf(d.old.obj))
		}
		if d.gone {
			delete(p.entries, d.key)
			p.show(d.key, nil, false)
			continue
		}
		p.promise(nodesOf(d.obj))
		e := &entry{obj: d.obj, payments: d.pay, index: -1}
		p.entries[d.key] = e
		p.plan(e)
		for _, name := range nodesOf(d.obj) {
			p.bumped[name] = w.Revision
		}
	}
	p.takeUpBooks(books, w.Revision)
	p.run()
	return nil
}

// takeUpBooks takes accounts up that are written.
func (p *Pool) takeUpBooks(books map[string]*ledger.Book, version int64) {
	for tenant, k := range books {
		if len(k.Added()) > 0 {
			p.accounts[tenant] = &ledger.Book{Account: k.Account, Version: version}
		}
		for _, x := range k.Added() {
			if x.Prices != 0 && p.kept[x.Prices] == nil {
				p.kept[x.Prices] = p.prices.spec
			}
		}
	}
}

// batch is what commit writes. A record of each node and account that a decision depends
// on is written with the version that was read: whoever decided from the same state at
// the same time is refused.
func (p *Pool) batch(all []*decision, books map[string]*ledger.Book) (onpath.Batch, error) {
	b := onpath.Batch{Request: rand.Text()}
	bump := map[string]bool{}
	for _, d := range all {
		version := int64(0)
		if d.old != nil {
			version = d.old.obj.Metadata.Version
		}
		if d.gone {
			b.Changes = append(b.Changes, onpath.Change{Key: d.key, Version: version})
			b.Records = append(b.Records, onpath.Record{Path: paymentPath(d.key), Version: onpath.AnyVersion, Delete: true})
			continue
		}
		b.Changes = append(b.Changes, onpath.Change{Key: d.key, Object: d.obj, Version: version})
		pay, err := json.Marshal(d.pay)
		if err != nil {
			return b, err
		}
		b.Records = append(b.Records, onpath.Record{Path: paymentPath(d.key), Value: pay, Version: onpath.AnyVersion,
			Delete: len(d.pay) == 0})
		for _, name := range nodesOf(d.obj) {
			bump[name] = true
		}
	}
	for _, tenant := range sortedKeys(books) {
		records, err := books[tenant].Records()
		if err != nil {
			return b, err
		}
		b.Records = append(b.Records, records...)
		for _, x := range books[tenant].Added() {
			if x.Prices == 0 || p.kept[x.Prices] != nil || slices.ContainsFunc(b.Records,
				func(r onpath.Record) bool { return r.Path == ledger.PricesPath(x.Prices) }) {
				continue
			}
			list, err := json.Marshal(p.prices.spec)
			if err != nil {
				return b, err
			}
			b.Records = append(b.Records, onpath.Record{Path: ledger.PricesPath(x.Prices), Value: list, Version: onpath.AnyVersion})
		}
	}
	for _, name := range sortedKeys(bump) {
		b.Records = append(b.Records, onpath.Record{Path: nodePath + name, Version: p.bumped[name]})
	}
	return b, nil
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

// write tries on as long as it is not known what became of a batch, and not for long. If
// that stays unknown, or somebody else wrote, all is read again before the next decision.
func (p *Pool) write(ctx context.Context, b onpath.Batch) (onpath.Written, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), writeTimeout)
	defer cancel()
	for {
		w, err := p.o.Store.Write(ctx, b)
		switch onpath.CodeOf(err) {
		case "":
			return w, nil
		case onpath.CodeInvalid, onpath.CodeNoRoom:
			return w, err
		case onpath.CodeUnavailable:
			if ctx.Err() == nil {
				select {
				case <-time.After(100 * time.Millisecond):
					continue
				case <-ctx.Done():
				}
			}
		}
		p.broken = true
		p.poke()
		if onpath.CodeOf(err) == onpath.CodeConflict {
			return w, onpath.Errorf(onpath.CodeUnavailable, "somebody else changed what was decided on; try again: %w", err)
		}
		return w, onpath.Errorf(onpath.CodeUnavailable, "it is not known whether the decision was written; try again: %w", err)
	}
}

const writeTimeout = 10 * time.Second
