package pool

import (
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
	"github.com/onpath/onpath/plan/calendar"
)

// Bounds are what bounds a tenant's reservations.
type Bounds struct {
	UID string // of its object; "": it needs none
	// Most is its quota of capacity; of a part that is zero it may have all there is.
	Most onpath.Resources
	// Unreserved is what its instances outside of reservations are counted as.
	Unreserved onpath.Resources
}

// boundsOf asks for the bounds of all tenants whose reservations are applied.
func (p *Pool) boundsOf(ctx context.Context, puts []*onpath.Reservation) (map[string]Bounds, error) {
	out := map[string]Bounds{}
	for _, r := range puts {
		k := onpath.KeyOf(r)
		if _, known := out[k.Tenant]; known || p.o.Tenant == nil {
			continue
		}
		b, err := p.o.Tenant(ctx, k.Tenant)
		if err != nil {
			return nil, about(k, err)
		}
		out[k.Tenant] = b
	}
	return out, nil
}

// reservedBy is the most that a tenant has reserved at an instant from now on, in all cloudlets
// together, part by part.
func (p *promises) reservedBy(tenant string, now time.Time) onpath.Resources {
	return p.tenants.Peak(tenantNode(tenant, ""), now, calendar.Forever)
}

// Reserved is the most that a tenant has reserved at an instant from now on.
func (p *Pool) Reserved(tenant string) (most onpath.Resources) {
	p.queue.look(func(s *state) { most = s.promises.reservedBy(tenant, s.clock()) })
	return most
}

// decideWithinQuotas has something decided that grows no tenant over its quota.
func (a admission) decideWithinQuotas(bounds map[string]Bounds, puts []*onpath.Reservation,
	decide func() ([]*decision, error)) ([]*decision, error) {
	was := map[string]onpath.Resources{}
	for name, b := range bounds {
		if a.accounting.owners.removed[name] != "" && a.accounting.owners.removed[name] == b.UID {
			return nil, onpath.Errorf(onpath.CodeNotFound, "tenant %s is deleted", name)
		}
		was[name] = a.promises.reservedBy(name, a.now)
	}
	held, err := decide()
	if err != nil {
		return nil, err
	}
	for _, r := range puts {
		k := onpath.KeyOf(r)
		if err := overQuota(k.Tenant, bounds[k.Tenant], was[k.Tenant], a.promises.reservedBy(k.Tenant, a.now)); err != nil {
			a.letDecisionsGo(held)
			return nil, about(k, err)
		}
	}
	return held, nil
}

// overQuota refuses what grows over a tenant's quota.
func overQuota(tenant string, b Bounds, was, is onpath.Resources) error {
	over := func(most, was, is, rest int64) bool { return most > 0 && is > was && is+rest > most }
	u := b.Unreserved
	var field string
	switch {
	case over(int64(b.Most.CPU), int64(was.CPU), int64(is.CPU), int64(u.CPU)):
		field = "cpu"
	case over(int64(b.Most.Memory), int64(was.Memory), int64(is.Memory), int64(u.Memory)):
		field = "memory"
	case over(int64(b.Most.Disk), int64(was.Disk), int64(is.Disk), int64(u.Disk)):
		field = "disk"
	case over(int64(b.Most.Network), int64(was.Network), int64(is.Network), int64(u.Network)):
		field = "network"
	default:
		return nil
	}
	e := onpath.Errorf(onpath.CodeNoCapacity, "declined: tenant %s would have reserved %s "+
		"at the most, beside %s of instances without reservations; its quota capacity.%s allows %s",
		tenant, amount(is), amount(u), field, amount(b.Most))
	e.Remedy = "ask for less or for another time, or have the operator raise spec.quota.capacity of tenant " + tenant
	return e
}

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
