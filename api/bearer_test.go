package api_test

import (
	"testing"
	"time"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/api/auth"
	"github.com/onpath/onpath/api/client"
)

// TestBearer: a bearer token is good for what it says, as long as it says, and for nothing
// more: not to join, not for other kinds or tenants; and it can be taken back.
func TestBearer(t *testing.T) {
	w := newWorld(t)
	w.tenant("acme")
	ctx := t.Context()
	made := func(r auth.TokenRequest) (*client.Client, string) {
		t.Helper()
		r.API, r.Tenant = true, "acme"
		token, err := w.operator.CreateToken(ctx, r)
		if err != nil {
			t.Fatal(err)
		}
		c, err := client.Bearer(token.Word)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(c.Close)
		if _, err := client.Join(ctx, token.Word, "", t.TempDir()); onpath.CodeOf(err) != onpath.CodeForbidden {
			t.Errorf("somebody joins by a bearer token: %v", err)
		}
		return c, token.ID
	}
	put := func(c *client.Client, tenant, name string) error {
		_, err := c.Put(ctx, hosts(tenant, name, "10.0.0.1"))
		return err
	}
	want := func(what string, err error, code onpath.Code) {
		t.Helper()
		if onpath.CodeOf(err) != code {
			t.Errorf("%s: %v, want %q", what, err, code)
		}
	}
	user, id := made(auth.TokenRequest{Role: auth.RoleUser, Name: "robot"})
	want("a user's token writes", put(user, "acme", "a"), "")
	want("in another tenant", put(user, "default", "a"), onpath.CodeForbidden)
	viewer, _ := made(auth.TokenRequest{Role: auth.RoleViewer, Name: "board"})
	_, _, err := viewer.List(ctx, onpath.KindHosts, "acme")
	want("a viewer reads", err, "")
	_, _, err = viewer.List(ctx, onpath.KindHosts, "default")
	want("another tenant's", err, onpath.CodeForbidden)
	want("a viewer writes", put(viewer, "acme", "b"), onpath.CodeForbidden)
	scoped, _ := made(auth.TokenRequest{Role: auth.RoleUser, Name: "ci", Kinds: []onpath.Kind{onpath.KindChain}})
	_, _, err = scoped.List(ctx, onpath.KindChain, "acme")
	want("a kind of its scope", err, "")
	want("another kind", put(scoped, "acme", "c"), onpath.CodeForbidden)
	_, err = scoped.CreateToken(ctx, auth.TokenRequest{Role: auth.RoleUser, Name: "ci", Tenant: "acme", API: true})
	want("a wider token by a token", err, onpath.CodeForbidden)
	short, _ := made(auth.TokenRequest{Role: auth.RoleUser, Name: "short", TTL: onpath.Duration(time.Second)})
	watching := make(chan error, 1)
	go func() {
		watching <- short.Watch(ctx, client.WatchOptions{Tenant: "acme"}, func(client.Change) error { return nil })
	}()
	for end := time.Now().Add(time.Minute); ; time.Sleep(100 * time.Millisecond) {
		if _, _, err = short.List(ctx, onpath.KindHosts, "acme"); err != nil || time.Now().After(end) {
			break
		}
	}
	want("an expired token", err, onpath.CodeForbidden)
	select {
	case err = <-watching:
	case <-time.After(time.Minute):
		err = nil
	}
	want("a watch with a token that has expired", err, onpath.CodeForbidden)
	if err := w.operator.DeleteToken(ctx, id); err != nil {
		t.Fatal(err)
	}
	want("a token that was taken back", put(user, "acme", "d"), onpath.CodeForbidden)
	if err := w.operator.Revoke(ctx, "onpath:viewer/acme/board"); err != nil {
		t.Fatal(err)
	}
	_, _, err = viewer.List(ctx, onpath.KindHosts, "acme")
	want("a token of who was revoked", err, onpath.CodeForbidden)
	for what, r := range map[string]auth.TokenRequest{
		"for a node":           {Role: auth.RoleNode, Name: "n9", API: true},
		"of no kind":           {Role: auth.RoleUser, Name: "x", Tenant: "acme", API: true, Kinds: []onpath.Kind{"Castle"}},
		"to join, with a kind": {Role: auth.RoleUser, Name: "x", Tenant: "acme", Kinds: []onpath.Kind{onpath.KindChain}},
		"for a user of nobody": {Role: auth.RoleViewer, Name: "x", API: true},
	} {
		if _, err := w.operator.CreateToken(ctx, r); onpath.CodeOf(err) != onpath.CodeInvalid {
			t.Errorf("a token %s: %v", what, err)
		}
	}
}

// TestRequestsOverQuota: a tenant's requests over its quota are refused, and no other's.
func TestRequestsOverQuota(t *testing.T) {
	w := newWorld(t)
	w.tenant("acme")
	ctx := t.Context()
	o, err := w.operator.Get(ctx, onpath.Key{Kind: onpath.KindTenant, Name: "acme"})
	if err != nil {
		t.Fatal(err)
	}
	tenant := o.(*onpath.Tenant)
	tenant.Spec.Quota = &onpath.Quota{Requests: 1}
	if _, err := w.operator.Put(ctx, tenant); err != nil {
		t.Fatal(err)
	}
	alice := w.user("acme")
	refused := 0
	for range 30 {
		if _, _, err := alice.List(ctx, onpath.KindHosts, "acme"); onpath.CodeOf(err) == onpath.CodeTooMany {
			refused++
		}
		if _, _, err := w.operator.List(ctx, onpath.KindHosts, ""); err != nil {
			t.Fatal(err)
		}
	}
	if refused == 0 {
		t.Error("30 requests at once are all answered")
	}
}
