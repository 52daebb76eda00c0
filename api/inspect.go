package api

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"

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
	f.Status = onpath.FunctionStatus{SHA256: object.SHA256, License: object.License, Bytes: len(f.Spec.EBPF.Code), Redirects: object.Redirects}
	return nil
}

// checkConfig checks what o has ebpf functions told: its own if it is one, and
// those that it refers to, as they are among puts or in the store.
func (s *Server) checkConfig(ctx context.Context, o onpath.Object, puts []onpath.Object) error {
	if s.o.CheckConfig == nil {
		return nil
	}
	var errs onpath.Errors
	note := func(e onpath.EBPFSpec, config, files string) {
		err := s.o.CheckConfig(&e, false) // the rest may stand elsewhere
		if err == nil {
			return
		}
		for _, err := range listed(err) {
			if rest, ok := strings.CutPrefix(err.Field, "files"); ok {
				err.Field = files + rest
			} else if rest, ok := strings.CutPrefix(err.Field, "config"); ok {
				err.Field = config + rest
			} else {
				continue // about the object, which is its function's
			}
			errs = append(errs, err)
		}
	}
	refer := func(r onpath.Ref, env onpath.Env, with map[string]onpath.File, at string) error {
		e, err := s.ebpfOf(ctx, r, o.Meta().Tenant, puts)
		if e == nil {
			return err
		}
		before := len(errs)
		note(onpath.EBPFSpec{Object: e.Object, Code: e.Code, Config: env, Files: with}, at+".env", at+".files")
		if len(errs) == before {
			errs = append(errs, s.checkTogether(e, env, with, at)...)
		}
		return nil
	}
	var err error
	switch o := o.(type) {
	case *onpath.Function:
		if o.Spec.EBPF != nil {
			note(*o.Spec.EBPF, "spec.ebpf.config", "spec.ebpf.files")
		}
	case *onpath.Deployment:
		err = refer(o.Spec.Function, o.Spec.Env, o.Spec.Files, "spec")
	case *onpath.Chain:
		for i, e := range o.Spec.Through {
			if e.Function != "" && err == nil {
				err = refer(e.Function, e.Env, e.Files, fmt.Sprintf("spec.through[%d]", i))
			}
		}
	}
	if err != nil {
		return err
	}
	return errs.Err()
}

// checkTogether finds what is wrong with the values of a function and with those of
// a deployment, which win, only where they stand together, and what both lack.
func (s *Server) checkTogether(e *onpath.EBPFSpec, env onpath.Env, with map[string]onpath.File, at string) (errs onpath.Errors) {
	if s.o.CheckConfig(e, false) != nil {
		return nil // said when the function is applied
	}
	all := *e
	all.Config, all.Files = onpath.Env{}, map[string]onpath.File{}
	maps.Copy(all.Config, e.Config)
	maps.Copy(all.Config, env)
	maps.Copy(all.Files, e.Files)
	maps.Copy(all.Files, with)
	err := s.o.CheckConfig(&all, true)
	if err == nil {
		return nil
	}
	for _, err := range listed(err) {
		field, name, _ := strings.Cut(strings.TrimSuffix(err.Field, "]"), "[")
		_, told := env[name]
		_, given := with[name]
		switch {
		case field == "files" && given:
			err.Field = at + ".files[" + name + "]"
		case told:
			err.Field = at + ".env[" + name + "]"
		default: // about the function's own, which one of these does not suit, or about none
			err.Field = at + ".env"
		}
		errs = append(errs, err)
	}
	return errs
}

// ebpfOf is what a function runs in the kernel; nil if it does not, or there is no
// such function.
func (s *Server) ebpfOf(ctx context.Context, r onpath.Ref, tenant string, puts []onpath.Object) (*onpath.EBPFSpec, error) {
	k := onpath.Key{Kind: onpath.KindFunction}
	k.Tenant, k.Name = r.Resolve(tenant)
	for _, o := range puts {
		if f, ok := o.(*onpath.Function); ok && onpath.KeyOf(f) == k {
			return f.Spec.EBPF, nil
		}
	}
	o, err := s.current(ctx, k)
	if f, ok := o.(*onpath.Function); ok && err == nil && (f.Spec.Shared || k.Tenant == tenant) {
		return f.Spec.EBPF, nil
	}
	return nil, err
}
