package node

import (
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"github.com/onpath/onpath/node/base"
)

// TestOffForgetsFaults: a node that had a fault leaves no folder behind.
func TestOffForgetsFaults(t *testing.T) {
	d := base.Dir(filepath.Join(t.TempDir(), "node"))
	if err := os.MkdirAll(d.Faults(), 0o750); err != nil { // as the last fault leaves it
		t.Fatal(err)
	}
	f := off{o: OffOptions{Log: slog.New(slog.DiscardHandler)}, dir: d}
	f.folder()
	if _, err := os.Stat(string(d)); !errors.Is(err, fs.ErrNotExist) || len(f.errs) > 0 {
		t.Errorf("the state folder is still there: %v, %v", err, f.errs)
	}
}
