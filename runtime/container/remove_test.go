package container

import (
	"os"
	"path/filepath"
	"testing"
	"time"
)

// TestRemoveStale: of the folders of instances' cgroups those go that are empty
// and old; one that a start has just made stays, and so does one in use.
func TestRemoveStale(t *testing.T) {
	dir := t.TempDir()
	for _, d := range []string{"killed", "new", "used/inner"} {
		if err := os.MkdirAll(filepath.Join(dir, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	now := time.Now()
	for _, d := range []string{"killed", "used"} {
		if err := os.Chtimes(filepath.Join(dir, d), now, now.Add(-2*staleAfter)); err != nil {
			t.Fatal(err)
		}
	}
	removeStale(dir, now)
	for d, want := range map[string]bool{"killed": false, "new": true, "used": true} {
		if _, err := os.Stat(filepath.Join(dir, d)); (err == nil) != want {
			t.Errorf("%s is there: %v, want %v", d, err == nil, want)
		}
	}
}
