package pool

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/control/ledger"
)

// Load reads everything from the store. Until it has, nothing is admitted.
func (p *Pool) Load(ctx context.Context) error { return p.queue.reload(ctx) }

// reload reads everything again once nothing is being written: what is written then would be
// missing.
func (q *queue) reload(ctx context.Context) error {
	q.lockIdle()
	defer q.mu.Unlock()
	return q.load(ctx)
}

func (q *queue) load(ctx context.Context) error {
	q.clear()
	q.takeUp()
	for _, n := range q.state.promises.nodes {
		q.state.promises.setRoom(n, q.state.clock())
	}
	list, _, err := q.store.List(ctx, onpath.KindReservation, "")
	if err != nil {
		return err
	}
	err = q.read.records(ctx, ledger.Accounts, func(r onpath.Record, name string) error {
		b := &ledger.Book{Version: r.Version}
		q.state.accounting.accounts[name] = b
		return json.Unmarshal(r.Value, &b.Account)
	})
	if err != nil {
		return err
	}
	err = q.read.records(ctx, ledger.Prices, func(r onpath.Record, name string) error {
		version, err := strconv.ParseInt(name, 10, 64)
		if err != nil {
			return err
		}
		q.state.accounting.lists[version], q.state.accounting.kept[version] = &onpath.PriceListSpec{}, true
		return json.Unmarshal(r.Value, q.state.accounting.lists[version])
	})
	if err != nil {
		return err
	}
	err = q.read.records(ctx, nodePath, func(r onpath.Record, name string) error {
		q.bumped[name] = r.Version
		return nil
	})
	if err != nil {
		return err
	}
	if err := q.loadBilled(ctx); err != nil {
		return err
	}
	if err := q.loadFormer(ctx); err != nil {
		return err
	}
	paid := map[string][]payment{}
	err = q.read.records(ctx, payments, func(r onpath.Record, name string) error {
		var list []payment
		err := json.Unmarshal(r.Value, &list)
		paid[name] = list
		return err
	})
	if err != nil {
		return err
	}
	q.loadEntries(list, paid)
	q.state.broken = false
	return nil
}

// loadEntries takes all reservations up.
func (q *queue) loadEntries(list []onpath.Object, paid map[string][]payment) {
	nodes := map[string]bool{}
	for _, o := range list {
		r := o.(*onpath.Reservation)
		k := onpath.KeyOf(r)
		e := &entry{key: k, obj: r, payments: paid[k.Tenant+"/"+k.Name], index: -1}
		e.fillUnpaid()
		for _, name := range nodesOf(r) {
			if _, _, known := q.state.promises.cal.Room(name); !known { // not yet heard of
				q.state.promises.cal.SetNode(name, r.Status.Cloudlet, onpath.Resources{}, false)
			}
		}
		q.state.rows.put(k, e)
		q.state.promises.bookPlaces(r)
		q.plan(e)
		note(nodes, nodesOf(r))
	}
	q.promise(sortedKeys(nodes))
	q.publish()
}

// records calls f for each record under a prefix, with the rest of its path.
func (p *postingReader) records(ctx context.Context, prefix string, f func(r onpath.Record, name string) error) error {
	return p.recordsAt(ctx, prefix, 0, f)
}

// recordsAt reads them as of a revision; 0: of the newest.
func (p *postingReader) recordsAt(ctx context.Context, prefix string, revision int64, f func(r onpath.Record, name string) error) error {
	at := onpath.RecordsUnder(prefix)
	at.Revision = revision
	for {
		page, err := p.store.Records(ctx, at)
		if err != nil {
			return err
		}
		for _, r := range page.Records {
			if err := f(r, strings.TrimPrefix(r.Path, prefix)); err != nil {
				return fmt.Errorf("record %s: %w", r.Path, err)
			}
		}
		if page.Next == "" {
			return nil
		}
		at.From, at.Revision = page.Next, page.Revision
	}
}

func sortTimes(list []time.Time) {
	slices.SortFunc(list, func(a, b time.Time) int { return a.Compare(b) })
}

func sortedKeys[T any](m map[string]T) []string {
	out := make([]string, 0, len(m))
	for k := range m {
		out = append(out, k)
	}
	slices.Sort(out)
	return out
}

func sortedKeysOf[T any](m map[onpath.Key]T) []onpath.Key {
	out := make([]onpath.Key, 0, len(m))
	for k := range m {
		out = append(out, k)
	}
	slices.SortFunc(out, func(a, b onpath.Key) int { return cmp.Or(cmp.Compare(a.Tenant, b.Tenant), cmp.Compare(a.Name, b.Name)) })
	return out
}
