package router

import (
	"context"
	"maps"
	"sync"
	"time"

	limit "golang.org/x/time/rate"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/api/auth"
)

// quotaAge is how old what is known of a tenant's quota may be.
const quotaAge = 5 * time.Second

// Requests a second of each user, and at once after a rest, where the tenant's quota says
// nothing.
const (
	userRequests = 100
	userBurst    = 1000
)

// requestRates bound the requests of tenants (Tenant.spec.quota.requests), or of each user.
type requestRates struct {
	mu sync.Mutex
	of map[string]*requestRate // by tenant
}

type requestRate struct {
	asked time.Time
	most  int            // spec.quota.requests
	all   *limit.Limiter // of the tenant; nil: of each user
	users map[string]*limit.Limiter
}

// mayAskAgain refuses requests over a tenant's quota, or over a user's share.
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
	l, whose := r.all, "tenant "+who.Tenant
	switch {
	case r.most < 0:
		return nil
	case l == nil:
		l, whose = r.user(who.URI(), now), who.URI()
	}
	if l.AllowN(now, 1) {
		return nil
	}
	e := onpath.Errorf(onpath.CodeTooMany, "%s has sent more than %v requests a second", whose, l.Limit())
	e.Remedy = "try again in a second, or ask the operator for a larger spec.quota.requests"
	return e
}

// user is the limiter of one user; those who have rested for long need none.
func (r *requestRate) user(uri string, now time.Time) *limit.Limiter {
	l := r.users[uri]
	if l == nil {
		if len(r.users) >= 1000 {
			maps.DeleteFunc(r.users, func(_ string, l *limit.Limiter) bool { return l.TokensAt(now) >= userBurst })
		}
		l = limit.NewLimiter(userRequests, userBurst)
		r.users[uri] = l
	}
	return l
}

// read looks a tenant's quota up. Needs q.mu.
func (q *requestRates) read(ctx context.Context, s onpath.Store, tenant string, r *requestRate) *requestRate {
	if q.of == nil {
		q.of = map[string]*requestRate{}
	}
	if r == nil {
		r = &requestRate{users: map[string]*limit.Limiter{}}
		q.of[tenant] = r
	}
	o, err := s.Get(ctx, onpath.Key{Kind: onpath.KindTenant, Name: tenant})
	t, ok := o.(*onpath.Tenant)
	if err != nil || !ok {
		return r // what was known holds on
	}
	most := 0
	if t.Spec.Quota != nil {
		most = t.Spec.Quota.Requests
	}
	if most != r.most {
		if r.most, r.all = most, nil; most > 0 {
			r.all = limit.NewLimiter(limit.Limit(most), 2*most)
		}
	}
	return r
}
