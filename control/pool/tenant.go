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
	"github.com/onpath/onpath/plan"
)

// tenantsFormer is where the times lie at which a tenant of a name was deleted.
const tenantsFormer = "ledger/former/"

// owners are tenants by name.
type owners struct {
	former  map[string][]time.Time // when tenants of a name were deleted
	removed map[string]string      // UIDs of those deleted last, or being deleted
}

// account is the name of a tenant's account for what began at a time: each tenant of a
// name has its own. The first one's is the tenant's name, that of the second NAME~1. NAME~0
// asks for the first one's, whoever has the name now.
func (o owners) account(tenant string, at time.Time) string {
	if first, ok := strings.CutSuffix(tenant, "~0"); ok {
		return first
	}
	n := 0
	for _, gone := range o.former[tenant] {
		if at.IsZero() || at.After(gone) {
			n++
		}
	}
	if n == 0 {
		return tenant
	}
	return tenant + "~" + strconv.Itoa(n)
}

// now is the name of the account of the tenant that has a name now.
func (o owners) now(tenant string) string { return o.account(tenant, time.Time{}) }

// accountNow is the name of the account of the tenant that has a name now.
func (p *Pool) accountNow(tenant string) (name string) {
	p.queue.look(func(s *state) { name = s.accounting.owners.now(tenant) })
	return name
}

// CheckRemoval refuses to let a tenant go that has live reservations or money.
func (p *Pool) CheckRemoval(tenant string) (err error) {
	if err := p.Held(); err != nil {
		return about(onpath.Key{Kind: onpath.KindTenant, Name: tenant}, err)
	}
	p.queue.look(func(s *state) { err = s.mayRemove(tenant) })
	return err
}

func (s *state) mayRemove(tenant string) error {
	k := onpath.Key{Kind: onpath.KindTenant, Name: tenant}
	if err := s.ready(); err != nil {
		return about(k, err)
	}
	if live := s.rows.ofTenant(tenant, true); len(live) > 0 {
		var names []string
		for _, x := range live {
			names = append(names, x.String())
		}
		e := onpath.Errorf(onpath.CodeInvalid, "it still has %s", plan.Enumerate(names))
		e.Remedy = "cancel them first (onpath delete reservation), which gives back what is paid for the rest of their time"
		return about(k, e)
	}
	switch balance := s.accounting.findAccount(s.accounting.owners.now(tenant)).Balance; {
	case balance > 0:
		e := onpath.Errorf(onpath.CodeInvalid, "its account has %s", balance)
		e.Remedy = fmt.Sprintf("pay it out first: onpath account payout %s %s --reference TRANSFER", tenant, balance)
		return about(k, e)
	case balance < 0:
		e := onpath.Errorf(onpath.CodeInvalid, "its account owes %s", -balance)
		e.Remedy = fmt.Sprintf("enter what it pays, or what you let it off: onpath account credit %s %s --reference TRANSFER",
			tenant, -balance)
		return about(k, e)
	}
	return nil
}

// CheckCurrency refuses a price list in another currency than that of accounts which have or owe
// something: amounts have none of their own.
func (p *Pool) CheckCurrency(ctx context.Context, next *onpath.PriceList) error {
	list, err := p.priceList.readPrices(ctx)
	if err != nil {
		return about(priceList, err)
	}
	p.queue.look(func(s *state) { err = s.accounting.checkCurrency(list.spec, next.Spec.Currency) })
	return err
}

func (ac *accounting) checkCurrency(now *onpath.PriceListSpec, next string) error {
	last := int64(noList)
	for version := range ac.lists { // where the list was deleted, the one of the last decision
		last = max(last, version)
	}
	if now == nil {
		now = ac.lists[last]
	}
	if now == nil || now.Currency == next {
		return nil
	}
	for _, name := range sortedKeys(ac.accounts) {
		if balance := ac.accounts[name].Account.Balance; balance != 0 {
			e := onpath.Errorf(onpath.CodeConflict, "the account of tenant %s has %s %s, which would become %s", name, balance,
				cmp.Or(now.Currency, "without a currency"), cmp.Or(next, "without one"))
			e.Field, e.Remedy = "spec.currency", "settle all accounts first (onpath account), or keep the currency"
			return about(priceList, e)
		}
	}
	return nil
}

// RemoveTenant readies the removal of a tenant: its reservations that are over go, its
// account is closed by the records that are to be written with the removal, and nothing is
// admitted for it until done is told by which revision; 0: nobody knows that it is written.
func (p *Pool) RemoveTenant(ctx context.Context, t *onpath.Tenant) (records []onpath.Record, done func(revision int64), err error) {
	name := t.Metadata.Name
	if err := p.CheckRemoval(name); err != nil {
		return nil, nil, err
	}
	var r removal
	p.queue.lookIdle(func(s *state) { r, err = s.beginRemoval(t) })
	if err != nil {
		return nil, nil, err
	}
	for part := range slices.Chunk(r.over, atOnce) {
		err = p.queue.commit(ctx, func(s *state) (joining, error) {
			held, err := s.admission().decideAll(nil, part)
			return joining{held: held}, err
		})
		if err != nil {
			break
		}
	}
	p.queue.look(func(s *state) {
		if err == nil {
			records, err = s.accounting.closingRecords(name, r.at)
		}
		if err != nil {
			s.accounting.owners.removed[name] = r.was
		}
	})
	return records, func(revision int64) {
		p.queue.look(func(s *state) { s.endRemoval(name, r, revision) })
		p.queue.poke()
	}, err
}

// removal is what is known of a tenant that is being removed.
type removal struct {
	at   time.Time
	was  string       // the UID of the one of that name that was removed before
	over []onpath.Key // its reservations
}

// beginRemoval has nothing be admitted for a tenant any more.
func (s *state) beginRemoval(t *onpath.Tenant) (r removal, err error) {
	name := t.Metadata.Name
	if err := s.mayRemove(name); err != nil {
		return r, err
	}
	r = removal{at: s.clock(), was: s.accounting.owners.removed[name], over: s.rows.ofTenant(name, false)}
	s.accounting.owners.removed[name] = t.Metadata.UID
	return r, nil
}

// endRemoval takes up by which revision a tenant was removed; 0: nobody knows, and all is read
// again.
func (s *state) endRemoval(tenant string, r removal, revision int64) {
	if revision == 0 {
		s.accounting.owners.removed[tenant], s.broken = r.was, true
		return
	}
	s.accounting.endTenant(tenant, r.at, revision)
}

// endTenant notes that the tenant of a name is gone, and by which revision its account is closed.
func (ac *accounting) endTenant(name string, at time.Time, revision int64) {
	if b := ac.accounts[ac.owners.now(name)]; b != nil {
		b.Version = revision
	}
	ac.owners.former[name] = append(ac.owners.former[name], at)
}

// closingRecords are the records that close a tenant's account. That of the account itself is
// written as it is, so that nobody enters something meanwhile.
func (ac *accounting) closingRecords(tenant string, now time.Time) ([]onpath.Record, error) {
	v, err := json.Marshal(append(slices.Clip(ac.owners.former[tenant]), now))
	if err != nil {
		return nil, err
	}
	records := []onpath.Record{{Path: tenantsFormer + tenant, Value: v, Version: onpath.AnyVersion}}
	b := ac.accounts[ac.owners.now(tenant)]
	if b == nil {
		return records, nil
	}
	account, err := json.Marshal(b.Account)
	return append(records, onpath.Record{Path: ledger.AccountPath(b.Account.Tenant), Value: account, Version: b.Version}), err
}

// loadFormer reads when tenants were deleted.
func (q *queue) loadFormer(ctx context.Context) error {
	return q.read.records(ctx, tenantsFormer, func(r onpath.Record, name string) error {
		var list []time.Time
		err := json.Unmarshal(r.Value, &list)
		q.state.accounting.owners.former[name] = list
		return err
	})
}
