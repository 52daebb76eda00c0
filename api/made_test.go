package api_test

import (
	"strings"
	"testing"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/api/client"
)

// TestMadeByOnpath: what has no object of the user's says where it comes from.
func TestMadeByOnpath(t *testing.T) {
	w := newWorld(t)
	ctx := t.Context()
	o, _ := onpath.New(onpath.KindChain)
	c := o.(*onpath.Chain)
	c.Metadata.Tenant, c.Metadata.Name = "acme", "guarded"
	c.Spec.Through = []onpath.Element{{Deployment: "own"}, {Function: "operator/wall"}}
	if _, err := w.store.Write(ctx, onpath.Batch{Changes: []onpath.Change{{Key: onpath.KeyOf(c), Object: c, Version: onpath.AnyVersion}}}); err != nil {
		t.Fatal(err)
	}
	says := func(err error, code onpath.Code, words ...string) {
		t.Helper()
		wantCode(t, err, code)
		for _, s := range words {
			if !strings.Contains(err.Error(), s) {
				t.Errorf("%v does not say %q", err, s)
			}
		}
	}
	key := func(kind onpath.Kind, name string) onpath.Key {
		return onpath.Key{Kind: kind, Tenant: "acme", Name: name}
	}
	short := key(onpath.KindDeployment, "guarded-wall")
	_, err := w.operator.Get(ctx, short)
	says(err, onpath.CodeNotFound, "deployment acme/guarded-wall", "spec.through[1] of chain acme/guarded", "describe chain")
	says(w.operator.Delete(ctx, short, false), onpath.CodeNotFound, "spec.through[1] of chain acme/guarded")
	_, err = w.operator.Get(ctx, key(onpath.KindDeployment, "guarded-other"))
	says(err, onpath.CodeNotFound, "it does not exist")

	instance := key(onpath.KindInstance, "guarded-wall-abcde")
	says(w.operator.Delete(ctx, instance, false), onpath.CodeForbidden, "instance acme/guarded-wall-abcde", "made by onpath", "scale or delete its deployment")
	_, err = w.operator.Apply(ctx, nil, client.ApplyOptions{Delete: []onpath.Key{instance}})
	says(err, onpath.CodeForbidden, "made by onpath")
	says(w.operator.Delete(ctx, key(onpath.KindEvent, "x"), false), onpath.CodeForbidden, "events are written by onpath itself")
}
