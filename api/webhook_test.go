package api_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/api/auth"
	"github.com/onpath/onpath/api/client"
)

func hookTo(url string) *onpath.Webhook {
	o, _ := onpath.New(onpath.KindWebhook)
	w := o.(*onpath.Webhook)
	w.Metadata, w.Spec.URL = onpath.Metadata{Name: "pager", Tenant: "acme"}, url
	return w
}

// TestWebhookSecret: who may write a webhook reads its secret, and nobody else; get, list,
// diff and history do not have it.
func TestWebhookSecret(t *testing.T) {
	w := newWorld(t)
	alice := w.user("acme")
	bob := w.user("other")
	board, err := w.join(auth.TokenRequest{Role: auth.RoleViewer, Name: "board", Tenant: "acme"}, "")
	if err != nil {
		t.Fatal(err)
	}
	first, err := alice.Put(t.Context(), hookTo("https://example.com/1"))
	if err != nil {
		t.Fatal(err)
	}
	k := onpath.KeyOf(first)
	state, err := alice.WebhookState(t.Context(), k)
	if err != nil || state.Secret != "whsec_"+first.Meta().UID {
		t.Fatal(state, err)
	}
	for who, c := range map[string]*client.Client{"another tenant": bob, "a viewer": board} {
		if s, err := c.WebhookState(t.Context(), k); onpath.CodeOf(err) != onpath.CodeForbidden || s.Secret != "" {
			t.Errorf("%s: %v %v", who, s, err)
		}
	}
	if _, err := bob.Put(t.Context(), hookTo("https://example.com/3")); onpath.CodeOf(err) != onpath.CodeForbidden {
		t.Errorf("another tenant writes it: %v", err)
	}
	told := map[string]any{}
	told["diff"], err = alice.Apply(t.Context(), []onpath.Object{hookTo("https://example.com/2")}, client.ApplyOptions{DryRun: true})
	if err != nil {
		t.Fatal(err)
	}
	if told["get"], err = alice.Get(t.Context(), k); err != nil {
		t.Fatal(err)
	}
	if told["history"], err = alice.History(t.Context(), k); err != nil {
		t.Fatal(err)
	}
	if told["list"], _, err = alice.List(t.Context(), onpath.KindWebhook, "acme"); err != nil {
		t.Fatal(err)
	}
	for what, v := range told {
		b, _ := json.Marshal(v)
		if text := string(b); strings.Contains(text, "whsec_") || !strings.Contains(text, "example.com") {
			t.Errorf("%s: %s", what, text)
		}
	}
}

// TestBadWebhooks: what cannot be sent to is refused, and not repeated.
func TestBadWebhooks(t *testing.T) {
	w := newWorld(t)
	alice := w.user("acme")
	for _, url := range []string{"", "example.com", "ftp://example.com/hush", "https://user:hush@example.com/", "https://example.com/#hush",
		"https:///hush", "https://exa mple.com/hush"} {
		if _, err := alice.Put(t.Context(), hookTo(url)); onpath.CodeOf(err) != onpath.CodeInvalid || strings.Contains(err.Error(), "hush") {
			t.Errorf("%q: %v", url, err)
		}
	}
}
