package render_test

import (
	"testing"

	"github.com/onpath/onpath/api/wire"
	"github.com/onpath/onpath/cli/render"
)

// TestChange: values stand as people write them.
func TestChange(t *testing.T) {
	for _, c := range []struct{ field, old, now, want string }{
		{"spec.container.files./etc/a.mode", "416", "", "spec.container.files./etc/a.mode: 0640 → (absent)"},
		{"spec.priority", "416", "420", "spec.priority: 416 → 420"},
		{"spec.env.A", `"\u003cb\u003e"`, `"0123456789"`, `spec.env.A: "<b>" → "01234567…`},
	} {
		if got := render.Change(wire.FieldChange{Field: c.field, Old: []byte(c.old), New: []byte(c.now)}, 9); got != c.want {
			t.Errorf("it says %s, must say %s", got, c.want)
		}
	}
}
