package api

import (
	"errors"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/internal/inline"
)

// inspect reads the object file that a function brings, and records in its status
// what it is. Nothing is loaded: nodes ask their kernels.
func inspect(o onpath.Object) error {
	f, ok := o.(*onpath.Function)
	if !ok {
		return nil
	}
	f.Status = onpath.FunctionStatus{}
	if f.Spec.EBPF == nil || len(f.Spec.EBPF.Code) == 0 {
		return nil
	}
	object, err := inline.Parse(f.Spec.EBPF.Code)
	if err != nil {
		var e *onpath.Error
		if errors.As(err, &e) && e.Field == "" {
			e.Field = "spec.ebpf.object"
		}
		return err
	}
	f.Status = onpath.FunctionStatus{SHA256: object.SHA256, License: object.License, Bytes: len(f.Spec.EBPF.Code)}
	return nil
}
