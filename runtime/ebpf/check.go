package ebpf

import (
	"errors"
	"maps"
	"slices"
	"strings"

	"github.com/onpath/onpath"
)

// together is a fault of what values say together, or of one that is missing.
type together struct{ error }

func (t together) Unwrap() error { return t.error }

// CheckConfig finds what is wrong with each value that a function is told, by
// itself, or against another that stands beside it; and, if e is whole, so that no
// deployment adds to it, with what is missing. Errors name the field within e. It
// needs neither rights nor a kernel.
func CheckConfig(e *onpath.EBPFSpec, whole bool) error {
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
