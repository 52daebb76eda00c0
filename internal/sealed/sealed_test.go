package sealed

import (
	"strings"
	"testing"
)

// TestBox: what is sealed opens at its place, by its key, unchanged, and nowhere else.
func TestBox(t *testing.T) {
	b := New(only("secret"))
	for _, value := range []string{"", "hunter2", strings.Repeat("x", 10_000)} {
		text := b.Seal("acme/db/password", value)
		if value != "" && strings.Contains(text, value) || text != b.Seal("acme/db/password", value) {
			t.Errorf("%q", text[:40])
		}
		if got, err := b.Open("acme/db/password", text); err != nil || got != value {
			t.Errorf("%v", err)
		}
		changed := []byte(text)
		changed[len(changed)/2] ^= 1
		for name, open := range map[string]func() (string, error){
			"another place":       func() (string, error) { return b.Open("bob/db/password", text) },
			"another key":         func() (string, error) { return New(only("other")).Open("acme/db/password", text) },
			"changed":             func() (string, error) { return b.Open("acme/db/password", string(changed)) },
			"cut":                 func() (string, error) { return b.Open("acme/db/password", text[:len(text)-3]) },
			"nothing":             func() (string, error) { return b.Open("acme/db/password", "") },
			"without its version": func() (string, error) { return b.Open("acme/db/password", text[3:]) },
		} {
			if _, err := open(); err == nil {
				t.Errorf("%s: it opens", name)
			}
		}
	}
}

// only are the secrets of a server that rotates none.
func only(secrets ...string) func() [][]byte {
	return func() (out [][]byte) {
		for _, s := range secrets {
			out = append(out, []byte(s))
		}
		return out
	}
}

// TestRotated: while a secret is rotated, what either has sealed opens; what is sealed again opens
// by the new one alone.
func TestRotated(t *testing.T) {
	old := New(only("old")).Seal("a/b/c", "hunter2")
	both := New(only("new", "old"))
	again, err := both.Again("a/b/c", old)
	if err != nil || again == old {
		t.Fatalf("%q, %v", again, err)
	}
	if got, err := both.Open("a/b/c", old); err != nil || got != "hunter2" {
		t.Errorf("%q, %v", got, err)
	}
	if got, err := New(only("new")).Open("a/b/c", again); err != nil || got != "hunter2" {
		t.Errorf("%q, %v", got, err)
	}
	if _, err := New(only("old")).Open("a/b/c", again); err == nil {
		t.Error("the old secret opens what the new one has sealed")
	}
}
