package etcd_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/store/etcd"
)

// TestDeletedUnderServer takes a store's files away while it runs: what is written
// from then on is not acknowledged, and the rest can still be read.
func TestDeletedUnderServer(t *testing.T) {
	for name, take := range map[string]func(dir string) error{
		"all":      os.RemoveAll,
		"database": func(dir string) error { return os.RemoveAll(filepath.Join(dir, "etcd", "member", "snap")) },
		"log":      func(dir string) error { return os.RemoveAll(filepath.Join(dir, "etcd", "member", "wal")) },
		"log file": func(dir string) error { return os.Remove(filepath.Join(dir, "etcd", "member", "wal", firstLog)) },
		"moved":    func(dir string) error { return os.Rename(dir, dir+".old") },
		"replaced": func(dir string) error {
			if err := os.Rename(dir, dir+".old"); err != nil {
				return err
			}
			return os.CopyFS(dir, os.DirFS(dir+".old"))
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := filepath.Join(t.TempDir(), "store")
			s := open(t, etcd.Options{Dir: dir})
			if err := commit(t.Context(), s, put(chain("x", 1), 0)); err != nil {
				t.Fatal(err)
			}
			if err := take(dir); err != nil {
				t.Fatal(err)
			}
			for i := range 2 {
				err := commit(t.Context(), s, put(chain(fmt.Sprint("y", i), 1), 0))
				if onpath.CodeOf(err) != onpath.CodeUnavailable || !strings.Contains(fmt.Sprint(err), "deleted or replaced") {
					t.Errorf("a write: %v", err)
				}
			}
			if _, err := s.NextIDs(t.Context(), "path", 0, 1); onpath.CodeOf(err) != onpath.CodeUnavailable {
				t.Errorf("numbers: %v", err)
			}
			if _, err := s.Get(t.Context(), onpath.KeyOf(chain("x", 0))); err != nil {
				t.Errorf("reading: %v", err)
			}
		})
	}
}
