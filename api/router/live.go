package router

import (
	"context"
	"sync"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/api/auth"
)

// Requests of one user at once: more of them are refused, so that what one
// tenant's program forgets to close is no other's loss. For each watch that is not read the
// store holds 1 MiB of changes.
const (
	maxRequests = 128
	maxLarge    = 2 // with a body over largeBody, or of unknown size
	largeBody   = 1 << 20
)

// live are the requests under way, by identity: who is refused from now on is to
// lose what he has begun, too.
type live struct {
	mu sync.Mutex
	by map[string]map[*request]struct{}
}

type request struct {
	end   context.CancelCauseFunc
	large bool
}

// begin notes a request. The context ends when its identity is revoked; done is
// to be called when the request ends.
func (l *live) begin(ctx context.Context, who auth.Identity, length int64) (_ context.Context, done func(), err error) {
	r := &request{large: length < 0 || length > largeBody}
	uri := who.URI()
	l.mu.Lock()
	defer l.mu.Unlock()
	if who.Tenanted() {
		if err := l.checkLimit(uri, r.large); err != nil {
			return nil, nil, err
		}
	}
	ctx, r.end = context.WithCancelCause(ctx)
	if l.by == nil {
		l.by = map[string]map[*request]struct{}{}
	}
	if l.by[uri] == nil {
		l.by[uri] = map[*request]struct{}{}
	}
	l.by[uri][r] = struct{}{}
	return ctx, func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		r.end(nil)
		delete(l.by[uri], r)
		if len(l.by[uri]) == 0 {
			delete(l.by, uri)
		}
	}, nil
}

// checkLimit needs l.mu.
func (l *live) checkLimit(uri string, large bool) error {
	n := 0
	for r := range l.by[uri] {
		if r.large {
			n++
		}
	}
	switch {
	case len(l.by[uri]) >= maxRequests:
		e := onpath.Errorf(onpath.CodeTooMany, "%s has %d requests under way, which is the most", uri, maxRequests)
		e.Remedy = "end watches, logs and other streams that are not needed, and try again"
		return e
	case large && n >= maxLarge:
		e := onpath.Errorf(onpath.CodeTooMany, "%s is sending %d large requests already", uri, n)
		e.Remedy = "try again when they are through"
		return e
	}
	return nil
}

// revoke ends all requests of an identity, which hear why.
func (l *live) revoke(uri string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for r := range l.by[uri] {
		r.end(onpath.Errorf(onpath.CodeForbidden, "the certificate of %s was revoked", uri))
	}
}
