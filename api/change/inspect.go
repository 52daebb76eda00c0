package change

import (
	"context"
	"fmt"
	"strings"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/api/router"
)

// inspect reads the code that a function brings, and records in its status what it is.
// Nothing is loaded: nodes ask their kernels.
func (s *examiner) inspect(ctx context.Context, o onpath.Object) (err error) {
	f, ok := o.(*onpath.Function)
	if !ok {
		return nil
	}
	f.Status = onpath.FunctionStatus{}
	if c := s.d.Functions[f.Spec.Kind()]; c != nil {
		f.Status, err = c.Inspect(&f.Spec)
	}
	if err != nil || len(f.Spec.Alerts) == 0 {
		return err
	}
	now, err := currentOf(ctx, s.d.Store, onpath.KeyOf(f))
	if old, ok := now.(*onpath.Function); ok && err == nil { // whom alerts have limited stays so
		f.Status.Limited = old.Status.Limited
	}
	return err
}

// checkConfig checks what o has functions told: its own if it is one, and those that it
// refers to, as they are among puts or in the store.
func (s *examiner) checkConfig(ctx context.Context, o onpath.Object, puts []onpath.Object) (err error) {
	var errs onpath.Errors
	refer := func(r onpath.Ref, env onpath.Env, with map[string]onpath.File, at string) error {
		f, err := s.functionOf(ctx, r, o.Meta().Tenant, puts)
		if f != nil {
			errs = append(errs, s.checkAdded(f, env, with, at)...)
		}
		return err
	}
	switch o := o.(type) {
	case *onpath.Function:
		at := "spec." + string(o.Spec.Kind())
		running := o.Running() // the function must know whom it limits
		errs = s.check(&running, at+".config", at+".files")
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

// check finds what is wrong with each value of a function by itself: the rest may stand
// elsewhere. Values and files stand at these fields of the object.
func (s *examiner) check(spec *onpath.FunctionSpec, config, files string) (errs onpath.Errors) {
	c := s.d.Functions[spec.Kind()]
	if c == nil {
		return nil
	}
	for _, err := range router.ErrorsOf(c.CheckConfig(spec, false)) {
		if rest, ok := strings.CutPrefix(err.Field, "files"); ok {
			err.Field = files + rest
		} else if rest, ok := strings.CutPrefix(err.Field, "config"); ok {
			err.Field = config + rest
		} else {
			continue // about the object, which is its function's
		}
		errs = append(errs, err)
	}
	return errs
}

// checkAdded finds what is wrong with the values that stand at a field and are added to
// a function's own; and then what is wrong with both only where they stand together.
func (s *examiner) checkAdded(spec *onpath.FunctionSpec, env onpath.Env, with map[string]onpath.File, at string) (errs onpath.Errors) {
	for _, err := range spec.CheckParameters(env) {
		err.Field = at + "." + err.Field
		errs = append(errs, err)
	}
	if len(errs) > 0 {
		return errs
	}
	added := spec.Fixed().With(env, with)
	if errs = s.check(&added, at+".env", at+".files"); len(errs) > 0 {
		return errs
	}
	c := s.d.Functions[spec.Kind()]
	if c == nil || c.CheckConfig(spec, false) != nil {
		return nil // said when the function is applied
	}
	all := spec.With(env, with)
	for _, err := range router.ErrorsOf(c.CheckConfig(&all, true)) {
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
			if name != "" {
				err.Message = name + ": " + err.Message
			}
		}
		errs = append(errs, err)
	}
	return errs
}

// functionOf is the function that r names; nil if there is none that the tenant may use.
func (s *examiner) functionOf(ctx context.Context, r onpath.Ref, tenant string, puts []onpath.Object) (*onpath.FunctionSpec, error) {
	k := onpath.Key{Kind: onpath.KindFunction}
	k.Tenant, k.Name = r.Resolve(tenant)
	for _, o := range puts {
		if f, ok := o.(*onpath.Function); ok && onpath.KeyOf(f) == k {
			return &f.Spec, nil
		}
	}
	o, err := currentOf(ctx, s.d.Store, k)
	if f, ok := o.(*onpath.Function); ok && err == nil && (f.Spec.Shared || k.Tenant == tenant) {
		return &f.Spec, nil
	}
	return nil, err
}
