package demo

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestInterrupted: who broke a run off is told what is left, not what it waited
// for.
func TestInterrupted(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	dir := t.TempDir()
	waiting := errors.New("chain web: context canceled; its status says: waits for an instance")
	check := func(left error, want string) {
		t.Helper()
		err := interrupted(ctx, dir, waiting, left)
		if !errors.Is(err, context.Canceled) || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	check(nil, "interrupted; everything that it had made was removed: ")
	check(errors.New("lab: busy\nserver: busy"), "interrupted, and not everything could be removed: lab: busy; server: busy; remove the rest with onpath demo --down")
	if err := os.WriteFile(filepath.Join(dir, recordFile), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	check(nil, "interrupted, and not everything could be removed: chain web: ")
}
