package api

import (
	"context"
	"sync"
	"time"

	limit "golang.org/x/time/rate"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/api/auth"
)

// quotaAge is how old what is known of a tenant's quota may be.
const quotaAge = 5 * time.Second

// requestRates bound the requests of tenants (Tenant.spec.quota.requests).
type requestRates struct {
	mu sync.Mutex
	of map[string]*requestRate
}

type requestRate struct {
	limiter *limit.Limiter // nil: not bounded
	asked   time.Time
}

// mayAskAgain refuses requests over a tenant's quota.
func (q *requestRates) mayAskAgain(ctx context.Context, s onpath.Store, who auth.Identity, now time.Time) error {
	if !who.Tenanted() {
		return nil
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	r := q.of[who.Tenant]
	if r == nil || now.Sub(r.asked) > quotaAge {
		r = q.read(ctx, s, who.Tenant, r)
		r.asked = now
	}
	if r.limiter == nil || r.limiter.AllowN(now, 1) {
		return nil
	}
	e := onpath.Errorf(onpath.CodeTooMany, "tenant %s has sent more than %v requests a second", who.Tenant, r.limiter.Limit())
	e.Remedy = "try again in a second, or ask the operator for a larger spec.quota.requests"
	return e
}

// read looks a tenant's quota up. Needs q.mu.
func (q *requestRates) read(ctx context.Context, s onpath.Store, tenant string, r *requestRate) *requestRate {
	if q.of == nil {
		q.of = map[string]*requestRate{}
	}
	if r == nil {
		r = &requestRate{}
		q.of[tenant] = r
	}
	o, err := s.Get(ctx, onpath.Key{Kind: onpath.KindTenant, Name: tenant})
	t, ok := o.(*onpath.Tenant)
	switch {
	case err != nil || !ok: // what was known holds on
	case t.Spec.Quota == nil || t.Spec.Quota.Requests == 0:
		r.limiter = nil
	case r.limiter == nil || r.limiter.Limit() != limit.Limit(t.Spec.Quota.Requests):
		n := t.Spec.Quota.Requests
		r.limiter = limit.NewLimiter(limit.Limit(n), 2*n)
	}
	return r
}
