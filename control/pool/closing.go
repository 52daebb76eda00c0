package pool

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/control/archive"
	"github.com/onpath/onpath/control/ledger"
	"github.com/onpath/onpath/store"
)

// A day (in UTC) is closed an hour after its end: what is billed later is a posting of a
// later day, so that only clocks that differ or are set back could add to it. Steps, each of
// which may be repeated:
//
//  1. The day's postings and the reservations that were over by its end go into a file.
//  2. A record in the store names the file and its hash: from now on it counts.
//  3. The balance of each account of the file is carried forward in the store. From then on
//     its postings are read from the file.
//  4. The postings and reservations are deleted in the store, and the record says so.
const closeAfter = time.Hour

const day = 24 * time.Hour

// Run closes days until ctx ends.
func (p *Past) Run(ctx context.Context) {
	if p.folder == nil {
		return
	}
	var through time.Time
	told := false
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(time.Minute):
		}
		end := closedBy(p.now())
		if end.Equal(through) || !p.ready() {
			continue
		}
		err := p.Close(ctx)
		if err == nil {
			through, told = end, false
			continue
		}
		if !told && ctx.Err() == nil {
			p.log.Error("closed days of the ledger stay in the store; it is tried on", "err", err)
			p.tell(onpath.Key{Kind: onpath.KindTenant, Name: onpath.OperatorTenant}, "LedgerNotArchived", err.Error(), true)
			told = true
		}
	}
}

func closedBy(now time.Time) time.Time { return now.Add(-closeAfter).Truncate(day) }

// Close moves all days that are over into files.
func (p *Past) Close(ctx context.Context) error {
	if p.folder == nil || !p.ready() {
		return nil
	}
	p.closing.Lock()
	defer p.closing.Unlock()
	ctx = store.MakesRoom(store.FollowUp(ctx))
	until := closedBy(p.now())
	for {
		if more, err := p.step(ctx, until); err != nil || !more {
			return err
		}
	}
}

// ready reports whether it is known what there is.
func (p *Past) ready() (ready bool) {
	p.queue.look(func(s *state) { ready = !s.broken && s.promises.observed })
	return ready && p.watch.agree() == nil
}

// step empties the store of the day closed last, or closes the next one. It reports whether
// there was one.
func (p *Past) step(ctx context.Context, until time.Time) (bool, error) {
	days, err := p.days(ctx, 0)
	if err != nil {
		return false, err
	}
	var last archive.Day
	floor := time.Time{}
	if n := len(days); n > 0 {
		last = days[n-1]
		if !last.Done {
			h, err := p.folder.Check(last, before(days), func(*onpath.Posting) {})
			if err != nil {
				return false, err
			}
			return true, p.empty(ctx, last, h)
		}
		if _, err := p.folder.Look(last); err != nil { // another server has it: the files stay together
			return false, err
		}
		at, err := time.Parse(time.DateOnly, last.Day)
		if err != nil {
			return false, fmt.Errorf("record %s: %w", dayPath(last.Day), err)
		}
		floor = at.Add(day)
	}
	carried := map[string]ledger.Carried{}
	err = p.read.recordsAt(ctx, ledger.Balances, 0, func(r onpath.Record, name string) error {
		var x ledger.Carried
		err := json.Unmarshal(r.Value, &x)
		carried[name] = x
		return err
	})
	if err != nil {
		return false, err
	}
	var accounts []string
	var over []overSince
	p.queue.look(func(s *state) { accounts, over = s.open(carried) })
	at, err := p.first(ctx, carried, accounts, over)
	if err != nil || at.IsZero() {
		return false, err
	}
	if at = latest(at, floor).Truncate(day); !at.Before(until) {
		return false, nil
	}
	return true, p.write(ctx, at, last.SHA256, carried, accounts, over)
}

// before is the hash of the last day but one.
func before(days []archive.Day) string {
	if n := len(days); n > 1 {
		return days[n-2].SHA256
	}
	return ""
}

// overSince is a reservation that is over, and since when.
type overSince struct {
	obj *onpath.Reservation
	at  time.Time
}

// open are the accounts with postings that are carried forward not yet, and the
// reservations that are over. One that a deployment still names stays in the store.
func (s *state) open(carried map[string]ledger.Carried) (accounts []string, over []overSince) {
	for _, name := range sortedKeys(s.accounting.accounts) {
		if s.accounting.accounts[name].Account.Postings > carried[name].Number {
			accounts = append(accounts, name)
		}
	}
	for _, k := range sortedKeysOf(s.rows.entries) {
		o := s.rows.entries[k].obj
		if o.Status.State.Live() || s.rows.isBusy(k) || s.use != nil && s.use(k).Nodes != nil {
			continue
		}
		at := o.Status.End()
		if n := len(o.Status.Steps); n > 0 {
			at = o.Status.Steps[n-1].At
		}
		over = append(over, overSince{o, at})
	}
	return accounts, over
}

// first is the time of the first thing that is in no file; zero: there is none.
func (p *Past) first(ctx context.Context, carried map[string]ledger.Carried, accounts []string, over []overSince) (
	at time.Time, err error) {
	note := func(t time.Time) {
		if at.IsZero() || t.Before(at) {
			at = t
		}
	}
	for _, name := range accounts {
		page, err := p.read.postings(ctx, name, carried[name].Number+1, 1, 0)
		if err != nil {
			return at, err
		}
		if len(page.Postings) > 0 {
			note(page.Postings[0].At)
		}
	}
	for _, x := range over {
		note(x.at)
	}
	return at, nil
}

// write writes the file of the day that begins at a time, and notes it in the store.
func (p *Past) write(ctx context.Context, at time.Time, before string, carried map[string]ledger.Carried,
	accounts []string, over []overSince) error {
	until := at.Add(day)
	w := p.folder.Begin(at.Format(time.DateOnly), before)
	for _, name := range accounts {
		if err := w.Account(name, carried[name].Balance); err != nil {
			return err
		}
		for next := carried[name].Number + 1; next != 0; {
			page, err := p.read.postings(ctx, name, next, 0, 0)
			if err != nil {
				return err
			}
			next = page.Next
			for i := range page.Postings {
				if !page.Postings[i].At.Before(until) { // so are those after it, or they wait for it
					next = 0
					break
				}
				if err := w.Posting(&page.Postings[i]); err != nil {
					return err
				}
			}
		}
	}
	for _, x := range over {
		if !x.at.Before(until) {
			continue
		}
		if err := w.Reservation(x.obj); err != nil {
			return err
		}
	}
	d, err := w.Write()
	if err != nil {
		return err
	}
	return p.note(ctx, d, 0)
}

// note writes the record of a day.
func (p *Past) note(ctx context.Context, d archive.Day, version int64) error {
	v, err := json.Marshal(&d)
	if err == nil {
		_, err = p.read.store.Write(ctx, onpath.Batch{Records: []onpath.Record{{Path: dayPath(d.Day), Value: v, Version: version}}})
	}
	return err
}

// empty takes what a day's file has out of the store.
func (p *Past) empty(ctx context.Context, d archive.Day, h *archive.Head) error {
	for part := range slices.Chunk(h.Accounts, onpath.SureWrite) {
		if err := p.carry(ctx, d, part); err != nil {
			return err
		}
	}
	for _, a := range h.Accounts {
		if err := p.drop(ctx, a); err != nil {
			return err
		}
	}
	for part := range slices.Chunk(h.Reservations, atOnce) {
		if err := p.dropReservations(ctx, part); err != nil {
			return err
		}
	}
	d.Done = true
	return p.note(ctx, d, onpath.AnyVersion)
}

// carry carries balances forward.
func (p *Past) carry(ctx context.Context, d archive.Day, accounts []archive.Account) error {
	var b onpath.Batch
	for _, a := range accounts {
		was, version, _, err := p.carried(ctx, a.Tenant, 0)
		if err != nil {
			return err
		}
		if was.Number >= a.Last {
			continue
		}
		v, err := json.Marshal(ledger.Carried{Tenant: a.Tenant, Number: a.Last, Day: d.Day, Balance: a.Closing})
		if err != nil {
			return err
		}
		b.Records = append(b.Records, onpath.Record{Path: carriedPath(a.Tenant), Value: v, Version: version})
	}
	if len(b.Records) == 0 {
		return nil
	}
	_, err := p.read.store.Write(ctx, b)
	return err
}

// drop deletes the postings of an account that a file has.
func (p *Past) drop(ctx context.Context, a archive.Account) error {
	at := onpath.RecordRange{From: ledger.PostingPath(a.Tenant, a.First), To: ledger.PostingPath(a.Tenant, a.Last) + "\x00"}
	for {
		page, err := p.read.store.Records(ctx, at)
		if err != nil {
			return err
		}
		for part := range slices.Chunk(page.Records, onpath.SureWrite) {
			var b onpath.Batch
			for _, r := range part {
				b.Records = append(b.Records, onpath.Record{Path: r.Path, Version: onpath.AnyVersion, Delete: true})
			}
			if _, err := p.read.store.Write(ctx, b); err != nil {
				return err
			}
		}
		if at.From = page.Next; at.From == "" {
			return nil
		}
	}
}

// dropReservations deletes reservations that are still as a file has them.
func (p *Past) dropReservations(ctx context.Context, list []archive.Reservation) error {
	var all []onpath.Key
	for _, x := range list {
		all = append(all, keyOf(x.Name))
	}
	g, err := p.queue.submit(store.Filed(ctx), func(s *state) (joining, error) {
		var keys []onpath.Key
		for i, x := range list {
			if e := s.rows.entries[all[i]]; e != nil && e.obj.Metadata.Version == x.Version && !e.obj.Status.State.Live() {
				keys = append(keys, all[i])
			}
		}
		held, err := s.admission().decideAll(nil, keys)
		return joining{held: held}, err
	}, all...)
	if err != nil {
		return err
	}
	return p.queue.await(g)
}
