package api_test

import (
	"slices"
	"testing"
	"time"

	"github.com/onpath/onpath"
)

// TestMetricOfAnother: a tenant reports values of its own chains alone.
func TestMetricOfAnother(t *testing.T) {
	w := newWorld(t)
	alice := w.user("acme")
	own := onpath.Key{Kind: onpath.KindChain, Tenant: "acme", Name: "web"}
	if err := alice.PushMetric(t.Context(), own, 5, time.Time{}); err != nil {
		t.Fatal(err)
	}
	for _, tenant := range []string{"other", onpath.DefaultTenant, onpath.OperatorTenant} {
		k := onpath.Key{Kind: onpath.KindChain, Tenant: tenant, Name: "web"}
		if code := onpath.CodeOf(alice.PushMetric(t.Context(), k, 5, time.Time{})); code != onpath.CodeForbidden {
			t.Errorf("for chain %s: code %q", k, code)
		}
	}
	if got := w.controller.pushed; !slices.Equal(got, []onpath.Key{own}) {
		t.Errorf("values were reported of %v", got)
	}
}
