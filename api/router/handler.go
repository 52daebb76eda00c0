package router

import (
	"context"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/api/auth"
	"github.com/onpath/onpath/api/rights"
	"github.com/onpath/onpath/api/session"
	"github.com/onpath/onpath/store"
)

// stall is how long a request or its answer may make no progress before its
// connection is given up.
const stall = 60 * time.Second

// Handler answers requests of who identify says.
func (rt *Router) Handler(identify func(*http.Request) (auth.Identity, error)) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer rt.recovered(w, r)
		w, r, through := Rolling(w, r, stall)
		defer through()
		who, err := identify(r)
		if err != nil && !isOpen(r.URL.Path) {
			rt.refusedSignIn(r, err)
			rt.Fail(w, r, err)
			return
		}
		if err := rt.rates.mayAskAgain(r.Context(), rt.o.Store, who, rt.o.Clock()); err != nil {
			rt.Fail(w, r, err)
			return
		}
		length := r.ContentLength
		if strings.HasPrefix(r.URL.Path, "/v2/") {
			length = 0 // it goes to the disk, and has limits of its own
		}
		ctx, done, err := rt.live.begin(r.Context(), who, length)
		if err != nil {
			rt.Fail(w, r, err)
			return
		}
		defer done()
		if !who.Until.IsZero() {
			e := onpath.Errorf(onpath.CodeForbidden, "the bearer token has expired")
			timed, cancel := context.WithTimeoutCause(ctx, who.Until.Sub(rt.o.Clock()), e)
			defer cancel()
			ctx = timed
		}
		// Who was revoked since was not among the live ones then.
		if _, err := identify(r); err != nil && !isOpen(r.URL.Path) {
			rt.Fail(w, r, err)
			return
		}
		why := ""
		ctx = context.WithValue(rights.WithIdentity(ctx, who), refusedKey{}, &why)
		r = r.WithContext(store.By(ctx, byURI(who)))
		status := rt.measured(w, r)
		if status != http.StatusForbidden { // what is wrong with a change is its author's alone
			why = http.StatusText(status)
		}
		if isRefusal(who, r, status) && !isOpen(r.URL.Path) {
			rt.refusedRequest(who, r, why)
		}
	})
}

// recovered keeps a fault in one request from ending the server.
func (rt *Router) recovered(w http.ResponseWriter, r *http.Request) {
	if v := recover(); v != nil {
		if v == http.ErrAbortHandler {
			panic(v)
		}
		rt.o.Log.Error("request failed by a fault of onpath", "path", r.URL.Path, "panic", v)
		rt.Fail(w, r, onpath.Errorf(onpath.CodeInternal, "a fault of onpath: %v", v))
	}
}

// statusWriter remembers the status of an answer.
type statusWriter struct {
	http.ResponseWriter
	status int
}

func (w *statusWriter) WriteHeader(code int) {
	w.status = code
	w.ResponseWriter.WriteHeader(code)
}

// Unwrap lets http.ResponseController reach the connection.
func (w *statusWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// Flush implements http.Flusher.
func (w *statusWriter) Flush() { _ = http.NewResponseController(w.ResponseWriter).Flush() }

func (rt *Router) measured(w http.ResponseWriter, r *http.Request) (status int) {
	_, route := rt.mux.Handler(r)
	sw := &statusWriter{ResponseWriter: w, status: http.StatusOK}
	began := time.Now()
	rt.mux.ServeHTTP(sw, r)
	if !streams(route) {
		rt.o.Requests.WithLabelValues(route, strconv.Itoa(sw.status)).Observe(time.Since(began).Seconds())
	}
	return sw.status
}

func streams(route string) bool {
	for _, s := range []string{"/v1/watch", "/v1/flows", "/v1/capture", "/logs", "/exec", session.Path, "/v2/"} {
		if strings.HasSuffix(route, s) {
			return true
		}
	}
	return false
}
