package cli

import (
	"bytes"
	"context"
	"fmt"
	"net/netip"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/mod/sumdb/note"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/control/translog"
	"github.com/onpath/onpath/store/mem"
)

// TestLogWatch: a server that does not answer for a while hides nothing from a watcher, and
// has nothing shown twice.
func TestLogWatch(t *testing.T) {
	l, err := translog.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	s, err := translog.NewStore(t.Context(), mem.New(mem.Options{}), time.Now, []byte("salt"))
	if err != nil {
		t.Fatal(err)
	}
	const entries = 600 // three parts
	mine := onpath.Prefix{Prefix: netip.MustParsePrefix("198.51.100.0/24")}
	for i := range entries {
		e := onpath.LogEntry{What: onpath.LogClaim, Tenant: fmt.Sprintf("t%d", i), Prefixes: []onpath.Prefix{mine}}
		if err := s.Note(t.Context(), e); err != nil {
			t.Fatal(err)
		}
	}
	if err := l.Take(t.Context(), s); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	silent, asked := 3, 0
	w := &watched{path: filepath.Join(t.TempDir(), "state.json")}
	w.Fetch = func(path string) ([]byte, error) {
		switch {
		case path == "checkpoint":
			if asked++; asked > 5 {
				cancel() // all was shown, or is lost
			}
			return l.Checkpoint(), nil
		case strings.HasPrefix(path, "tile/entries/002") && silent > 0:
			silent--
			return nil, onpath.Errorf(onpath.CodeUnavailable, "the server is away")
		}
		return l.Tile(path)
	}
	if w.Verifier, err = note.NewVerifier(l.Key()); err != nil {
		t.Fatal(err)
	}
	var out, warnings bytes.Buffer
	if err := w.watch(ctx, &out, &warnings, mine, false, false); err != nil && ctx.Err() == nil {
		t.Fatal(err)
	}
	if n := strings.Count(out.String(), "\n"); n != entries || silent > 0 {
		t.Errorf("%d of %d entries are shown", n, entries)
	}
	if n := strings.Count(warnings.String(), "the server is away"); n != 1 {
		t.Errorf("it is said %d times that the server is away", n)
	}
}
