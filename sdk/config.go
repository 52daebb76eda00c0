package sdk

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/onpath/onpath"
)

// Readers read the values that a function can be told, by name.
type Readers map[string]func(value string) error

// Read gives each value to its reader, in the order of their names. what is the function,
// in words.
func (c Config) Read(what string, readers Readers) error {
	for _, name := range slices.Sorted(maps.Keys(c)) {
		read, ok := readers[name]
		if !ok {
			return &onpath.Error{
				Code: onpath.CodeInvalid, Field: name, Message: fmt.Sprintf("the %s has no setting %q", what, name),
				Remedy: "its settings are " + strings.Join(slices.Sorted(maps.Keys(readers)), ", "),
			}
		}
		if err := read(c[name]); err != nil {
			return About(name, err)
		}
	}
	return nil
}

// About has an error say which value it is about.
func About(name string, err error) error {
	e := known(err)
	e.Field = name
	return e
}

// known is a copy of err as an error for users.
func known(err error) *onpath.Error {
	var e *onpath.Error
	if errors.As(err, &e) {
		same := *e
		return &same
	}
	return onpath.Errorf(onpath.CodeInvalid, "%w", err)
}

// InLine has an error say in which line of a value it lies, counted from 1.
func InLine(n int, err error) error {
	e := known(err)
	e.Message = fmt.Sprintf("line %d: %s", n, e.Message)
	return e
}

// Invalid is the error of a value that is not understood.
func Invalid(value, remedy string) error {
	return &onpath.Error{Code: onpath.CodeInvalid, Message: strconv.Quote(value) + " is not understood", Remedy: remedy}
}

// Missing is the error of a value that must be told.
func Missing(name, remedy string) error {
	return Together{&onpath.Error{Code: onpath.CodeInvalid, Field: name, Message: "is missing", Remedy: remedy}}
}

// Together is a fault of what values say together, or of one that is missing: none where
// a deployment may add to them.
type Together struct{ error }

// OnlyTogether makes err a fault of values that stand together.
func OnlyTogether(err error) error { return Together{err} }

// Unwrap gives the fault.
func (t Together) Unwrap() error { return t.error }

// OneOf reads the place of a word in a list into out; "" stands for places without one.
func OneOf(out *uint32, words ...string) func(string) error {
	return func(value string) error {
		value = strings.TrimSpace(value)
		i := slices.Index(words, value)
		if i < 0 || value == "" {
			return Invalid(value, "write one of "+strings.TrimPrefix(strings.Join(words, ", "), ", "))
		}
		*out = uint32(i)
		return nil
	}
}

// UpTo reads a number into out.
func UpTo(out *uint32, most uint32) func(string) error {
	return func(value string) error {
		value = strings.TrimSpace(value)
		n, err := strconv.ParseUint(value, 10, 32)
		if err != nil || n > uint64(most) {
			return Invalid(value, "write a number up to "+strconv.FormatUint(uint64(most), 10))
		}
		*out = uint32(n)
		return nil
	}
}

// Within reads a duration from least to most into out.
func Within(out *time.Duration, least, most time.Duration, remedy string) func(string) error {
	return func(value string) error {
		value = strings.TrimSpace(value)
		d, err := time.ParseDuration(value)
		if err != nil || d < least || d > most {
			return Invalid(value, remedy)
		}
		*out = d
		return nil
	}
}
