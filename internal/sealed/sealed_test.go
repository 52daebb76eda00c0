package sealed

import (
	"strings"
	"testing"
)

// TestBox: what is sealed opens at its place, by its key, unchanged, and nowhere else.
func TestBox(t *testing.T) {
	b := New([]byte("secret"))
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
			"another key":         func() (string, error) { return New([]byte("other")).Open("acme/db/password", text) },
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
