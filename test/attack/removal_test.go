package attack_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/api/auth"
)

// TestTenantIsRemoved: over HTTP, a tenant stays as long as it has something, and the answer
// names that; its own users cannot remove it; once it is gone, its users are strangers, also
// to the next tenant of the name.
func TestTenantIsRemoved(t *testing.T) {
	s := newServer(t)
	operator := &somebody{http: s.operator.HTTP(), base: s.operator.URL()}
	user := s.joined(auth.TokenRequest{Role: auth.RoleUser, Tenant: "shop", Name: "ann"})
	ask := func(who *somebody, want int, words, method, path, body string) {
		t.Helper()
		if status, answer := who.ask(t.Context(), method, path, body); status != want || !strings.Contains(answer, words) {
			t.Errorf("%s %s: %d %s; want %d %q", method, path, status, answer, want, words)
		}
	}
	const tenant = "/v1/tenants/shop"
	ask(user, http.StatusForbidden, "", "DELETE", tenant, "")
	ask(operator, http.StatusBadRequest, "it still has hosts shop/site, function shop/fw, chain shop/web", "DELETE", tenant, "")
	for _, path := range []string{"/v1/chains/shop/web", "/v1/hosts/shop/site", "/v1/functions/shop/fw"} {
		ask(user, http.StatusOK, `"action":"delete"`, "DELETE", path, "")
	}
	ask(operator, http.StatusOK, `"action":"delete"`, "DELETE", tenant, "")
	ask(operator, http.StatusNotFound, "tenant shop: it does not exist", "DELETE", tenant, "")
	ask(operator, http.StatusNotFound, "", "GET", tenant, "")
	ask(user, http.StatusForbidden, "was revoked", "GET", "/v1/hosts", "")
	if _, err := s.operator.Put(t.Context(), tagged(&onpath.Tenant{Metadata: onpath.Metadata{Name: "shop"}})); err != nil {
		t.Fatal(err)
	}
	ask(user, http.StatusForbidden, "was revoked", "GET", "/v1/hosts", "")
}
