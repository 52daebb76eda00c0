package api_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/api/auth"
	"github.com/onpath/onpath/api/client"
)

func secret(tenant string, data, sealed map[string]string) *onpath.Secret {
	o, _ := onpath.New(onpath.KindSecret)
	s := o.(*onpath.Secret)
	s.Metadata, s.Spec = onpath.Metadata{Name: "db", Tenant: tenant}, onpath.SecretSpec{Data: data, Sealed: sealed}
	return s
}

// TestSecret: a value that was written is never told again, but to the node that runs an
// instance which names it.
func TestSecret(t *testing.T) {
	w := newWorld(t)
	alice, bob := w.user("acme"), w.user("other")
	written := map[string]string{"password": "hunter2"}
	o, err := alice.Put(t.Context(), secret("acme", written, nil))
	if err != nil {
		t.Fatal(err)
	}
	k, told := onpath.KeyOf(o), map[string]any{"put": o}
	for what, ask := range map[string]func() (any, error){
		"get":     func() (any, error) { return w.operator.Get(t.Context(), k) },
		"history": func() (any, error) { return alice.History(t.Context(), k) },
		"list":    func() (any, error) { l, _, err := alice.List(t.Context(), onpath.KindSecret, "acme"); return l, err },
		"diff": func() (any, error) {
			next := secret("acme", map[string]string{"password": "hunter22"}, nil)
			return alice.Apply(t.Context(), []onpath.Object{next}, client.ApplyOptions{DryRun: true})
		},
	} {
		if told[what], err = ask(); err != nil {
			t.Fatal(what, err)
		}
	}
	for what, v := range told {
		if b, _ := json.Marshal(v); strings.Contains(string(b), "hunter2") || !strings.Contains(string(b), "password") {
			t.Errorf("%s: %s", what, b)
		}
	}
	got, err := alice.Get(t.Context(), k)
	if err != nil {
		t.Fatal(err)
	}
	sealed := got.(*onpath.Secret).Spec.Sealed
	if again, err := alice.Put(t.Context(), secret("acme", nil, sealed)); err != nil || again.Meta().Generation != 1 {
		t.Errorf("what was read, applied again: %+v, %v", again, err)
	}
	if again, err := alice.Put(t.Context(), secret("acme", written, nil)); err != nil || again.Meta().Generation != 1 {
		t.Errorf("what was written, applied again: %+v, %v", again, err)
	}
	most := map[string]string{"a": strings.Repeat("x", onpath.MaxSecretBytes-1), "b": "y"}
	o, err = alice.Put(t.Context(), secret("acme", most, nil))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := alice.Put(t.Context(), secret("acme", nil, o.(*onpath.Secret).Spec.Sealed)); err != nil {
		t.Errorf("as much as there may be, applied again: %v", err)
	}
	if _, err := alice.Put(t.Context(), secret("acme", map[string]string{"c": "z"}, o.(*onpath.Secret).Spec.Sealed)); onpath.CodeOf(err) != onpath.CodeInvalid {
		t.Errorf("more than there may be: %v", err)
	}
	if _, err := alice.Put(t.Context(), secret("acme", written, nil)); err != nil {
		t.Fatal(err)
	}
	if _, err := bob.Put(t.Context(), secret("other", nil, sealed)); onpath.CodeOf(err) != onpath.CodeInvalid {
		t.Errorf("another tenant's, taken over: %v", err)
	}
	if _, err := bob.Get(t.Context(), k); onpath.CodeOf(err) != onpath.CodeForbidden {
		t.Errorf("another tenant reads it: %v", err)
	}
	w.givesSecrets(alice, bob)
}

// givesSecrets: nodes have those of instances in their plans.
func (w *world) givesSecrets(others ...*client.Client) {
	t := w.t
	t.Helper()
	for name, want := range map[string]string{"n1": "hunter2", "n2": ""} {
		c, err := w.join(auth.TokenRequest{Role: auth.RoleNode, Name: name}, name)
		if err != nil {
			t.Fatal(err)
		}
		for _, claims := range []string{"", "n1"} { // its certificate counts, not what it says
			files, err := c.Secrets(t.Context(), claims, "acme", "web-1")
			if err != nil || string(files["pass"]) != want || len(files) > 1 {
				t.Errorf("node %s: %q, %v", name, files, err)
			}
		}
	}
	for _, c := range others {
		if files, err := c.Secrets(t.Context(), "n1", "acme", "web-1"); onpath.CodeOf(err) != onpath.CodeForbidden || len(files) > 0 {
			t.Errorf("a user: %q, %v", files, err)
		}
	}
}
