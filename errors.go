package onpath

import (
	"errors"
	"fmt"
	"strings"
)

// Code says what sort of error it is. One table in api maps codes to HTTP
// status, one in cli to exit codes.
type Code string

// The codes.
const (
	CodeInvalid     Code = "invalid"   // the input is wrong; the same input stays wrong
	CodeNotFound    Code = "not_found" // the thing named does not exist
	CodeExists      Code = "exists"    // something of that name exists already
	CodeConflict    Code = "conflict"  // the object changed since it was read; read again
	CodeForbidden   Code = "forbidden" // the caller may not
	CodeNoCapacity  Code = "no_capacity"
	CodeUnavailable Code = "unavailable" // try again later (a node is away, the store has no quorum)
	CodeTooMany     Code = "too_many"    // the caller asks for more than its share; try again later
	CodeUnsupported Code = "unsupported" // this machine or version lacks it
	CodeInternal    Code = "internal"    // a fault of onpath
)

// Passing reports whether an error may be gone when the same is tried again later.
func Passing(err error) bool {
	c := CodeOf(err)
	return c == CodeUnavailable || c == CodeTooMany
}

// Error is an error that a user is shown: what, where, and what to do.
type Error struct {
	Code    Code   `json:"code"`
	Object  string `json:"object,omitempty"` // Key.String of the object it is about
	Field   string `json:"field,omitempty"`  // path in the object: spec.through[1].instances
	Place   string `json:"place,omitempty"`  // file:line:column, where there is a file
	Message string `json:"message"`          // what is wrong
	Remedy  string `json:"remedy,omitempty"` // what to do about it
	Cause   error  `json:"-"`                // for operators and their logs
}

// Error is one line: place, object, field, message, remedy.
func (e *Error) Error() string {
	var b strings.Builder
	if e.Place != "" {
		b.WriteString(e.Place + ": ")
	}
	if e.Object != "" {
		b.WriteString(e.Object + ": ")
	}
	if e.Field != "" {
		b.WriteString(e.Field + ": ")
	}
	b.WriteString(e.Message)
	if e.Remedy != "" {
		b.WriteString("; " + e.Remedy)
	}
	return b.String()
}

// Unwrap gives the cause.
func (e *Error) Unwrap() error { return e.Cause }

// Errorf makes an Error without a place. A %w verb sets Cause.
func Errorf(code Code, format string, args ...any) *Error {
	err := fmt.Errorf(format, args...)
	return &Error{Code: code, Message: err.Error(), Cause: errors.Unwrap(err)}
}

// Errors is a list of errors found together, in the order of the input.
type Errors []*Error

// Error is one line per error.
func (es Errors) Error() string {
	lines := make([]string, len(es))
	for i, e := range es {
		lines[i] = e.Error()
	}
	return strings.Join(lines, "\n")
}

// Unwrap lets errors.As find the single errors.
func (es Errors) Unwrap() []error {
	out := make([]error, len(es))
	for i, e := range es {
		out[i] = e
	}
	return out
}

// Err is nil for an empty list; validators end with it.
func (es Errors) Err() error {
	if len(es) == 0 {
		return nil
	}
	return es
}

// CodeOf is the code of the first Error in err's tree, CodeInternal for any
// other error, and "" for nil.
func CodeOf(err error) Code {
	if err == nil {
		return ""
	}
	var e *Error
	if errors.As(err, &e) {
		return e.Code
	}
	return CodeInternal
}
