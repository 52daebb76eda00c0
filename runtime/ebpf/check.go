package ebpf

import (
	"errors"
	"maps"
	"slices"
	"strings"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/internal/inline"
)

// together is a fault of what values say together, or of one that is missing.
type together struct{ error }

func (t together) Unwrap() error { return t.error }

// Checker is the onpath.FunctionChecker of ebpf functions.
type Checker struct{}

var _ onpath.FunctionChecker = Checker{}

// Inspect implements onpath.FunctionChecker.
func (Checker) Inspect(s *onpath.FunctionSpec) (status onpath.FunctionStatus, err error) {
	code := s.EBPF.Code
	if len(code) == 0 {
		return status, nil
	}
	object, err := inline.Parse(code)
	if err != nil {
		var e *onpath.Error
		if errors.As(err, &e) && e.Field == "" {
			e.Field = "spec.ebpf.object"
		}
		return status, err
	}
	return onpath.FunctionStatus{SHA256: object.SHA256, License: object.License, Bytes: len(code), Redirects: object.Redirects}, nil
}

// CheckConfig implements onpath.FunctionChecker. Without the whole it looks at values
// that stand beside each other, and not for what is missing.
func (Checker) CheckConfig(s *onpath.FunctionSpec, whole bool) error {
	e := s.EBPF
	f, err := read(e)
	if err != nil {
		return err
	}
	_, err = f.compile(e)
	if err == nil || !whole && errors.As(err, new(together)) {
		b, ok := builtIn(e.Object)
		if !ok || len(e.Code) > 0 || b.pointless == nil {
			return nil
		}
		err = b.pointless(f.values(e))
	}
	if err == nil {
		return nil
	}
	if missing := (together{}); errors.As(err, &missing) {
		err = missing.error // with its remedy
	}
	out := onpath.Errorf(onpath.CodeOf(err), "%w", err)
	if known, ok := err.(*onpath.Error); ok {
		same := *known
		out = &same
	}
	out.Field = fieldOf(e, err.Error())
	return out
}

// fieldOf is the value that a message is about: it begins with its name, or says
// that there is no such thing to tell.
func fieldOf(e *onpath.EBPFSpec, message string) string {
	about := func(name string) bool {
		rest, ok := strings.CutPrefix(message, name)
		return ok && strings.ContainsAny(rest[:min(len(rest), 1)], ":, ") ||
			strings.Contains(message, `cannot be told "`+name+`"`)
	}
	for _, name := range slices.Sorted(maps.Keys(e.Files)) {
		if about(name) {
			return "files[" + name + "]"
		}
	}
	for _, name := range slices.Sorted(maps.Keys(e.Config)) {
		if about(name) {
			return "config[" + name + "]"
		}
	}
	return "config"
}
