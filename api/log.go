package api

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"time"

	limit "golang.org/x/time/rate"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/api/auth"
	"github.com/onpath/onpath/api/rights"
	"github.com/onpath/onpath/internal/fairshare"
)

// Log is the operator's public log.
type Log interface {
	// Key is what who verifies the log needs (golang.org/x/mod/sumdb/note).
	Key() string
	// Checkpoint is the newest signed one; nil: nothing can be signed.
	Checkpoint() []byte
	// Tile is what is at a path of C2SP's tlog-tiles, tile/….
	Tile(path string) ([]byte, error)
	// Audit calls yield for the last entries of a tenant ("": of all), in clear, the
	// latest last.
	Audit(tenant string, last int, yield func(onpath.LoggedEntry) error) error
	// Note writes an entry whose cause writes nothing.
	Note(ctx context.Context, e onpath.LogEntry) error
}

// Requests for the log that one network has a second: a watcher has a few, who reads all of
// a million entries some thousands.
const (
	logRate  = 200
	logBurst = 1000
)

// Entries of what was refused to strangers, and to each who is known: the log is never
// shortened, and anybody can cause them. So many come at once, then one in a while, which
// counts the others.
const (
	refusalBurst = 100
	refusalEvery = 10 * time.Minute
)

// logAnswers serves the log to everybody.
type logAnswers struct {
	readers  *fairshare.Rates
	refusals refusals
}

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

// logging is what the server does for the log.
type logging struct{ *Server }

// serveLog answers GET /log/….
func (s logging) serveLog(w http.ResponseWriter, r *http.Request) error {
	if s.o.Log == nil {
		return onpath.Errorf(onpath.CodeUnsupported, "this server keeps no public log")
	}
	from := fairshare.Address(r.RemoteAddr) // operators at the unix socket have none
	if ok, _ := s.public.readers.Allow(from); from.IsValid() && !ok {
		return onpath.Errorf(onpath.CodeTooMany, "your network asks for the log too often; try again in a second")
	}
	var b []byte
	var err error
	switch path := strings.TrimPrefix(r.URL.Path, "/log/"); {
	case path == "key":
		b = []byte(s.o.Log.Key() + "\n")
	case path == "checkpoint":
		if b = s.o.Log.Checkpoint(); b == nil {
			err = onpath.Errorf(onpath.CodeUnavailable, "the log is not signed just now: the server's log says why")
		}
	default:
		b, err = s.o.Log.Tile(path)
	}
	if err != nil {
		return err
	}
	w.Header().Set("Content-Type", "application/octet-stream")
	if strings.HasSuffix(r.URL.Path, "checkpoint") || strings.HasSuffix(r.URL.Path, "key") {
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	}
	_, _ = w.Write(b)
	return nil
}

const (
	defaultAudit = 100
	mostAudit    = 100_000
)

// audit sends entries of the log in clear, to operators and to the tenant that they are of.
func (s logging) audit(w http.ResponseWriter, r *http.Request) error {
	q := query(r, "tenant", "limit")
	tenant, limit := rights.ScopeTenant(r.Context(), q.Get("tenant")), q.integer("limit", defaultAudit)
	switch {
	case q.err != nil:
		return q.err
	case limit < 1 || limit > mostAudit:
		return onpath.Errorf(onpath.CodeInvalid, "limit: %d is out of range: 1 to %d", limit, mostAudit)
	case s.o.Log == nil:
		return onpath.Errorf(onpath.CodeUnsupported, "this server keeps no public log")
	}
	out := &lazyHeader{w: w, mediaType: "application/x-ndjson"}
	err := s.o.Log.Audit(tenant, limit, func(e onpath.LoggedEntry) error {
		b, err := json.Marshal(&e)
		out.write(append(b, '\n'))
		return err
	})
	if err == nil {
		out.write(nil)
	}
	out.end(err)
	return nil
}

// logged writes an entry before what it is about is done: what cannot be logged is not done.
func (s logging) logged(ctx context.Context, what onpath.LogWhat, tenant, object, format string, args ...any) error {
	if s.o.Log == nil {
		return nil
	}
	return s.o.Log.Note(ctx, onpath.LogEntry{What: what, By: rights.WhoIs(ctx).URI(), Tenant: tenant, Object: object,
		Message: fmt.Sprintf(format, args...)})
}

// refusedSignIn writes down that somebody was not let in.
func (s logging) refusedSignIn(r *http.Request, err error) {
	s.refuse(r.Context(), onpath.LogEntry{}, fmt.Sprintf("%s %s from %s: %v", r.Method, r.URL.Path, r.RemoteAddr, err))
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
func (s logging) refusedRequest(who auth.Identity, r *http.Request, why string) {
	s.refuse(r.Context(), onpath.LogEntry{By: who.URI(), Tenant: who.Tenant}, fmt.Sprintf("%s %s: %s", r.Method, r.URL.Path, why))
}

// refusedKey is of where in a request's context stands why it was refused.
type refusedKey struct{}

// refusedJoin likewise that a join token was not taken.
func (s logging) refusedJoin(ctx context.Context, name string, err error) {
	s.refuse(ctx, onpath.LogEntry{}, fmt.Sprintf("join as %q: %v", name, err))
}

func (s logging) refuse(ctx context.Context, e onpath.LogEntry, text string) {
	if s.o.Log == nil {
		return
	}
	others, ok := s.public.refusals.take(e.By, s.o.Clock())
	if !ok {
		return
	}
	if others > 0 {
		text += fmt.Sprintf(" (and %d others since the last entry)", others)
	}
	e.What, e.Message = onpath.LogRefused, onpath.ClipText(text)
	if err := s.o.Log.Note(context.WithoutCancel(ctx), e); err != nil {
		s.log.Error("a refusal is not logged", "error", err)
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
