package change

import (
	"context"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/api/rights"
	"github.com/onpath/onpath/api/router"
)

// examiner looks at each object by itself, and at who may bring it.
type examiner struct{ d Deps }

// examine checks rights and each object by itself, and reports all it finds.
func (s *examiner) examine(ctx context.Context, c changeSet) error {
	var errs onpath.Errors
	if c.force {
		if err := onlyNodesGo(c); err != nil {
			return err
		}
	}
	seen := map[onpath.Key]bool{}
	note := func(k onpath.Key, err error) {
		if err == nil && seen[k] {
			err = onpath.Errorf(onpath.CodeInvalid, "it is given twice")
		}
		seen[k] = true
		if err == nil {
			return
		}
		for _, e := range router.ErrorsOf(err) {
			if e.Object == "" {
				e.Object = k.String()
			}
			errs = append(errs, e)
		}
	}
	for _, o := range c.puts {
		if m := o.Meta(); o.ObjectKind().Tenanted() && m.Tenant == "" {
			m.Tenant = onpath.DefaultTenant
		}
		k := onpath.KeyOf(o)
		err := rights.May(ctx, rights.Write, k)
		if err == nil {
			err = o.Validate()
		}
		if err == nil {
			err = s.seal(o)
		}
		if err == nil {
			err = s.mayAsk(ctx, o)
		}
		if err == nil {
			err = s.inspect(ctx, o)
		}
		if err == nil {
			err = onpath.CheckSize(o)
		}
		if err == nil {
			err = s.checkConfig(ctx, o, c.puts)
		}
		if err == nil {
			err = s.checkReservation(o, c.puts)
		}
		note(k, err)
	}
	for _, k := range c.deletes {
		note(k, rights.May(ctx, rights.Delete, k))
	}
	return errs.Err()
}

// onlyNodesGo refuses to force anything but the deletion of nodes: nothing else
// can be gone while onpath counts on it.
func onlyNodesGo(c changeSet) error {
	refuse := func(k onpath.Key) error {
		e := onpath.Errorf(onpath.CodeInvalid, "only the deletion of a node that is gone for good can be forced")
		e.Object, e.Remedy = k.String(), "delete or change what needs it first"
		return e
	}
	for _, o := range c.puts {
		return refuse(onpath.KeyOf(o))
	}
	for _, k := range c.deletes {
		if k.Kind != onpath.KindNode {
			return refuse(k)
		}
	}
	return nil
}
