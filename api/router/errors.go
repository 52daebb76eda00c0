package router

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"net/http"

	"github.com/danielgtaylor/huma/v2"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/api/wire"
)

// status is the one table from codes to HTTP.
var status = map[onpath.Code]int{
	onpath.CodeInvalid:     http.StatusBadRequest,
	onpath.CodeNotFound:    http.StatusNotFound,
	onpath.CodeExists:      http.StatusConflict,
	onpath.CodeConflict:    http.StatusConflict,
	onpath.CodeForbidden:   http.StatusForbidden,
	onpath.CodeNoCapacity:  http.StatusInsufficientStorage,
	onpath.CodeUnavailable: http.StatusServiceUnavailable,
	onpath.CodeTooMany:     http.StatusTooManyRequests,
	onpath.CodeUnsupported: http.StatusNotImplemented,
	onpath.CodeInternal:    http.StatusInternalServerError,
}

// problem is an error as huma sends it.
type problem struct{ wire.Problem }

func (p *problem) Error() string             { return p.Detail }
func (p *problem) GetStatus() int            { return p.Status }
func (p *problem) ContentType(string) string { return "application/problem+json" }

// GetHeaders implements huma.HeadersError: what passes by itself may be asked for again soon.
func (p *problem) GetHeaders() http.Header {
	h := http.Header{}
	if p.Status == http.StatusTooManyRequests || p.Status == http.StatusServiceUnavailable {
		h.Set("Retry-After", "1")
	}
	return h
}

// ErrorsOf makes onpath.Errors of any error.
func ErrorsOf(err error) onpath.Errors {
	if err == nil {
		return nil
	}
	var many onpath.Errors
	if errors.As(err, &many) {
		return many
	}
	var one *onpath.Error
	if errors.As(err, &one) {
		return onpath.Errors{one}
	}
	return onpath.Errors{onpath.Errorf(onpath.CodeInternal, "%w", err)}
}

// Unmatched is that an object is not what If-Match names (RFC 9110, 13.1.1).
type Unmatched struct{ Err error }

func (u Unmatched) Error() string { return u.Err.Error() }

// Unwrap is why.
func (u Unmatched) Unwrap() error { return u.Err }

func problemOf(err error) *problem {
	errs := ErrorsOf(err)
	code := status[errs[0].Code]
	if u := (Unmatched{}); errors.As(err, &u) {
		code = http.StatusPreconditionFailed
	}
	if code == 0 {
		code = http.StatusInternalServerError
	}
	return &problem{wire.Problem{
		Type: "about:blank", Title: http.StatusText(code), Status: code,
		Detail: errs.Error(), Errors: errs,
	}}
}

// Huma words its own refusals (an unknown query parameter, a body of the wrong
// shape) through this variable.
func init() {
	huma.NewError = func(code int, message string, errs ...error) huma.StatusError {
		c := onpath.CodeInternal
		switch {
		case code == http.StatusNotFound:
			c = onpath.CodeNotFound
		case code >= 400 && code < 500:
			c = onpath.CodeInvalid
		}
		list := onpath.Errors{}
		for _, err := range errs {
			e := onpath.Errorf(c, "%w", err)
			var d huma.ErrorDetailer
			if errors.As(err, &d) {
				e = onpath.Errorf(c, "%s", d.ErrorDetail().Message)
				e.Field = d.ErrorDetail().Location
			}
			list = append(list, e)
		}
		if len(list) == 0 {
			list = append(list, onpath.Errorf(c, "%s", message))
		}
		return &problem{wire.Problem{
			Type: "about:blank", Title: http.StatusText(code), Status: code,
			Detail: list.Error(), Errors: list,
		}}
	}
}

// Stopped puts the reason in the place of what a request fails with (nil: it is only
// not complete) because its context has ended: that of who ended it, or else the
// server's end. Callers who left themselves hear nothing any more.
func Stopped(ctx context.Context, err error) error {
	if ctx.Err() == nil {
		return err
	}
	switch onpath.CodeOf(err) {
	case "", onpath.CodeInternal, onpath.CodeUnavailable:
	default:
		return err // refused for what it is
	}
	if why := context.Cause(ctx); onpath.CodeOf(why) != onpath.CodeInternal {
		return why
	}
	e := onpath.Errorf(onpath.CodeUnavailable, "the server stops")
	e.Remedy = "try again when it is back; traffic does not need it"
	return e
}

// Fail answers a request with an error.
func (rt *Router) Fail(w http.ResponseWriter, r *http.Request, err error) {
	p := problemOf(rt.noted(r.Context(), r.Method+" "+r.URL.Path, err))
	w.Header().Set("Content-Type", p.ContentType(""))
	maps.Copy(w.Header(), p.GetHeaders())
	w.WriteHeader(p.Status)
	_ = json.NewEncoder(w).Encode(p.Problem)
}

// noted logs what is the server's fault, not the caller's, and keeps for the public log what
// the caller may not.
func (rt *Router) noted(ctx context.Context, doing string, err error) error {
	err = Stopped(ctx, err)
	switch ErrorsOf(err)[0].Code {
	case onpath.CodeInternal:
		rt.o.Log.Error("request failed", "request", doing, "error", err)
	case onpath.CodeForbidden:
		if why, ok := ctx.Value(refusedKey{}).(*string); ok {
			*why = err.Error()
		}
	}
	return err
}

// problem gives an error the form that huma sends; nil stays nil.
func (rt *Router) problem(ctx context.Context, err error) error {
	if err == nil {
		return nil
	}
	return problemOf(rt.noted(ctx, "", err))
}
