package meter

import (
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/internal/wholefile"
	"github.com/onpath/onpath/node/base"
)

// TestMetersSaved: a node that cannot keep that a meter is billed does not say that it has
// forgotten it, for the file may bring it back; and says so once it can.
func TestMetersSaved(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "state", "meters.json")
	if err := os.Mkdir(filepath.Dir(file), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := wholefile.WriteLightly(file, []byte(`{"u1":{"uid":"u1","cpu":7,"gone":true}}`), 0o600); err != nil {
		t.Fatal(err)
	}
	m := New(&base.Part{Log: slog.New(slog.DiscardHandler)})
	m.file = file
	list := func(billed ...string) ([]onpath.Meter, error) {
		m.ForgetBilled(billed)
		m.Read(t.Context(), Readings{})
		return m.List()
	}
	if err := m.Load(); err != nil {
		t.Fatal(err)
	}
	kept := func() string {
		t.Helper()
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	if got, err := list(); err != nil || len(got) != 1 || !m.synced {
		t.Fatalf("%v %v, synced %v", got, err, m.synced)
	}
	away := filepath.Join(dir, "away") // so that nothing can be written
	if err := os.Rename(filepath.Dir(file), away); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if got, err := list("u1"); err == nil {
			t.Errorf("it answers %v, and has kept nothing", got)
		}
	}
	if err := os.Rename(away, filepath.Dir(file)); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(kept(), "u1") {
		t.Errorf("the file has %s", kept())
	}
	if got, err := list("u1"); err != nil || len(got) != 0 {
		t.Errorf("%v %v", got, err)
	}
	if strings.Contains(kept(), "u1") || !m.synced {
		t.Errorf("it has forgotten u1, and the file has %s, synced %v", kept(), m.synced)
	}
}
