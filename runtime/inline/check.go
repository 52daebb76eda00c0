package inline

import (
	"errors"
	"strings"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/internal/bpfobject"
	"github.com/onpath/onpath/sdk"
)

// Checker is the onpath.FunctionChecker of ebpf functions; Functions come with onpath.
type Checker struct{ Functions []sdk.Function }

var _ onpath.FunctionChecker = Checker{}

// Inspect implements onpath.FunctionChecker.
func (c Checker) Inspect(s *onpath.FunctionSpec) (status onpath.FunctionStatus, err error) {
	code := s.EBPF.Code
	if len(code) == 0 {
		return status, c.comesWith(s.EBPF.Object)
	}
	object, err := bpfobject.Parse(code)
	if err != nil {
		var e *onpath.Error
		if errors.As(err, &e) && e.Field == "" {
			e.Field = objectField
		}
		return status, err
	}
	return onpath.FunctionStatus{SHA256: object.SHA256, License: object.License, Bytes: len(code), Redirects: object.Redirects}, nil
}

const objectField = "spec.ebpf.object"

// comesWith checks the name of a function that comes with onpath.
func (c Checker) comesWith(name string) error {
	var names []string
	for _, f := range c.Functions {
		if f.Name == name {
			return nil
		}
		names = append(names, f.Name)
	}
	e := onpath.Errorf(onpath.CodeInvalid, "%q is not a function that comes with onpath", name)
	e.Field = objectField
	switch near := onpath.Nearest(name, names); {
	case strings.HasSuffix(name, ".o"):
		e.Remedy = "write ./" + name + " for a file beside this one"
	case near != "":
		e.Remedy = "did you mean " + near + "?"
	default:
		e.Remedy = "write ./FILE.o, or one of " + strings.Join(names, ", ")
	}
	return e
}

// CheckConfig implements onpath.FunctionChecker. Without the whole it looks at values
// that stand beside each other, and not for what is missing.
func (c Checker) CheckConfig(s *onpath.FunctionSpec, whole bool) error {
	f, err := read(s.EBPF, c.Functions)
	if err != nil {
		return err
	}
	_, err = f.compile(s.EBPF)
	if !whole && errors.As(err, new(sdk.Together)) {
		err = nil
	}
	if err == nil && f.Pointless != nil {
		err = f.Pointless(told(s.EBPF))
	}
	if err == nil {
		return nil
	}
	return within(s.EBPF, err)
}

// within has an error about a value name its field in e; config if it is not told.
func within(e *onpath.EBPFSpec, err error) error {
	var known *onpath.Error
	if !errors.As(err, &known) {
		known = onpath.Errorf(onpath.CodeOf(err), "%w", err)
	}
	out := *known
	name := out.Field
	_, file := e.Files[name]
	_, value := e.Config[name]
	switch {
	case file:
		out.Field = "files[" + name + "]"
	case value:
		out.Field = "config[" + name + "]"
	default:
		out.Field = "config"
		if name != "" {
			out.Message = name + ": " + out.Message
		}
	}
	return &out
}
