package router

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"time"

	limit "golang.org/x/time/rate"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/api/auth"
	"github.com/onpath/onpath/api/rights"
)

// Entries of what was refused to strangers, and to each who is known: the log is never
// shortened, and anybody can cause them. So many come at once, then one in a while, which
// counts the others.
const (
	refusalBurst = 100
	refusalEvery = 10 * time.Minute
)

// refusals bound the entries of what was refused, by who asked; "": strangers.
type refusals struct {
	mu sync.Mutex
	of map[string]*refused
}

type refused struct {
	entries   *limit.Limiter
	unwritten int
}

// take reports whether there is to be an entry, and of how many others it tells.
func (r *refusals) take(who string, now time.Time) (others int, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	x := r.of[who]
	if x == nil {
		x = &refused{entries: limit.NewLimiter(limit.Every(refusalEvery), refusalBurst)}
		r.of[who] = x
	}
	if !x.entries.AllowN(now, 1) {
		x.unwritten++
		return 0, false
	}
	others, x.unwritten = x.unwritten, 0
	return others, true
}

// WriteEntry writes an entry before what it is about is done: what cannot be logged is not done.
func (rt *Router) WriteEntry(ctx context.Context, what onpath.LogWhat, tenant, object, format string, args ...any) error {
	if rt.o.Note == nil {
		return nil
	}
	return rt.o.Note(ctx, onpath.LogEntry{What: what, By: rights.WhoIs(ctx).URI(), Tenant: tenant, Object: object,
		Message: fmt.Sprintf(format, args...)})
}

// refusedSignIn writes down that somebody was not let in.
func (rt *Router) refusedSignIn(r *http.Request, err error) {
	rt.refuse(r.Context(), onpath.LogEntry{}, fmt.Sprintf("%s %s from %s: %v", r.Method, r.URL.Path, r.RemoteAddr, err))
}

// isRefusal reports whether somebody asked for what he may not, or, other than the operator,
// for a change that is not valid or goes beyond his quota.
func isRefusal(who auth.Identity, r *http.Request, status int) bool {
	switch status {
	case http.StatusForbidden:
		return true
	case http.StatusBadRequest, http.StatusRequestEntityTooLarge, http.StatusUnprocessableEntity, http.StatusInsufficientStorage:
		return who.Role != auth.RoleOperator && r.Method != http.MethodGet
	}
	return false
}

// refusedRequest likewise that somebody asked for what he may not.
func (rt *Router) refusedRequest(who auth.Identity, r *http.Request, why string) {
	rt.refuse(r.Context(), onpath.LogEntry{By: who.URI(), Tenant: who.Tenant}, fmt.Sprintf("%s %s: %s", r.Method, r.URL.Path, why))
}

// refusedKey is of where in a request's context stands why it was refused.
type refusedKey struct{}

// NoteRefusedJoin likewise that a join token was not taken.
func (rt *Router) NoteRefusedJoin(ctx context.Context, name string, err error) {
	rt.refuse(ctx, onpath.LogEntry{}, fmt.Sprintf("join as %q: %v", name, err))
}

func (rt *Router) refuse(ctx context.Context, e onpath.LogEntry, text string) {
	if rt.o.Note == nil {
		return
	}
	others, ok := rt.refusals.take(e.By, rt.o.Clock())
	if !ok {
		return
	}
	if others > 0 {
		text += fmt.Sprintf(" (and %d others since the last entry)", others)
	}
	e.What, e.Message = onpath.LogRefused, onpath.ClipText(text)
	if err := rt.o.Note(context.WithoutCancel(ctx), e); err != nil {
		rt.o.Log.Error("a refusal is not logged", "error", err)
	}
}

// isOpen reports whether a path needs no identity: it shows nothing, or what is for
// everybody, or, as join, checks a secret of its own.
func isOpen(path string) bool {
	switch path {
	case "/healthz", "/readyz", "/version", "/v1/join":
		return true
	}
	return strings.HasPrefix(path, "/log/")
}

// byURI is who asks, for the log.
func byURI(who auth.Identity) string {
	if who.Role == "" {
		return ""
	}
	return who.URI()
}
