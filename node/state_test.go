package node_test

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/node"
)

// A second agent is refused before it touches anything; see cmd/onpath.
func TestFree(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "node")
	for range 2 { // the first look leaves the folder free
		if err := node.Free(dir); err != nil {
			t.Fatal(err)
		}
	}
	f, err := os.Open(filepath.Join(dir, "lock"))
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	if err := node.Free(dir); onpath.CodeOf(err) != onpath.CodeConflict {
		t.Errorf("while an agent runs: %v", err)
	}
	f.Close()
	if err := node.Free(dir); err != nil {
		t.Errorf("after it: %v", err)
	}
}
